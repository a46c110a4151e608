"""How long packets of a watched cgroup take to their peer and back, by acknowledgements: pure.

A path that has become longer, or a link that has become slower, lengthens every round trip, the
shortest of a second too. A queue lengthens those of its busy moments. A slow peer lengthens none:
its kernel acknowledges.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import RhythmMarks

_FEWEST: Final = 3
"""Marks of a connection in a frame from which it counts."""

Columns = NDArray[np.int64]
"""int64[n, (socket, round trip in us, bytes)]"""


class RoundTrips:
    """Collects what the marks of one second saw of the connections that they were on."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Columns]] = {}

    def add(self, marks: RhythmMarks) -> None:
        """Take what one drain handed over of a process."""
        told = marks.round_trip_us > 0
        if told.any():
            columns = marks.socket, marks.round_trip_us, marks.value
            part = np.stack([column[told] for column in columns], axis=1)
            self._parts.setdefault(marks.cgroup, []).append(part)

    def take(self) -> dict[str, dict[str, float]]:
        """Give the signals of each cgroup since the last call."""
        parts, self._parts = self._parts, {}
        found = {cgroup: _signals(np.concatenate(some)) for cgroup, some in parts.items()}
        return {cgroup: signals for cgroup, signals in found.items() if signals}


def _signals(marks: Columns) -> dict[str, float]:
    marks = marks[np.lexsort((marks[:, 1], marks[:, 0]))]
    sockets, trips_us = marks[:, 0], marks[:, 1]
    firsts = np.flatnonzero(np.concatenate([[True], sockets[1:] != sockets[:-1]]))
    counts = np.diff(np.append(firsts, len(marks)))
    carried = np.add.reduceat(marks[:, 2], firsts)
    often = counts >= _FEWEST
    if not often.any():
        return {}
    firsts, counts = firsts[often], counts[often]
    busiest = int(carried[often].argmax())
    return {
        "round_trip_us": float(trips_us[firsts[busiest] + counts[busiest] // 2]),
        "round_trip_least_us": float(trips_us[firsts].max()),
    }
