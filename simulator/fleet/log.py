"""What happened where and when: appended by tick, asked by window."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Hosts = NDArray[np.int64]


@dataclass(slots=True)
class HostLog:
    """Stretches of time on hosts, each with a small code; an event is a stretch of no length."""

    _ends: list[float] = field(default_factory=list)
    _chunks: list[tuple[Hosts, NDArray[np.int64], Floats, Floats]] = field(default_factory=list)

    def add(
        self, hosts: Hosts, codes: NDArray[np.int64], begins: Floats, ends: Floats, now_s: float
    ) -> None:
        """Append entries, same length each, that ended at or before now_s."""
        if len(hosts):
            # Never falling, so that a search finds every chunk that may reach into a window.
            self._ends.append(max(now_s, self._ends[-1]) if self._ends else now_s)
            self._chunks.append((hosts, codes, begins, ends))

    def add_events(self, hosts: Hosts, codes: NDArray[np.int64], at_s: Floats) -> None:
        """Append events, at_s in any order."""
        if len(hosts):
            self.add(hosts, codes, at_s, at_s, float(at_s.max()))

    def between(self, start_s: float, end_s: float) -> tuple[Hosts, NDArray[np.int64]]:
        """Return hosts and codes of the entries that touch [start_s, end_s)."""
        found = []
        for hosts, codes, begins, ends in self._chunks[bisect_left(self._ends, start_s) :]:
            touching = (begins < end_s) & ((ends > start_s) | (begins >= start_s))
            found.append((hosts[touching], codes[touching]))
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([h for h, _ in found]), np.concatenate([c for _, c in found])

    def forget_before(self, at_s: float) -> None:
        """Drop what ended before a time."""
        place = bisect_left(self._ends, at_s)
        del self._ends[:place], self._chunks[:place]


def gather_bits(
    hosts: int, words: int, where: Hosts, places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return uint64[hosts, words] with the bit of each (host, place) pair set."""
    flat = np.zeros(hosts * words, dtype=np.uint64)
    place = places.astype(np.uint64)
    np.bitwise_or.at(
        flat,
        where * words + (place >> np.uint64(6)).astype(np.int64),
        np.uint64(1) << (place & np.uint64(63)),
    )
    return flat.reshape(hosts, words)
