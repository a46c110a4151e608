"""What probe hits cost on this machine, and the CPU time of processes that may call.

Calibrated in this very process: a file of memory that no other maps holds one function of each
entry class and a loop that calls it, timed with and without a probe.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple, Protocol

import numpy as np

from collectors.binaries.elf_file import EntryClass
from collectors.binaries.proc_maps import process_key
from collectors.boot_clock import boottime_ns
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from .probe_plan import Attachment, FilePlan
from .probe_table import CallKind, ProbeTable
from .readout import ProbeDrain

CALLS: Final = 2_000
ROUNDS: Final = 5
_SLOT: Final = 64

_X86_64: Final = {
    "loop": "53 55 4889fb 4889f5 ffd5 48ffcb 75f9 5d 5b c3",
    EntryClass.EMULATED: "55 5d c3",
    EntryClass.STEPPED: "488d0424 c3",
    EntryClass.NOP: "0f1f440000 c3",
}
"""loop(calls, function): rbx counts down, rbp is called. Then push, lea and a five-byte nop."""

_ARM64: Final = {
    "loop": "fd7bbea9 f35301a9 f30300aa f40301aa 80023fd6 730600f1 c1ffff54 f35341a9 fd7bc2a8 "
    "c0035fd6",
    EntryClass.EMULATED: "09000010 c0035fd6",
    EntryClass.STEPPED: "ff4300d1 ff430091 c0035fd6",
    EntryClass.NOP: "1f2003d5 c0035fd6",
}
"""The same with x19 and x20; adr, sub and nop."""

_CODE: Final = {"x86_64": _X86_64, "aarch64": _ARM64}


class HitCost(NamedTuple):
    entry_ns: float
    both_ns: float

    @property
    def return_ns(self) -> float:
        return max(self.both_ns - self.entry_ns, 0.0)


Attach = Callable[[str, int, bool], AbstractContextManager[object]]
"""attach(path, offset, returns): probe a file's offset while the context lasts."""


class CalibrationTarget:
    """One function of each entry class, callable in this process; a file that can be probed."""

    def __init__(self, machine: str | None = None) -> None:
        """Map the code. Raises SourceUnavailable on an unknown machine, or where that is denied."""
        code = _CODE.get(machine or platform.machine())
        if code is None:
            raise SourceUnavailable(
                f"probe costs: expected {' or '.join(_CODE)}, got {platform.machine()}"
            )
        image = b"".join(bytes.fromhex(part).ljust(_SLOT, b"\0") for part in code.values())
        self.classes: tuple[EntryClass, ...] = tuple(k for k in code if isinstance(k, EntryClass))
        self._file = os.memfd_create("pointillist-calibration", os.MFD_CLOEXEC)
        try:
            os.write(self._file, image.ljust(mmap.PAGESIZE, b"\0"))
            self._map = mmap.mmap(
                self._file,
                mmap.PAGESIZE,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_EXEC,  # the kernel probes no writable map
            )
        except OSError as error:
            os.close(self._file)
            raise SourceUnavailable(f"probe costs: cannot map code: {error}") from None
        self._first = int(np.frombuffer(self._map, dtype=np.uint8).ctypes.data)
        self._loop = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p)(self._first)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def offset(self, entry: EntryClass) -> int:
        return _SLOT * (1 + self.classes.index(entry))

    def call(self, entry: EntryClass, calls: int) -> float:
        """Call a function; gives nanoseconds of CPU time per call."""
        begin = time.thread_time_ns()  # by the clock on the wall a busy machine doubles the cost
        self._loop(calls, self._first + self.offset(entry))
        return (time.thread_time_ns() - begin) / calls

    def close(self) -> None:
        """Close the file; the mapping lives as long as this object."""
        os.close(self._file)


def calibrate(
    target: CalibrationTarget, attach: Attach, calls: int = CALLS
) -> Mapping[EntryClass, HitCost]:
    """Measure every class: medians of rounds that take turns with bare ones."""
    costs: dict[EntryClass, HitCost] = {}
    for entry in target.classes:
        bare, hit, both = [], [], []
        for _ in range(ROUNDS):
            bare.append(target.call(entry, calls))
            with attach(target.path, target.offset(entry), False):
                hit.append(target.call(entry, calls))
                with attach(target.path, target.offset(entry), True):
                    both.append(target.call(entry, calls))
        floor = median(bare)
        costs[entry] = HitCost(max(median(hit) - floor, 0.0), max(median(both) - floor, 0.0))
    return costs


ASSUMED: Final[Mapping[EntryClass, HitCost]] = {
    EntryClass.STEPPED: HitCost(4_000.0, 7_000.0),
    EntryClass.EMULATED: HitCost(1_500.0, 4_000.0),
    EntryClass.NOP: HitCost(4_000.0, 7_000.0),
}
"""Until this machine has been measured, and where it cannot be: more than most machines take."""

CALIBRATION_FILE: Final = (1 << 31) - 1
"""Index of the file of calibration: its hits are nobody's."""

_measured: dict[EntryClass, HitCost] = {}


class Attaches(Protocol):
    def attach(self, file: int, path: str, attachments: list[Attachment], /) -> None: ...
    def detach_all(self, file_groups: Collection[FileGroup], /) -> None: ...


@dataclass(slots=True)
class ProbeCost:
    hits: int = 0
    cost_ns: float = 0.0

    def add(self, hits: int, each_ns: float) -> None:
        self.hits += hits
        self.cost_ns += hits * each_ns

    def merge(self, other: ProbeCost) -> None:
        self.hits += other.hits
        self.cost_ns += other.cost_ns


@dataclass(slots=True)
class HitCosts:
    """Prices the calls of a drain; of a row's places in a file the dearest counts."""

    table: ProbeTable
    by_class: Mapping[EntryClass, HitCost] = field(default_factory=lambda: ASSUMED)
    calibrated: bool = False
    _index: dict[str, int] = field(init=False)
    _classes: dict[tuple[int, int, bool], EntryClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = {row.id: place for place, row in enumerate(self.table.rows)}

    def learn(self, file: int, plan: FilePlan) -> None:
        order = list(EntryClass)  # the dearest first
        for attachment in plan.attachments:
            for row, entry in zip(attachment.rows, attachment.classes, strict=True):
                key = (file, row, attachment.returns)
                known = self._classes.get(key, entry)
                self._classes[key] = min(known, entry, key=order.index)

    def forget(self, file: int) -> None:
        for key in [key for key in self._classes if key[0] == file]:
            del self._classes[key]

    def of(self, group: ProbeGroup) -> float:
        cost = self.by_class.get(EntryClass.EMULATED, ASSUMED[EntryClass.EMULATED])
        return cost.return_ns if group is ProbeGroup.LAUNCH_RESULT else cost.entry_ns

    def spent(self, drain: ProbeDrain) -> dict[FileGroup, ProbeCost]:
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
        """Measure this machine by the loaded programs, in a second, once in a process's life."""
        launch = next(
            (i for i, row in enumerate(self.table.rows) if row.kind is CallKind.LAUNCH), None
        )
        if launch is None:
            return

        @contextmanager
        def attach(path: str, offset: int, returns: bool) -> Iterator[None]:
            group = ProbeGroup.LAUNCH_RESULT if returns else ProbeGroup.LAUNCH
            place = Attachment(group, returns, (offset,), (launch,), (0,), (EntryClass.EMULATED,))
            programs.attach(CALIBRATION_FILE, path, [place])
            try:
                yield
            finally:
                programs.detach_all([FileGroup(CALIBRATION_FILE, group)])

        with suppress(SourceUnavailable):
            if not _measured:
                with closing(CalibrationTarget()) as target:
                    _measured.update(calibrate(target, attach))
            self.by_class = {**ASSUMED, **_measured}
            self.calibrated = True

    def _cost(self, file: int, row: int, returns: bool) -> HitCost:
        entry = self._classes.get((file, row, returns), EntryClass.EMULATED)
        return self.by_class.get(entry, ASSUMED[entry])


MOST_PROCESSES: Final = 1024
_YOUNG_NS: Final = 5_000_000_000
_SCHEDULED: Final = 2
"""CPUCLOCK_SCHED of a whole process, all its threads: include/linux/posix-timers_types.h."""


def process_cpu_ns(process: ProcessKey) -> int | None:
    try:
        return time.clock_gettime_ns(~process.pid << 3 | _SCHEDULED)
    except OSError:
        return None


def is_there(process: ProcessKey) -> bool:
    return process_key("/proc", process.pid) == process


class CpuClocks:
    """CPU time of processes: `known` may call, `note` adds who did, each is checked once."""

    def __init__(
        self,
        known: Callable[[], Iterable[ProcessKey]] = tuple,
        read: Callable[[ProcessKey], int | None] = process_cpu_ns,
        check: Callable[[ProcessKey], bool] = is_there,
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._known, self._read, self._check, self._now_ns = known, read, check, now_ns
        self._last: dict[ProcessKey, int | None] = {}

    def note(self, processes: Collection[ProcessKey]) -> None:
        for process in processes:
            if process.pid:
                self._follow(process)

    def forget(self, process: ProcessKey) -> None:
        """Leave out a process that ended: its number may be another's."""
        self._last.pop(process, None)

    def take(self) -> dict[ProcessKey, int | None]:
        """Give each process's CPU time since the last call.

        None where it is not known: of one that has ended, once; of one that is older than its first
        reading; of one that cannot be read, each time.
        """
        for process in self._known():
            self._follow(process)
        grown: dict[ProcessKey, int | None] = {}
        for process, before in list(self._last.items()):
            now = self._read(process)
            if now is not None:
                self._last[process] = now
                grown[process] = None if before is None else max(now - before, 0)
            else:
                grown[process] = None
                del self._last[process]
        return grown

    def _follow(self, process: ProcessKey) -> None:
        if process in self._last or len(self._last) >= MOST_PROCESSES:
            return
        young = self._now_ns() - process.start_ns < _YOUNG_NS
        if self._check(process):
            self._last[process] = 0 if young else None
