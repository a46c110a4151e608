"""Collectors asked in turn: the one way in which what they measured leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .devices.device_port import DeviceSample, ReportsDevices
from .interface import ReportsAbsences, Source, SourceUnavailable, UnavailableSource, guarded
from .records.activity import Record


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain of one source; after a failure `records` has what came before it."""

    name: str
    records: Sequence[Record]
    look: DeviceSample | None = None
    failure: str | None = None


class Rounds:
    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.sources = tuple(sources)
        # Found once: asking a protocol takes 10 us.
        self._looking = [
            source if isinstance(source, ReportsDevices) else None for source in self.sources
        ]
        self.failing: dict[str, str] = {}

    @property
    def lacking(self) -> list[UnavailableSource]:
        return [
            part
            for source in self.sources
            if isinstance(source, ReportsAbsences)
            for part in source.absent
        ]

    def round(self, now_ns: int) -> Iterator[Drained]:
        """Drain every source once."""
        failing: dict[str, str] = {}
        for source, looking in zip(self.sources, self._looking, strict=True):
            failure, records = None, list[Record]()
            try:
                for record in guarded(source, now_ns):
                    records.append(record)
            except SourceUnavailable as error:
                failure = failing[source.name] = str(error)
            look = None if looking is None else looking.latest(now_ns)
            yield Drained(source.name, records, look, failure)
        self.failing = failing

    def replace(self, sources: Sequence[Source]) -> Rounds:
        for source in self.sources:
            if source not in sources:
                source.stop()
        return Rounds(sources)

    def stop(self) -> None:
        for source in self.sources:
            source.stop()
