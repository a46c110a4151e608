"""What is looked at: all of it stands in the address, so a link shows the same to others.

What each span of time that a page can show is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from analytics import RollupPeriod

AUTO: Final = "auto"
ALL_MODELS: Final = "all"


def _absent(value: object) -> object:
    """An empty field of a form is one that nobody filled in."""
    return None if value == "" else value


class PageState(BaseModel):
    """The parameters of every page and view; pages use what they have controls for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    span: Annotated[
        Literal["auto", "hour", "day", "week", "eight_weeks", "year"],
        Field(description="length of what is shown as one number; auto: what the store has"),
    ] = AUTO
    until: Annotated[
        Annotated[date, Field(ge=date(1970, 1, 1), lt=date(9000, 1, 1))] | None,
        BeforeValidator(_absent),
        Field(description="the day after the last one, UTC; newest without it"),
    ] = None
    measure: Annotated[
        Literal["gpu_time", "launch_share"], Field(description="how hosts know their mix")
    ] = "gpu_time"
    model: Annotated[
        str, Field(description="GPU model, or all", max_length=40, pattern=r"^[\w .+-]+$")
    ] = ALL_MODELS
    series: Annotated[
        str,
        Field(
            description="task series; without it, or where it has nothing of a view, that of most "
            "hosts",
            max_length=200,
        ),
    ] = ""
    cohort: Annotated[
        Annotated[int, Field(ge=0, lt=2**31)] | None,
        BeforeValidator(_absent),
        Field(
            description="cohort of the series; all together without it, and of single windows and "
            "root causes the first"
        ),
    ] = None

    def written(self) -> dict[str, str]:
        """Give what differs from the defaults, as an address has it."""
        kept = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value) for name, value in kept.items()}


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
