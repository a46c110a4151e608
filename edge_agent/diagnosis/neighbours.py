"""Which other cgroup grew: what each busy cgroup usually uses, and who uses more now."""

from __future__ import annotations

from typing import Final

from .channels import FLOORS, INDEX, OTHER_SIGNALS, Floats, Place, Readings, related

_FLOORS: Final = FLOORS[[INDEX[f"{Place.OTHER}.{name}"] for name in OTHER_SIGNALS]]
_LEAST_SHARE: Final = 0.3
"""Of all that others grew by: below it nobody in particular interferes."""
_FADE: Final = 1 / 30
_NS: Final = 1_000_000_000


class Neighbours:
    """Usual use of each busy cgroup, forgotten when it was idle for long; bounded."""

    def __init__(self, most: int, forget_s: float) -> None:
        self._most = most
        self._forget_ns = int(forget_s * 10 * _NS)
        self._usual: dict[str, Floats] = {}
        self._seen_ns: dict[str, int] = {}

    def learn(self, readings: Readings) -> None:
        """Take a usual second of all cgroups."""
        now_ns = readings.frame.boottime_ns
        for name, row in zip(readings.names, readings.table, strict=True):
            usual = self._usual.get(name)
            if usual is not None:
                usual += _FADE * (row - usual)
            elif len(self._usual) < self._most:
                self._usual[name] = row.copy()
            self._seen_ns[name] = now_ns
        self._drop(now_ns)

    def _drop(self, now_ns: int) -> None:
        gone = [name for name, at in self._seen_ns.items() if now_ns - at > self._forget_ns]
        if len(self._seen_ns) - len(gone) > 4 * self._most:
            gone = [name for name in self._seen_ns if name not in self._usual]
        for name in gone:
            self._usual.pop(name, None)
            self._seen_ns.pop(name, None)

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
        usual = self._usual.get(name)
        return float(usual[column]) if usual is not None else 0.0
