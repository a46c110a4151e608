"""What each span of time that a page can show is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from analytics import RollupPeriod


@dataclass(frozen=True, slots=True)
class SpanPeriods:
    """What a span of time is made of.

    whole    the period that is shown as one number, and compared with the one before
    part     the periods that a line goes through; None: the windows themselves
    back     how far back a line goes
    column   the periods that a drawing has a column for each of, and how many
    """

    whole: RollupPeriod
    part: RollupPeriod | None
    back: timedelta
    column: tuple[RollupPeriod, int]


SPAN_PERIODS: Final = {
    "hour": SpanPeriods(RollupPeriod.HOUR, None, timedelta(hours=2), (RollupPeriod.HOUR, 12)),
    "day": SpanPeriods(
        RollupPeriod.DAY, RollupPeriod.HOUR, timedelta(days=2), (RollupPeriod.HOUR, 24)
    ),
    "week": SpanPeriods(
        RollupPeriod.WEEK, RollupPeriod.HOUR, timedelta(days=7), (RollupPeriod.DAY, 14)
    ),
    "eight_weeks": SpanPeriods(
        RollupPeriod.EIGHT_WEEKS, RollupPeriod.DAY, timedelta(days=112), (RollupPeriod.WEEK, 8)
    ),
    "year": SpanPeriods(
        RollupPeriod.EIGHT_WEEKS, RollupPeriod.WEEK, timedelta(days=364), (RollupPeriod.WEEK, 52)
    ),
}
