"""Hours, days, weeks and eight weeks of unix time: weeks start on Thursday, 00:00 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  (naive UTC, as released timestamps are)

ALWAYS: Final = EPOCH
"""No window starts before it."""
NEVER: Final = datetime(9000, 1, 1)  # noqa: DTZ001  (naive UTC)
"""None starts after it."""


class RollupPeriod(StrEnum):
    """How long the windows are together that a roll-up adds up."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    EIGHT_WEEKS = "eight_weeks"

    @property
    def seconds(self) -> int:
        """Length."""
        return _SECONDS[self]

    @property
    def length(self) -> timedelta:
        """Length."""
        return timedelta(seconds=self.seconds)

    @property
    def shorter(self) -> RollupPeriod | None:
        """The period whose roll-ups this one is made of."""
        return _SHORTER[self]

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest window that no shorter period holds, seconds."""
        return 1 if self.shorter is None else self.shorter.seconds + 1, self.seconds

    def holds(self, window_s: int) -> bool:
        """Whether it is the shortest period that holds such a window."""
        shortest, longest = self.lengths
        return shortest <= window_s <= longest

    @property
    def view(self) -> str:
        """Name of the view in SQL."""
        return self.value if self is RollupPeriod.EIGHT_WEEKS else f"{self.value}s"

    def start(self, when: datetime) -> datetime:
        """First moment of the period that holds a moment; naive UTC."""
        return EPOCH + (when - EPOCH) // self.length * self.length

    def first_from(self, when: datetime) -> datetime:
        """First moment of the first period that does not start before a moment; naive UTC."""
        return EPOCH - (EPOCH - when) // self.length * self.length

    def span(self, start: datetime) -> tuple[datetime, datetime]:
        """First moment, and the one after the last, of what one file of roll-ups holds.

        A day of hours, a month of days, a year of what is longer, by where they start.
        """
        day = start.replace(hour=0, minute=0, second=0, microsecond=0)
        if self is RollupPeriod.HOUR:
            return day, day + timedelta(days=1)
        if self is RollupPeriod.DAY:
            first = day.replace(day=1)
            return first, (first + timedelta(days=31)).replace(day=1)
        first = day.replace(month=1, day=1)
        return first, first.replace(year=first.year + 1)


_SECONDS: Final = {
    RollupPeriod.HOUR: 3600,
    RollupPeriod.DAY: 86_400,
    RollupPeriod.WEEK: 604_800,
    RollupPeriod.EIGHT_WEEKS: 4_838_400,
}
_SHORTER: Final[dict[RollupPeriod, RollupPeriod | None]] = {
    RollupPeriod.HOUR: None,
    RollupPeriod.DAY: RollupPeriod.HOUR,
    RollupPeriod.WEEK: RollupPeriod.DAY,
    RollupPeriod.EIGHT_WEEKS: RollupPeriod.WEEK,
}


def period_of(name: str) -> RollupPeriod:
    """Read a period's name.

    Raises      ValueError for any other
    """
    try:
        return RollupPeriod(name)
    except ValueError:
        known = ", ".join(RollupPeriod)
        raise ValueError(f"period: expected one of {known}, got {name!r}") from None


def utc(seconds: float) -> datetime:
    """Naive UTC of unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
