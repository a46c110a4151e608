"""Turns per-CPU maps that only grow into what grew since the last drain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import PerCpuMap

_CROWDED: Final = 0.9
_IDLE_DRAINS: Final = 10


class GrowingMap:
    """One bounded map, its keys seen as a structure, its values summed over CPUs.

    columns     names of the values
    largest     columns that hold the largest value seen: the largest of all CPUs, not a growth
    """

    def __init__(
        self,
        source: PerCpuMap,
        key: np.dtype[np.void],
        columns: Sequence[str],
        largest: Collection[str] = (),
    ) -> None:
        self._source, self._key = source, key
        self._largest = [columns.index(column) for column in largest]
        self._width = len(columns)
        self._keys = np.empty((0, source.key_bytes), np.uint8)
        self._totals = np.empty((0, self._width), np.int64)
        self._idle = np.empty(0, np.int64)
        self._named: tuple[NDArray[np.uint8] | None, set[tuple[int, int]]] = (None, set())

    def grown(self) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Give the keys that grew and their growth: int64[n, columns]. Raises SourceUnavailable."""
        keys, totals = self._read()
        if np.array_equal(keys, self._keys):
            keys = self._keys
        base, idle = self._before(keys)
        growth = np.maximum(totals - base, 0)
        growth[:, self._largest] = 0
        changed = growth.any(axis=1)
        self._keys, self._totals = keys, totals
        self._idle = np.where(changed, 0, idle + 1)
        growth[:, self._largest] = totals[:, self._largest]
        return keys[changed].view(self._key).ravel(), growth[changed]

    def forget(self, processes: Collection[tuple[int, int]]) -> None:
        """Remove the rows of processes (tgid, start_ns) that have ended, after their last growth.

        In a crowded map, rows that have been silent for long go too: a hit in that very moment is
        lost.
        """
        crowded = len(self._keys) > _CROWDED * self._source.capacity
        if not processes and not crowded:
            return
        named = self._keys.view(self._key).ravel()
        gone = np.zeros(len(named), bool)
        for tgid, start_ns in processes:
            gone |= (named["tgid"] == tgid) & (named["start_ns"] == start_ns)
        if crowded:
            gone |= (self._idle >= _IDLE_DRAINS) & (named["tgid"] != 0)
        if not gone.any():
            return
        for key in self._keys[gone]:
            self._source.delete(key.tobytes())
        kept = ~gone
        self._keys, self._totals = self._keys[kept], self._totals[kept]
        self._idle = self._idle[kept]

    def processes(self) -> set[tuple[int, int]]:
        """Give (tgid, start_ns) of every process that has a row."""
        if self._named[0] is not self._keys:
            named = self._keys.view(self._key).ravel()[["tgid", "start_ns"]].tolist()
            self._named = self._keys, {(tgid, start_ns) for tgid, start_ns in named if tgid}
        return self._named[1]

    def _read(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        keys = [np.empty((0, self._source.key_bytes), np.uint8)]
        totals = [np.empty((0, self._width), np.int64)]
        for some, values in self._source.batches():
            summed = values.sum(axis=1).astype(np.int64)
            summed[:, self._largest] = values[:, :, self._largest].max(axis=1, initial=0)
            keys.append(some.copy())
            totals.append(summed)
        return np.concatenate(keys), np.concatenate(totals)

    def _before(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give totals and idle drains of these keys as they were: mostly the same keys."""
        if keys is self._keys:
            return self._totals, self._idle
        places = {key.tobytes(): place for place, key in enumerate(self._keys)}
        before = np.array([places.get(key.tobytes(), -1) for key in keys], np.int64)
        known = before >= 0
        totals = np.zeros((len(keys), self._width), np.int64)
        idle = np.zeros(len(keys), np.int64)
        totals[known], idle[known] = self._totals[before[known]], self._idle[before[known]]
        return totals, idle
