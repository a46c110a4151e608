"""Which other cgroup grew: what each busy cgroup usually uses, and who uses more now."""

from __future__ import annotations

from typing import Final

import numpy as np

from .channels import FLOORS, INDEX, OTHER_SIGNALS, ChannelPlace, Readings, related

_FLOORS: Final = FLOORS[[INDEX[f"{ChannelPlace.OTHER}.{name}"] for name in OTHER_SIGNALS]]
_LEAST_SHARE: Final = 0.3
"""Of all that others grew by: below it nobody in particular interferes."""
_FADE: Final = 1 / 30
_NS: Final = 1_000_000_000


class CgroupNeighbours:
    """Usual use of each busy cgroup, forgotten when it was idle for long; bounded."""

    def __init__(self, most: int, forget_s: float) -> None:
        self._most = most
        self._forget_ns = int(forget_s * 10 * _NS)
        self._places: dict[str, int] = {}
        self._usual = np.zeros((most, len(OTHER_SIGNALS)))
        self._free = list(range(most))
        self._seen_ns: dict[str, int] = {}
        self._oldest_ns = 0
        self._names: tuple[str, ...] = ()
        self._rows: list[int] = []
        self._kept: list[int] = []

    def learn(self, readings: Readings) -> None:
        """Take a usual second of all cgroups."""
        now_ns = readings.frame.boottime_ns
        if readings.names != self._names:
            self._follow(readings)
        usual = self._usual[self._kept]
        self._usual[self._kept] = usual + _FADE * (readings.table[self._rows] - usual)
        self._seen_ns.update(dict.fromkeys(readings.names, now_ns))
        self._drop(now_ns)

    def _follow(self, readings: Readings) -> None:
        """Find the place of each cgroup; a new one begins with what it uses now."""
        for row, name in enumerate(readings.names):
            if name not in self._places and self._free:
                place = self._places[name] = self._free.pop()
                self._usual[place] = readings.table[row]
        known = [(row, name) for row, name in enumerate(readings.names) if name in self._places]
        self._rows = [row for row, _ in known]
        self._kept = [self._places[name] for _, name in known]
        self._names = readings.names

    def _drop(self, now_ns: int) -> None:
        crowded = len(self._seen_ns) > 4 * self._most
        if now_ns - self._oldest_ns <= self._forget_ns and not crowded:
            return
        gone = [name for name, at in self._seen_ns.items() if now_ns - at > self._forget_ns]
        if len(self._seen_ns) - len(gone) > 4 * self._most:
            gone = [name for name in self._seen_ns if name not in self._places]
        for name in gone:
            self._seen_ns.pop(name, None)
            place = self._places.pop(name, None)
            if place is not None:
                self._free.append(place)
        self._oldest_ns = min(self._seen_ns.values(), default=now_ns)
        self._names = ()

    def grown(self, readings: Readings, cgroup: str, signal: str) -> str:
        """Name the cgroup apart from `cgroup` whose `signal` grew most; "" where none stands out.

        signal   any signal; one that cgroups do not have names nobody
        """
        if signal not in OTHER_SIGNALS:
            return ""
        column = OTHER_SIGNALS.index(signal)
        growth = {
            name: float(now) - self._before(name, column)
            for name, now in zip(readings.names, readings.table[:, column], strict=True)
            if not related(name, cgroup)
        }
        if not growth:
            return ""
        most = max(growth, key=lambda name: growth[name])
        risen = sum(grown for grown in growth.values() if grown > 0)
        enough = growth[most] >= _FLOORS[column] and growth[most] >= _LEAST_SHARE * risen
        return most if enough else ""

    def _before(self, name: str, column: int) -> float:
        place = self._places.get(name)
        return float(self._usual[place, column]) if place is not None else 0.0
