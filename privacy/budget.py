"""The rolling-week rule of a host's one ledger: a pure function of its entries.

An entry for the window [s, e) costs w/T of the host's budget 1, exactly. It counts against every
period [t, t + 168 h) that meets it, that is for every real t in the open interval (s - 168 h, e).
Between two ends of such intervals the sum does not change, and at an end it is no larger than
beside it, so the greatest sum over real t is found by a sweep over the ends, closing before
opening.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import ParameterError

WEEK_S: Final = 7 * 24 * 3600
MILLION: Final = 10**6


@dataclass(frozen=True, slots=True)
class Entry:
    """One spent (or wanted) window of a series: its own time [start, end), in seconds.

    weight_millionths  weight of the series in this window
    T                  most windows of the series that any 168 hours touch
    """

    series: str
    start: int
    end: int
    weight_millionths: int
    T: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ParameterError("window", "start < end", (self.start, self.end))
        if not 0 <= self.weight_millionths <= MILLION:
            raise ParameterError("weight", "0 .. 1", self.weight_millionths / MILLION)
        if self.T < 1:
            raise ParameterError("windows T", ">= 1", self.T)

    @property
    def cost(self) -> Fraction:
        return Fraction(self.weight_millionths, MILLION * self.T)


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A series takes another weight from the window that starts at `start` on."""

    series: str
    window_s: int
    start: int
    weight_millionths: int


def may_spend(entries: Sequence[Entry], candidate: Entry) -> bool:
    """Say whether no 168 h that meets the candidate's window would then cost more than 1.

    entries     the host's whole ledger, of all series, in any order; those after the candidate
                count too
    """
    low, high = candidate.start - WEEK_S, candidate.end
    met = [entry for entry in entries if entry.start - WEEK_S < high and low < entry.end]
    return _greatest([*met, candidate], low, high) <= 1


def peak(entries: Sequence[Entry]) -> Fraction:
    """Return the most that any 168 h costs; 0 for an empty ledger."""
    if not entries:
        return Fraction(0)
    low = min(entry.start for entry in entries) - WEEK_S
    return _greatest(entries, low, max(entry.end for entry in entries))


def spent_at(entries: Iterable[Entry], start: int) -> Fraction:
    """Return what the week [start, start + 168 h) costs."""
    end = start + WEEK_S
    met = (entry.cost for entry in entries if entry.start < end and start < entry.end)
    return sum(met, Fraction(0))


def keep_from(now_s: int, longest_window_s: int) -> int:
    """Return the time before which ended entries may be forgotten: 3 weeks and a window ago."""
    return now_s - 3 * WEEK_S - longest_window_s


def change_start(window_s: int, not_before_s: int) -> int:
    """Return the first start of a series' windows on or after the next week start.

    Weeks start at multiples of 604,800 s, Thursday 00:00 UTC.
    """
    week_start = -(-not_before_s // WEEK_S) * WEEK_S
    return -(-week_start // window_s) * window_s


def check_weight_changes(
    weights: Mapping[str, int], changes: Sequence[WeightChange], longest_window_s: int
) -> None:
    """Check that series change weights where they may, and increase only into room long free.

    weights           millionths in force per series; a new series has none
    longest_window_s  the host's longest cadence, old or new
    Raises            ParameterError when a change is not at its series' first window start of a
                      week, or an increase comes less than 168 h + longest_window_s after the
                      decrease that makes room for it
    """
    for change in changes:
        if change.start != change_start(change.window_s, change.start // WEEK_S * WEEK_S):
            expected = "the series' first window start of a week"
            raise ParameterError("weight change", expected, change.start)
    guard_s = WEEK_S + longest_window_s
    for start in sorted({change.start for change in changes}):
        total = _held_weight(weights, changes, start, guard_s)
        increased = any(
            change.start == start
            and change.weight_millionths > _weight_before(weights, changes, change.series, start)
            for change in changes
        )
        if increased and total > MILLION:
            raise ParameterError(
                "weight increase",
                f"at least {guard_s} s after the decrease that makes room (sum at most 1)",
                total / MILLION,
            )


def _weight_before(
    weights: Mapping[str, int], changes: Sequence[WeightChange], series: str, before: int
) -> int:
    earlier = [c for c in changes if c.series == series and c.start < before]
    if not earlier:
        return weights.get(series, 0)
    return max(earlier, key=lambda change: change.start).weight_millionths


def _held_weight(
    weights: Mapping[str, int], changes: Sequence[WeightChange], at: int, guard_s: int
) -> int:
    """Sum, over series, the largest weight each had in force in (at - guard, at]."""
    held = 0
    for series in {*weights, *(change.series for change in changes)}:
        recent = [
            change.weight_millionths
            for change in changes
            if change.series == series and at - guard_s < change.start <= at
        ]
        held += max([*recent, _weight_before(weights, changes, series, at - guard_s + 1)])
    return held


def _greatest(entries: Sequence[Entry], low: int, high: int) -> Fraction:
    """Return the greatest sum of costs at a real t in the open interval (low, high)."""
    unit = lcm(*{entry.T for entry in entries}) * MILLION
    per_weight = {entry.T: unit // (MILLION * entry.T) for entry in entries}
    count, exact = len(entries), np.int64 if unit * len(entries) < 1 << 62 else np.object_
    opens = np.fromiter((entry.start for entry in entries), np.int64, count) - WEEK_S
    closes = np.fromiter((entry.end for entry in entries), np.int64, count)
    costs: NDArray[Any] = np.fromiter(
        (entry.weight_millionths * per_weight[entry.T] for entry in entries), exact, count
    )
    times = np.concatenate((np.minimum(closes, high), np.maximum(opens, low)))
    changes = np.concatenate((-costs, costs))
    # Stable, closings first: at one time they come before openings, as open intervals ask.
    order = np.argsort(times, kind="stable")
    return Fraction(int(np.cumsum(changes[order]).max()), unit)
