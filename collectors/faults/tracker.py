"""From what is found to what is new: growth since the start, faults that stand, begin and end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from .fault_findings import UNLISTED, Count, FailedReading, Finding, State

MOST_SUBJECTS: Final = 16_384
"""Counters and states that are remembered; the one not seen for longest is forgotten first."""
REPEAT_NS: Final = 3_600_000_000_000
"""A fault that stands is told again each hour, so that each window in which it stood has it."""
DAY_NS: Final = 86_400_000_000_000
_WRAP: Final = 1 << 32

Key = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FaultChanges:
    """What one look brought.

    faults      to report, of a counter that grew too far as well; details stay with this host
    cleared     what stood and is gone
    growth      counter -> new errors since the look before, only those that grew
    """

    faults: tuple[State, ...]
    cleared: tuple[Key, ...]
    growth: dict[Key, int]


@dataclass(slots=True)
class _Counter:
    value: int
    level: float = 0.0
    """A bucket that leaks `per_day` a day: above that many the errors are a fault."""
    at_ns: int = 0


@dataclass(slots=True)
class _Standing:
    seen_good: bool = False
    told_ns: int | None = None


@dataclass(slots=True)
class Tracker:
    """Remembers the look before. A failed reading leaves what was known as it was."""

    _counters: OrderedDict[Key, _Counter] = field(default_factory=OrderedDict)
    _states: OrderedDict[Key, _Standing] = field(default_factory=OrderedDict)

    def follow(self, findings: Iterable[Finding], now_ns: int) -> FaultChanges:
        """Compare a look with the one before it; the first value of a counter is its baseline."""
        faults: list[State] = []
        cleared: list[Key] = []
        growth: dict[Key, int] = {}
        looked: set[Key] = set()
        whole = True
        for found in findings:
            looked.add((found.name, found.subject))
            match found:
                case Count():
                    grown = self._grown(found, now_ns)
                    if grown:
                        growth[found.name, found.subject] = grown
                        faults += self._over(found, grown, now_ns)
                case State():
                    faults += self._stands(found, now_ns)
                    cleared += self._ends(found)
                case FailedReading():
                    whole = whole and found.name != UNLISTED
        if whole:
            cleared += self._gone(looked)
        return FaultChanges(tuple(faults), tuple(cleared), growth)

    @property
    def standing(self) -> tuple[Key, ...]:
        """The faults that stand now: what, of which device."""
        return tuple(key for key, state in self._states.items() if state.told_ns is not None)

    def _grown(self, found: Count, now_ns: int) -> int:
        known = self._counters.get((found.name, found.subject))
        if known is None:
            _remember(self._counters, (found.name, found.subject), _Counter(found.value, 0, now_ns))
            return 0
        self._counters.move_to_end((found.name, found.subject))
        before, known.value = known.value, found.value
        if found.value >= before:
            return found.value - before
        if before >= _WRAP * 3 // 4 and before < _WRAP and found.value < _WRAP // 4:
            return found.value + _WRAP - before  # the kernel's 32 bits went round
        return found.value  # set back to zero: what it shows came since

    def _over(self, found: Count, grown: int, now_ns: int) -> list[State]:
        if found.cell is None:
            return []
        known = self._counters[found.name, found.subject]
        leaked = found.per_day * (now_ns - known.at_ns) / DAY_NS
        known.level, known.at_ns = max(0.0, known.level - leaked) + grown, now_ns
        if known.level <= found.per_day:
            return []
        return [State(found.name, found.subject, found.cell, True, f"{grown} new")]

    def _stands(self, found: State, now_ns: int) -> list[State]:
        key = (found.name, found.subject)
        known = self._states.get(key)
        if known is None:
            known = _Standing(seen_good=found.from_start)
            _remember(self._states, key, known)
        self._states.move_to_end(key)
        known.seen_good = known.seen_good or not found.bad
        if not found.bad or not known.seen_good:
            return []
        if known.told_ns is not None and now_ns - known.told_ns < REPEAT_NS:
            return []
        known.told_ns = now_ns
        return [found]

    def _ends(self, found: State) -> list[Key]:
        known = self._states[found.name, found.subject]
        if found.bad or known.told_ns is None:
            return []
        known.told_ns = None
        return [(found.name, found.subject)]

    def _gone(self, looked: set[Key]) -> list[Key]:
        """End what stood on a device that is no longer there; a failed reading ends nothing."""
        gone = [key for key in self.standing if key not in looked]
        for key in gone:
            del self._states[key]
        return gone


def _remember(kept: OrderedDict[Key, T], key: Key, value: T) -> None:
    kept[key] = value
    if len(kept) > MOST_SUBJECTS:
        kept.popitem(last=False)
