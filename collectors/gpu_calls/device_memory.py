"""Reads the programs' account of device memory: live and peak bytes, the oldest live allocation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import PerCpuMap
from collectors.records.gpu_calls import MemoryState

from . import map_layout as layout
from .counts import MemoryRow
from .map_layout import ProbeLimits

_Process = tuple[int, int]


class DeviceMemory:
    """The maps of processes and of their live allocations."""

    def __init__(self, fd: Callable[[str], int], limits: ProbeLimits) -> None:
        width = layout.PROCESS.itemsize
        self._memory = PerCpuMap(fd("memory"), width, len(layout.MEMORY_ROW), 1, limits.memory)
        self._allocations = PerCpuMap(
            fd("allocations"),
            layout.ALLOCATION_KEY.itemsize,
            len(layout.ALLOCATION_ROW),
            1,
            limits.allocations,
        )
        self._before: dict[_Process, list[int]] = {}
        self._oldest: dict[tuple[int, int, int], int] = {}

    def read(self) -> tuple[MemoryRow, ...]:
        """Give the state of every process that allocated. Raises SourceUnavailable.

        The table of live allocations is walked only when something was allocated or freed.
        """
        now = self._processes()
        if now != self._before:
            self._oldest = self._find_oldest()
        rows = []
        for (start_ns, tgid), counts in now.items():
            live, peak, allocations, frees, untracked, exec_id = counts
            before = self._before.get((start_ns, tgid), [0] * len(counts))
            oldest_ns = self._oldest.get((start_ns, tgid, exec_id), 0)
            process = layout.process_key(tgid, start_ns)
            state = MemoryState(live, peak, allocations, frees, 0, untracked - before[4])
            rows.append(MemoryRow(process, oldest_ns, state))
        self._before = now
        return tuple(rows)

    def processes(self) -> set[_Process]:
        """Give (tgid, start_ns) of every process that allocated."""
        return {(tgid, start_ns) for start_ns, tgid in self._before}

    def forget(self, processes: set[_Process]) -> None:
        """Remove processes that have ended, and what they had not freed."""
        ended = {(start_ns, tgid) for tgid, start_ns in processes} & self._before.keys()
        if not ended:
            return
        for start_ns, tgid in ended:
            key = np.array([(start_ns, tgid, 0)], layout.PROCESS)
            self._memory.delete(key.tobytes())
            del self._before[start_ns, tgid]
        for keys, _ in self._live():
            of_ended = [(k["start_ns"], k["tgid"]) in ended for k in keys]
            for key in keys[np.array(of_ended, bool)]:
                self._allocations.delete(key.tobytes())

    def _processes(self) -> dict[_Process, list[int]]:
        found: dict[_Process, list[int]] = {}
        for keys, values in self._memory.batches():
            named = keys.copy().view(layout.PROCESS).ravel()
            for (start_ns, tgid, _), row in zip(
                named.tolist(), values[:, 0].astype(np.int64).tolist(), strict=True
            ):
                found[start_ns, tgid] = row
        return found

    def _live(self) -> list[tuple[NDArray[np.void], NDArray[np.int64]]]:
        return [
            (
                keys.copy().view(layout.ALLOCATION_KEY).ravel(),
                values[:, 0].astype(np.int64),
            )
            for keys, values in self._allocations.batches()
        ]

    def _find_oldest(self) -> dict[tuple[int, int, int], int]:
        oldest: dict[tuple[int, int, int], int] = {}
        for keys, values in self._live():
            for (start_ns, tgid, _, _), (_, made_ns, exec_id) in zip(
                keys.tolist(), values.tolist(), strict=True
            ):
                key = (start_ns, tgid, exec_id)
                oldest[key] = min(made_ns, oldest.get(key, made_ns))
        return oldest
