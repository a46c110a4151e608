"""GPU time that is estimated from windows, with its 95 % interval; local: it never leaves the host.

What adds windows or processes up is `summed`; kernels of one process were recorded in the same
windows, so that their sums have variances of their own, which the source states.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final, NamedTuple

from .quantiles import student


class EstimatedTime(NamedTuple):
    """GPU time of some work in a span.

    value_ns   estimate of all of it: so that sums have no bias, that of one window may be below 0
    variance   of it, ns^2; 0 where all was recorded, None where it is not known
    windows    that the variance was learnt from, 0 where nothing had to be learnt
    span_ns    what it is the time of
    """

    value_ns: float
    variance: float | None
    windows: int
    span_ns: int

    @property
    def error_ns(self) -> float | None:
        """Half of the 95 % interval; None where there is no interval."""
        if self.variance is None:
            return None
        return sqrt(self.variance) * student(self.windows)


NO_TIME: Final = EstimatedTime(0.0, None, 0, 0)
"""Of a span in which no window ended."""


def summed(parts: Iterable[EstimatedTime]) -> EstimatedTime:
    """Add up estimates of different windows or processes, whose errors know nothing of each other.

    A variance that is not known is taken to be as large, for its length, as that of the other
    windows, if these are at least half of the time; else the sum has none.
    """
    found = list(parts)
    span_ns = sum(part.span_ns for part in found)
    known = [part for part in found if part.variance is not None]
    learnt = [part for part in known if part.windows]
    learnt_ns = sum(part.span_ns for part in learnt)
    unknown_ns = span_ns - sum(part.span_ns for part in known)
    variance: float | None = sum(part.variance or 0.0 for part in known)
    if unknown_ns and variance is not None:
        fits = learnt_ns >= unknown_ns
        variance = variance * (learnt_ns + unknown_ns) / learnt_ns if fits else None
    windows = max((part.windows for part in learnt), default=0)
    return EstimatedTime(sum(part.value_ns for part in found), variance, windows, span_ns)
