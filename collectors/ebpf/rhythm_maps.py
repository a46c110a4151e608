"""Which cgroups are watched, and the marks of their processes' rhythms."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from collectors.binaries.proc_maps import ProgramNames
from collectors.bpf.bpf_maps import MARK_FIELDS, MarkRing, PerCpuMap, set_element
from collectors.records.activity import RhythmMarks

from . import ebpf_layout as layout

MOST_WATCHED: Final = 64
"""Room in the map `watched`."""

_IDLE_DRAINS: Final = 60
_AT, _VALUE, _PROCESS, _START, _CGROUP, _WHAT, _EXTRA = range(len(MARK_FIELDS))
_KINDS = layout.RHYTHM_KINDS
_NONE = (0,) * _KINDS

_Process = tuple[int, int]
"""(pid, start)"""


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

    @property
    def watched(self) -> frozenset[int]:
        """Ids of the cgroups that are watched."""
        return self._now

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
        """Yield, by process, the marks since the last call."""
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
