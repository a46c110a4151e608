"""Snapshots from the kernel's rings, and the marks of watched processes' rhythms."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.binaries.proc_maps import ProgramNames
from collectors.boot_clock import boottime_ns
from collectors.bpf.bpf_maps import MARK_FIELDS, ArrayView, MarkRing, PerCpuMap, set_element
from collectors.interface import UnavailableSource
from collectors.records.activity import HostTicks, RhythmMarks

from . import ebpf_tables as layout

_SLOTS: Final = layout.SNAPSHOT_SLOTS
_HEAD: Final = layout.SNAPSHOT_HEAD


@dataclass(frozen=True, slots=True)
class TickState:
    """What the ticks cost: callbacks and their nanoseconds, all of them timed."""

    ticks: int
    cost_ns: int


class Ticks(ABC):
    """Snapshots of running programs: `read` gives those since the last call, None: no more."""

    def __init__(self, snapshots: ArrayView, state: ArrayView) -> None:
        self._snapshots, self._state = snapshots, state

    @abstractmethod
    def state(self) -> TickState: ...

    @abstractmethod
    def read(self) -> HostTicks | None: ...

    def close(self) -> None:
        self._snapshots.close()
        self._state.close()


def fresh_slots(
    ring: NDArray[np.uint64], state: NDArray[np.uint64], read_to: int
) -> tuple[NDArray[np.uint64], int, int]:
    """Copy the slots from number `read_to` on, without those overwritten meanwhile.

    ring        uint64[SNAPSHOT_SLOTS, SNAPSHOT_FIELDS]
    state       uint64[TICK_STATE_FIELDS], of which the first counts published slots
    Returns     slots, the number to go on from, how many were lost
    """
    published = int(state[0])
    # The slot after the last published one may be half written at any time.
    oldest = max(read_to, published - _SLOTS + 1)
    numbers = np.arange(oldest, published, dtype=np.uint64)
    slots = ring[(numbers % _SLOTS).astype(np.intp)]
    now = int(state[0])
    whole = (slots[:, 0] == numbers) & (numbers + np.uint64(_SLOTS) > np.uint64(now))
    if not whole.all():
        slots = slots[whole]
    return slots, published, published - read_to - len(slots)


class TimerTicks(Ticks):
    def __init__(self, snapshots: ArrayView, state: ArrayView) -> None:
        super().__init__(snapshots, state)
        self._read_to, self._missed = 0, 0

    def state(self) -> TickState:
        return TickState(*self._state.rows[0, [0, 3]].tolist())

    def read(self) -> HostTicks | None:
        ring, state = self._snapshots.rows, self._state.rows[0]
        slots, self._read_to, lost = fresh_slots(ring, state, self._read_to)
        if not len(slots):
            return None
        # A snapshot knows how many deadlines had been missed before it.
        missed, self._missed = int(slots[-1, 2]) - self._missed, int(slots[-1, 2])
        times = slots[:, 1].astype(np.int64)
        return HostTicks(layout.TOTALS, times, slots[:, _HEAD:], missed, lost)


class PerCpuTicks(Ticks):
    """A ring per CPU, written by perf events: added up here; an idle CPU keeps its last value."""

    def __init__(self, snapshots: ArrayView, state: ArrayView, cpus: int, period_ns: int) -> None:
        super().__init__(snapshots, state)
        self._cpus, self._period_ns = cpus, period_ns
        self._read_to = [0] * cpus
        self._last = np.zeros((cpus, len(layout.TOTALS)), np.uint64)
        self._place: int | None = None

    def state(self) -> TickState:
        return TickState(*self._state.rows[: self._cpus, [0, 3]].sum(axis=0).tolist())

    def read(self) -> HostTicks | None:
        offset = boottime_ns() - time.monotonic_ns()
        lost = 0
        per_cpu: list[NDArray[np.uint64]] = []
        for cpu in range(self._cpus):
            ring = self._snapshots.rows[cpu * _SLOTS : (cpu + 1) * _SLOTS]
            state = self._state.rows[cpu]
            slots, self._read_to[cpu], gone = fresh_slots(ring, state, self._read_to[cpu])
            per_cpu.append(slots)
            lost += gone
        times = np.sort(np.concatenate([slots[:, 1] for slots in per_cpu]).astype(np.int64))
        if not len(times):
            return None
        places = times // self._period_ns
        last_of_place = np.append(places[1:] != places[:-1], True)
        times, places = times[last_of_place], places[last_of_place]
        totals = sum(
            (self._at(cpu, slots, times) for cpu, slots in enumerate(per_cpu)),
            np.zeros((len(times), len(layout.TOTALS)), np.uint64),
        )
        begun = int(places[0]) - 1 if self._place is None else self._place
        self._place = int(places[-1])
        missed = max(0, self._place - begun - len(places))
        return HostTicks(layout.TOTALS, times + offset, totals, missed, lost)

    def _at(
        self, cpu: int, slots: NDArray[np.uint64], times: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        known = np.vstack([self._last[cpu], slots[:, _HEAD:]])
        self._last[cpu] = known[-1]
        return known[np.searchsorted(slots[:, 1].astype(np.int64), times, side="right")]


MOST_WATCHED: Final = 64

_IDLE_DRAINS: Final = 60
_AT, _VALUE, _PROCESS, _START, _CGROUP, _WHAT, _EXTRA = range(len(MARK_FIELDS))
_KINDS = layout.RHYTHM_KINDS
_NONE = (0,) * _KINDS

_Process = tuple[int, int]


class RhythmMaps:
    """The maps of running programs; nothing is watched at first."""

    def __init__(
        self, ring: MarkRing, processes: PerCpuMap, watched_fd: int, generation_fd: int
    ) -> None:
        self._ring, self._processes = ring, processes
        self._watched = PerCpuMap(watched_fd, 8, 1, 1, MOST_WATCHED)
        self._watched_fd, self._generation_fd = watched_fd, generation_fd
        self._generation = 0
        self._now: frozenset[int] = frozenset()
        self._beyond: dict[_Process, tuple[int, ...]] = {}
        self._drains = 0
        self._marked_at: dict[_Process, int] = {}
        self._programs = ProgramNames()

    def watch(self, cgroups: frozenset[int]) -> None:
        """Watch these cgroups and no others: at most 64. Raises SourceUnavailable."""
        if cgroups == self._now:
            return
        if len(cgroups) > MOST_WATCHED:
            raise ValueError(f"expected at most {MOST_WATCHED} cgroups, got {len(cgroups)}")
        for cgroup in self._now - cgroups:
            self._watched.delete(struct.pack("<Q", cgroup))
        for cgroup in cgroups - self._now:
            set_element(self._watched_fd, struct.pack("<Q", cgroup), struct.pack("<Q", 1))
        self._now = cgroups
        # Each CPU looks again who runs there when the number has changed; 0: nobody is watched.
        self._generation += 1
        generation = self._generation if cgroups else 0
        set_element(self._generation_fd, bytes(4), struct.pack("<Q", generation))

    def records(self, cgroup_name: Callable[[int], str]) -> Iterator[RhythmMarks]:
        marks = self._ring.read()
        beyond = self._beyond_grown()
        if not len(marks):
            return
        tgids = marks[:, _PROCESS] >> np.uint64(32)
        order = np.lexsort((marks[:, _AT], marks[:, _START], tgids))
        columns = marks[order].T.copy()
        starts, cgroups = columns[_START], columns[_CGROUP]
        tgids = tgids[order]
        changed = (tgids[1:] != tgids[:-1]) | (starts[1:] != starts[:-1])
        firsts = [0, *(np.flatnonzero(changed) + 1).tolist()]
        ends = [*firsts[1:], len(marks)]
        kinds = columns[_WHAT].astype(np.uint8)
        signed = columns.view(np.int64)
        at_ns, values = signed[_AT], signed[_VALUE]
        sockets, round_trips = signed[_EXTRA] & 0xFFFFFFFF, signed[_EXTRA] >> 32
        threads = signed[_PROCESS] & 0xFFFFFFFF
        rows = zip(
            firsts,
            ends,
            tgids[firsts].tolist(),
            starts[firsts].tolist(),
            cgroups[np.array(ends) - 1].tolist(),
            strict=True,
        )
        for first, end, pid, start_ns, cgroup in rows:
            process, part = (pid, start_ns), slice(first, end)
            self._marked_at[process] = self._drains
            yield RhythmMarks(
                pid,
                start_ns,
                cgroup_name(cgroup),
                self._programs.name(pid, start_ns),
                at_ns[part],
                kinds[part],
                threads[part],
                values[part],
                sockets[part],
                round_trips[part],
                beyond.get(process, _NONE),
            )

    def _beyond_grown(self) -> dict[_Process, tuple[int, ...]]:
        """Give what was only counted since the last call; processes silent for long make room."""
        self._drains += 1
        before, self._beyond = self._beyond, {}
        known, self._marked_at = self._marked_at, {}
        grown: dict[_Process, tuple[int, ...]] = {}
        silent: list[int] = []
        for keys, values in self._processes.batches():
            starts, counts = values[:, 0, 0].tolist(), values[:, 0, -_KINDS:]
            for place, pid in enumerate(keys.view(np.uint32)[:, 0].tolist()):
                process = (pid, starts[place])
                marked_at = self._marked_at[process] = known.get(process, self._drains)
                if self._drains - marked_at >= _IDLE_DRAINS:
                    silent.append(pid)
            for place in np.flatnonzero(counts.any(axis=1)).tolist():
                process = (int.from_bytes(keys[place], "little"), starts[place])
                now = self._beyond[process] = tuple(counts[place].tolist())
                pairs = zip(now, before.get(process, _NONE), strict=True)
                grown[process] = tuple(count - then for count, then in pairs)
        for pid in silent:
            self._processes.delete(struct.pack("<I", pid))
        return grown


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    rhythms             processes, thread_rows threads, of watched cgroups
    timed_hits_log2     one hit in 2 ** this is timed
    absolute_timer      False: set each tick from the last deadline, as where the kernel must
    timer               False: tick by a perf event on each CPU, as where the kernel must
    """

    cgroups: int = 1024
    block_cgroups: int = 512
    devices: int = 128
    peers: int = 1024
    rhythms: int = 256
    thread_rows: int = 4096
    tick_ns: int = 10_000_000
    timed_hits_log2: int = 8
    absolute_timer: bool = True
    timer: bool = True


_OTHER: Final = bytes(16)
"""The row of what found no room, and the first key of the plain arrays."""


@dataclass(slots=True)
class HostPrograms:
    """Running programs of either loader; roots: the hierarchies whose ids are keys, or None."""

    loader: str
    cpu_states: PerCpuMap
    ticks: Ticks
    tables: dict[str, PerCpuMap]
    close: Callable[[], None]
    cgroup_root: str | None = None
    block_root: str | None = None
    absent: list[UnavailableSource] = field(default_factory=list)
    rhythm: RhythmMaps | None = None
    program_fds: dict[str, int] = field(default_factory=dict)

    def make_other_rows(self) -> None:
        for table in self.tables.values():
            table.set_zero(_OTHER[: table.key_bytes])

    def states(self) -> NDArray[np.uint64]:
        """Read uint64[cpus, CPU_STATE_FIELDS]."""
        return self.cpu_states.value(_OTHER[:4])

    def kept_back(self, states: NDArray[np.uint64]) -> list[tuple[int, dict[str, int]]]:
        """Give, for each CPU, the cgroup that runs there and what its row lacks.

        states  as `states()` gave them, before the rows are read: what is flushed meanwhile is then
                counted twice for one drain, and once in the end
        """
        columns = layout.PENDING_COLUMNS
        cpu_ns = columns.index("cpu_ns")
        pending = states[:, -len(columns) :].copy()
        running_ns, cgroups = states[:, -len(columns) - 2], states[:, -len(columns) - 1].tolist()
        pending[:, cpu_ns] += running_ns
        return [
            (cgroup, dict(zip(columns, row, strict=True)))
            for cgroup, row in zip(cgroups, pending.tolist(), strict=True)
            if cgroup
        ]
