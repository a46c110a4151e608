"""What engines share whose hosts work in processes: blocks, rows told once, memory, an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from .blocks import BlockRows, Span
from .crew import Crew, P
from .engine_port import EngineSettings, RowSource
from .randomness import BlockRandomness
from .stage_seconds import Laps


class BlockHosts:
    """The hosts of one process: their rows, noise and rounding by block."""

    def __init__(self, spans_: tuple[Span, ...], settings: EngineSettings, stage: str = "") -> None:
        self._lap = Laps(stage)
        self._random = BlockRandomness(settings, self._lap)
        self._rows = BlockRows(spans_, settings)

    def learn(self, series: str, rows: RowSource) -> None:
        """Take the source of a series' rows."""
        self._rows.learn(series, rows)

    def close(self) -> None:
        """Hold nothing."""


class CrewEngine(Generic[P]):
    """An engine whose parts have the methods of `BlockHosts`."""

    def __init__(self, make: Sequence[Callable[[], P]]) -> None:
        self._crew = Crew(make, len(make))
        self._known: set[str] = set()

    def _call(self, series: str, rows: RowSource, method: str, *arguments: Any) -> list[Any]:
        """Have every part call a method for a series, whose rows it is told once."""
        self._learn(series, rows)
        return self._crew.call(method, *arguments)

    def _learn(self, series: str, rows: RowSource) -> None:
        if series not in self._known:
            self._crew.call("learn", series, rows)
            self._known.add(series)

    def peak_bytes(self) -> list[int]:
        """Most memory of each process, this one first."""
        return self._crew.peak_bytes()

    def close(self) -> None:
        """End the processes."""
        self._crew.close()
