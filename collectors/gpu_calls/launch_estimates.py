"""How many calls there were, of those that were seen and of the process's time in the rest.

A burst that nobody watched shows in the CPU clock: calls over CPU time of watched windows, less
what probes took, estimate the rest (a ratio estimator: Cochran, Sampling Techniques, 3rd ed.
1977, chapter 6). Wall time serves instead for a process that calls at a rate. The random error is
taken from how windows differ around their common ratio, by Student's t for few of them. What no
window speaks for is bounded by the least time that a call takes, or said not to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from math import inf, sqrt
from typing import Final, NamedTuple

from collectors.records.basics import NORMAL, student

LEAST_CALL_NS: Final = 1.0
"""CPU time that no call is below: an empty function in calibration's loop takes 1.3 ns at 3 GHz."""


class HitPrice(IntEnum):
    """What a hit may cost, over what is calibrated or assumed."""

    LEAST = 0
    LIKELY = 1
    MOST = 2


_CALIBRATED: Final = (0.85, 1.2, 1.6)
"""Of calibration's tight loop: with cold caches a hit takes up to 1.5 times as long
(docs/gpu-probes.md); calibration itself is off by some percent."""

_ASSUMED: Final = (0.15, 0.4, 1.0)
"""Before calibration: `costs.ASSUMED` is more than most machines take."""

_LEAST_OWN: Final = 0.25
_INFORMATIVE: Final = 0.1
_LEAST_NET: Final = 0.25
"""Of a time that probes took nearly all of, so much is left in the likely value."""
_UNUSUAL_DEVIATIONS: Final = 3.0
_UNUSUAL_SHARE, _UNUSUAL_OF_MEAN = 0.02, 0.25
_UNUSUAL_OF_ONE: Final = 0.5
_STEADY_WIDTH: Final = 0.5
_WAITING: Final = 0.9
"""CPU time over wall time below which even a single thread waits for something, be it the clock."""
_MOST_PAID: Final = 0.5
"""Part of its CPU time: of a process that waits for a busy machine wall time does not tell that."""
_NEARLY_ALL: Final = 0.75
"""Part of its CPU time that probes may have taken, so that the rest is not told from nothing: on a
busy machine a hit takes more than calibration says."""
_ALIKE: Final = 0.7
"""An estimate by CPU time and one by wall time that differ more do not mean the same."""


class SeenWindow(NamedTuple):
    """A process in time of which every call was seen."""

    calls: int
    used_ns: float
    paid_ns: float
    span_ns: int
    calibrated: bool = True

    @property
    def share(self) -> float:
        return self.used_ns / self.span_ns if self.span_ns else 0.0


class Unwatched(NamedTuple):
    """The same process in the rest of the time.

    calls       seen all the same, while probes were being attached and detached
    unread_ns   part of span_ns of which the CPU time is not known
    paid_ns     what probes took of used_ns, calibrated or assumed
    """

    calls: int
    used_ns: float | None
    span_ns: int
    unread_ns: int = 0
    paid_ns: float = 0.0
    calibrated: bool = True


class UnseenCalls(NamedTuple):
    """Calls of a process that were not seen.

    variance   of its random error, so that 1.96 deviations are a 95 % interval; infinite where
               nothing is known
    below      how much less, above how much more there can be as hits cost less or more
    beyond     how many more there can be that no window speaks for; infinite: not known
    """

    value: float = 0.0
    variance: float = 0.0
    below: float = 0.0
    above: float = 0.0
    beyond: float = 0.0

    @property
    def error(self) -> float:
        """Half of the interval, beside what no window speaks for."""
        return NORMAL * sqrt(self.variance) + max(self.below, self.above)


class _Sample(NamedTuple):
    """A window by CPU time or by wall time: net of probes, by HitPrice."""

    calls: int
    net_ns: tuple[float, float, float]


def unseen(
    own: SeenWindow | None, rest: Unwatched, earlier: Sequence[SeenWindow], random: bool = True
) -> UnseenCalls:
    """Estimate the calls of the unwatched time; not `random`: a burst cut the own window off."""
    windows = [*earlier, *([own] if own is not None else [])]
    last = own if random else None
    wall_ns = (float(rest.span_ns),) * 3
    if rest.used_ns is None:
        return _ratio_estimate(_by_time, windows, last, rest, wall_ns)._replace(beyond=inf)
    read_ns = rest.span_ns - rest.unread_ns
    guessed_ns = 0.5 * min(_mean_share(windows), 1.0) * rest.unread_ns
    most_ns, used_ns, least_ns = (
        max(rest.used_ns - _price(rest, price), 0.0) for price in HitPrice
    )
    time_ns = used_ns + guessed_ns
    usual = _usual(windows)
    excess_ns = max(most_ns - usual.high * read_ns, 0.0)
    beyond = inf if rest.unread_ns else excess_ns / LEAST_CALL_NS
    best = _ratio_estimate(
        _by_cpu, windows, last, rest, (least_ns + guessed_ns, time_ns, most_ns + guessed_ns)
    )
    if best.variance < inf:
        timed = _ratio_estimate(_by_time, windows, last, rest, wall_ns)
        is_usual = usual.low * read_ns <= used_ns <= usual.high * read_ns
        if usual.steady and is_usual and not rest.unread_ns and not _may_take(_MOST_PAID, windows):
            least, most = sorted((best.value, timed.value))
            if _mean_share(windows) < _WAITING and least >= _ALIKE * most:
                # CPU time of a call changes with what else the machine does; a rate does not.
                below = max(timed.below, timed.value - least)
                best = timed._replace(below=below, above=max(timed.above, most - timed.value))
            else:
                best = min(best, timed, key=lambda estimate: estimate.error)
        elif time_ns > 0.0:
            strange = best.value * (excess_ns + guessed_ns) / time_ns
            best = best._replace(below=min(best.below + strange, best.value))
            if best.above > best.value:  # probes took most of the CPU time
                busy = _busy(windows)
                timed = _ratio_estimate(_by_time, busy, last, rest, wall_ns)
                level = min(time_ns / max(_mean_share(busy) * rest.span_ns, 1.0), 1.0)
                best = _within(best, timed.value * level)
    never_called = rest.calls and not any(window.calls for window in windows)
    if best.variance == inf or never_called:
        most = most_ns / LEAST_CALL_NS
        return UnseenCalls(0.0, inf, beyond=inf) if rest.unread_ns else UnseenCalls(beyond=most)
    if _may_take(_NEARLY_ALL, [window for window in windows if window.calls]):
        most = (most_ns - excess_ns + guessed_ns) / LEAST_CALL_NS
        best = best._replace(above=max(best.above, most - best.value))
    return best._replace(beyond=beyond)


def _may_take(part: float, windows: Sequence[SeenWindow]) -> bool:
    """Tell whether probes may have taken so much that the process calls far more often without."""
    most = sum(_price(window, HitPrice.MOST) for window in windows)
    return most > part * sum(window.used_ns for window in windows)


def _price(of: SeenWindow | Unwatched, price: HitPrice) -> float:
    return (_CALIBRATED if of.calibrated else _ASSUMED)[price] * of.paid_ns


def _within(bounds: UnseenCalls, value: float) -> UnseenCalls:
    """Take another expected number, as far as it lies within the bounds."""
    least, most = bounds.value - bounds.below, bounds.value + bounds.above
    value = min(max(value, least), most)
    return bounds._replace(value=value, below=value - least, above=most - value)


def mix_variance(parts: Sequence[int], wholes: Sequence[int], share: float) -> float:
    """Give the variance of a kernel's share, from its parts of (positive) wholes by window."""
    windows = len(wholes)
    if windows < 2:
        return inf
    squares = sum((part - share * of) ** 2 for part, of in zip(parts, wholes, strict=True))
    mean = sum(wholes) / windows
    spread = squares / (windows - 1) / mean**2 + share * (1.0 - share) / sum(wholes)
    return spread * (1.0 + 1.0 / windows) * _widened(windows)


def _by_cpu(window: SeenWindow) -> _Sample:
    return _sample(window, window.used_ns, (1.0, 1.0, 1.0))


def _by_time(window: SeenWindow) -> _Sample:
    """Probes slow a process that is never idle by what they take; one that calls at a rate, not."""
    return _sample(window, float(window.span_ns), (0.0, min(window.share, 1.0), 1.0))


def _sample(window: SeenWindow, time_ns: float, felt: tuple[float, float, float]) -> _Sample:
    least_ns = LEAST_CALL_NS * window.calls
    known_ns = max(_LEAST_NET * time_ns, least_ns)
    least, likely, most = (time_ns - felt[price] * _price(window, price) for price in HitPrice)
    return _Sample(window.calls, (max(least, known_ns), max(likely, known_ns), max(most, least_ns)))


def _ratio_estimate(
    by: Callable[[SeenWindow], _Sample],
    windows: Sequence[SeenWindow],
    own: SeenWindow | None,
    rest: Unwatched,
    times_ns: Sequence[float],
) -> UnseenCalls:
    """Estimate calls of a time (least, likely, most); no window tells: infinite variance."""
    samples = [by(window) for window in windows]
    largest = max((sample.net_ns[1] for sample in samples), default=0.0)
    telling = [s for s in samples if s.net_ns[1] > 0.0 and s.net_ns[1] >= _INFORMATIVE * largest]
    if not telling:
        return UnseenCalls(variance=inf)
    mean_ns = sum(sample.net_ns[1] for sample in telling) / len(telling)
    last = by(own) if own is not None else None
    alone = last is not None and last.net_ns[1] >= _LEAST_OWN * mean_ns
    chosen = [last] if alone and last is not None else telling
    low, value, high = (
        max(time_ns * ratio, float(rest.calls)) - rest.calls
        for time_ns, ratio in zip(times_ns, _ratios(chosen), strict=True)
    )
    if len(telling) < 2:
        return UnseenCalls(value, 0.0, value, max(times_ns[2] / LEAST_CALL_NS - value, 0.0))
    variance = _variance(chosen, telling, times_ns[1])
    return UnseenCalls(value, variance, value - low, high - value)


def _ratios(samples: Sequence[_Sample]) -> Iterator[float]:
    calls = sum(sample.calls for sample in samples)
    for price in HitPrice:
        net_ns = sum(sample.net_ns[price] for sample in samples)
        yield calls / net_ns if net_ns > 0.0 else 0.0


def _variance(chosen: Sequence[_Sample], telling: Sequence[_Sample], time_ns: float) -> float:
    _, common, _ = _ratios(telling)
    squares = sum((s.calls - common * s.net_ns[1]) ** 2 for s in telling)
    # One call more or less lies at the edges of each window.
    spread = squares / (len(telling) - 1) + 1.0
    mean_ns = sum(sample.net_ns[1] for sample in telling) / len(telling)
    if len(chosen) == 1:
        own_ns = chosen[0].net_ns[1]
        each = spread / (mean_ns * own_ns) * (time_ns + own_ns)
    else:
        # The windows of other periods: this one may differ as much as one of them.
        each = spread / mean_ns**2 * (1.0 + 1.0 / len(telling)) * (time_ns + mean_ns)
    return time_ns * each * _widened(len(telling))


def _widened(windows: int) -> float:
    """Square of Student's quantile over the normal one: the spread is known from few windows."""
    return (student(windows) / NORMAL) ** 2


def _busy(windows: Sequence[SeenWindow]) -> list[SeenWindow]:
    largest = max((window.share for window in windows), default=0.0)
    return [w for w in windows if w.share > 0.0 and w.share >= _INFORMATIVE * largest]


def _mean_share(windows: Sequence[SeenWindow]) -> float:
    span_ns = sum(window.span_ns for window in windows)
    return sum(window.used_ns for window in windows) / span_ns if span_ns else 0.0


class _Usual(NamedTuple):
    """CPU time over wall time, without probes and with; `steady`: calls seem to come at a rate."""

    low: float
    high: float
    steady: bool


def _usual(windows: Sequence[SeenWindow]) -> _Usual:
    mean = _mean_share(windows)
    span_ns = max(sum(window.span_ns for window in windows), 1)
    paid = sum(_price(window, HitPrice.MOST) for window in windows) / span_ns
    if len(windows) < 2:
        wide = _UNUSUAL_OF_ONE * mean
    else:
        # By their length: a CPU clock lags by up to a tick, which is much of a short window.
        squares = sum((window.used_ns - mean * window.span_ns) ** 2 for window in windows)
        wide = _UNUSUAL_DEVIATIONS * sqrt(squares / (len(windows) - 1)) * len(windows) / span_ns
    largest = max((window.share for window in windows), default=0.0)
    margin = min(_UNUSUAL_SHARE, _UNUSUAL_OF_MEAN * mean)
    high = min(mean + wide, largest) + margin
    return _Usual(mean - paid - wide - margin, high, wide <= _STEADY_WIDTH * mean + paid)
