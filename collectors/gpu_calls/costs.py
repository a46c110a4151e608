"""What the hits of each call cost on this machine: its place's entry class, as calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from collectors.binaries.elf_file import EntryClass
from collectors.port import SourceUnavailable
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from .calibrate_hits import CalibrationTarget, HitCost, calibrate
from .counts import ProbeDrain
from .meanings import CallKind
from .probe_plan import Attachment, FilePlan
from .probe_table import ProbeTable

ASSUMED: Final[Mapping[EntryClass, HitCost]] = {
    EntryClass.STEPPED: HitCost(4_000.0, 7_000.0),
    EntryClass.EMULATED: HitCost(1_500.0, 4_000.0),
    EntryClass.NOP5: HitCost(1_000.0, 3_000.0),
}
"""Until this machine has been measured, and where it cannot be: more than most machines take."""

CALIBRATION_FILE: Final = (1 << 31) - 1
"""Index of the file of calibration: its hits are nobody's."""

_measured: dict[EntryClass, HitCost] = {}


class Attaches(Protocol):
    """The part of `GpuPrograms` that calibration needs."""

    def attach(self, file: int, path: str, attachments: list[Attachment], /) -> None: ...
    def detach(self, file_group: FileGroup, /) -> None: ...


@dataclass(slots=True)
class ProbeCost:
    """Hits of one place (group of a file) and what they took, in nanoseconds."""

    hits: int = 0
    cost_ns: float = 0.0

    def add(self, hits: int, each_ns: float) -> None:
        """Count some hits."""
        self.hits += hits
        self.cost_ns += hits * each_ns

    def merge(self, other: ProbeCost) -> None:
        """Count those of another."""
        self.hits += other.hits
        self.cost_ns += other.cost_ns


@dataclass(slots=True)
class HitCosts:
    """Prices the calls of a drain; one for the machine.

    A row of the table may lie at several places of a file: the dearest of them counts.
    """

    table: ProbeTable
    by_class: Mapping[EntryClass, HitCost] = field(default_factory=lambda: ASSUMED)
    calibrated: bool = False
    _index: dict[str, int] = field(init=False)
    _classes: dict[tuple[int, int, bool], EntryClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = {row.id: place for place, row in enumerate(self.table.rows)}

    def learn(self, file: int, plan: FilePlan) -> None:
        """Remember how the kernel passes each place of a file."""
        order = list(EntryClass)  # the dearest first
        for attachment in plan.attachments:
            for row, entry in zip(attachment.rows, attachment.classes, strict=True):
                key = (file, row, attachment.returns)
                known = self._classes.get(key, entry)
                self._classes[key] = min(known, entry, key=order.index)

    def forget(self, file: int) -> None:
        """Forget a file."""
        for key in [key for key in self._classes if key[0] == file]:
            del self._classes[key]

    def of(self, group: ProbeGroup) -> float:
        """Give the cost of a hit where nothing was hit: that of the commonest class."""
        cost = self.by_class.get(EntryClass.EMULATED, ASSUMED[EntryClass.EMULATED])
        return cost.return_ns if group is ProbeGroup.LAUNCH_RESULT else cost.entry_ns

    def spent(self, drain: ProbeDrain) -> dict[FileGroup, ProbeCost]:
        """Price every hit of a drain, by place."""
        spent: dict[FileGroup, ProbeCost] = {}
        for call in drain.calls:
            place = self._index.get(call.call)
            if place is None:
                continue
            row = self.table.rows[place]
            entry = self._cost(call.file, place, False)
            entered = FileGroup(call.file, row.group)
            spent.setdefault(entered, ProbeCost()).add(call.calls + call.nested, entry.entry_ns)
            if call.returned:
                returned = FileGroup(call.file, row.return_group)
                spent.setdefault(returned, ProbeCost()).add(call.returned, entry.return_ns)
        return spent

    def calibrate(self, programs: Attaches) -> None:
        """Measure this machine through the loaded programs themselves: about a second, once in
        the life of a process. Where that fails, what is assumed holds.
        """
        launch = next(
            (i for i, row in enumerate(self.table.rows) if row.kind is CallKind.LAUNCH), None
        )
        if launch is None:
            return
        with suppress(SourceUnavailable):
            if not _measured:
                target = CalibrationTarget()
                try:
                    _measured.update(calibrate(target, _Through(programs, launch).attach))
                finally:
                    target.close()
            self.by_class = {**ASSUMED, **_measured}
            self.calibrated = True

    def _cost(self, file: int, row: int, returns: bool) -> HitCost:
        entry = self._classes.get((file, row, returns), EntryClass.EMULATED)
        return self.by_class.get(entry, ASSUMED[entry])


@dataclass(frozen=True, slots=True)
class _Through:
    """Attaches the programs of a launch to the calibration's functions."""

    programs: Attaches
    row: int

    @contextmanager
    def attach(self, path: str, offset: int, returns: bool) -> Iterator[None]:
        group = ProbeGroup.LAUNCH_RESULT if returns else ProbeGroup.LAUNCH
        place = Attachment(group, returns, (offset,), (self.row,), (0,), (EntryClass.EMULATED,))
        self.programs.attach(CALIBRATION_FILE, path, [place])
        try:
            yield
        finally:
            with suppress(OSError):
                self.programs.detach(FileGroup(CALIBRATION_FILE, group))
