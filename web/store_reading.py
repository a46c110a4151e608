"""What pages read: released numbers, as one viewer may see them, over a page's span.

What is looked at stands in the address, so that a link shows the same to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from aggregator.statistics.ratios import normal_quantile
from analytics import FleetReleases, NothingReleased, RollupPeriod
from analytics.changes import BEFORE, changes
from analytics.costs import costs, fleet_gpus
from analytics.recent_hours import MINUTES
from analytics.rollup_files import ALWAYS, utc

from .store_watch import StoreStanding

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
        Field(description="cohort of the series; all together, of root causes the first"),
    ] = None

    def written(self) -> dict[str, str]:
        """Give what differs from the defaults, as an address has it."""
        kept = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value) for name, value in kept.items()}


@dataclass(frozen=True, slots=True)
class SpanPeriods:
    """What a span of time is made of.

    whole    the period that is shown as one number, and compared with the one before
    part     the periods that a line goes through; None: the last hour at each of its minutes
    back     how far back a line goes
    column   the periods that a drawing has a column for each of, and how many
    """

    whole: RollupPeriod
    part: RollupPeriod | None
    back: timedelta
    column: tuple[RollupPeriod, int]


_RECENT: Final = timedelta(hours=2)
SPAN_PERIODS: Final = {
    "hour": SpanPeriods(RollupPeriod.HOUR, None, _RECENT, (RollupPeriod.HOUR, 12)),
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


class RowsUnfit(ValueError):
    """Rows as no Leader writes them; says which column of them holds what it may not."""


def without_null(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Give rows as they are. Raises RowsUnfit where one of these columns holds a NULL."""
    for column in columns:
        if nulls := int(rows[column].isna().sum()):
            raise RowsUnfit(
                "rows in it are not as a Leader writes them: "
                f"{column} is NULL in {nulls:,} of {len(rows):,}"
            )
    return rows


def of_one_cohort(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the rows of the first cohort: those of several would stand beside each other as one."""
    return rows if rows.empty else rows[rows["cohort"] == rows["cohort"].min()]


def with_shares(cells: pd.DataFrame) -> pd.DataFrame:
    """Give shares as a view's number: value, standard_error, low, high; amounts as `amount_*`."""
    if cells.empty:
        return cells
    amounts = {f"amount_{name}": cells[name] for name in ("value", "standard_error", "low", "high")}
    half = (cells["share_high"] - cells["share_low"]) / 2
    return cells.assign(
        **amounts, value=cells["share"], low=cells["share_low"], high=cells["share_high"],
        standard_error=half / normal_quantile(),
    )  # fmt: skip


EVERY_MODEL: Final = ""
_NUMBER: Final = ("value", "standard_error", "low", "high", "coverage")
_MOMENT: Final = ("series", "cohort", "cell", "moment")
_YEAR: Final = timedelta(days=364)
_MOST_COLUMNS: Final = 24
_COVERED: Final = (("week", 604_800.0), ("day", 86_400.0))


class Cells(NamedTuple):
    """What cells are asked for: by what, of one GPU model or of each, of some names or all."""

    by: str
    model: str | None = None
    names: frozenset[str] | None = None

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Take them from a frame of all."""
        if self.model and not frame.empty:
            frame = frame[frame["model"] == self.model]
        if self.names is not None and not frame.empty:
            frame = frame[frame["name"].isin(self.names)]
        return frame


Periods = tuple[RollupPeriod, datetime, datetime]  # that start in [since, until)
Key = tuple[Any, ...]
Make = Callable[[], pd.DataFrame]


@dataclass(frozen=True, slots=True)
class StoreReading:
    """Released numbers, and the series that the viewer may see.

    A `model` is one GPU model, or EVERY_MODEL: rows of each; None: models are added up.

    series      None: all of them
    frames      gives the frame of a key, making it where none is kept
    """

    fleet: FleetReleases
    series: frozenset[str] | None
    standing: StoreStanding
    frames: Callable[[Key, Make], pd.DataFrame]

    def span(self, state: PageState) -> str:
        """Give the span that is looked at: the asked one, else what the store has enough of."""
        if state.span != AUTO:
            return state.span
        covered_s = self.standing.covered_s
        return next((name for name, enough in _COVERED if covered_s >= enough), "hour")

    def periods(self, state: PageState) -> SpanPeriods:
        return SPAN_PERIODS[self.span(state)]

    def until(self, state: PageState) -> datetime:
        """Give the moment after the last one that is looked at, naive UTC."""
        if state.until is not None:
            return datetime(state.until.year, state.until.month, state.until.day)  # noqa: DTZ001
        return utc(self.standing.newest_s)

    def kept(self, key: Key, make: Make) -> pd.DataFrame:
        """Give a frame of this store as it is now."""
        return self.frames((self.standing.generation, *key), make)

    def summary(self, by: str, state: PageState, model: str | None = None) -> pd.DataFrame:
        """Return the cells of the newest whole period that has ended, as `FleetReleases.mix`.

        Of a span of an hour those of the last 60 minutes, with the newest minute beside them.
        """
        if self.periods(state).part is None:
            recent = self._recent(Cells(by, model), state)
            known = recent[~recent["suppressed"]]
            if not known.empty:
                newest: pd.DataFrame = known[known["moment"] == known["moment"].max()]
                return newest
        whole = self.periods(state).whole
        start = whole.start(self.until(state))
        found = pd.DataFrame()
        # A period that has only begun stands in for one that has ended where there is none.
        for at in (start - whole.length, start):
            found = self._seen(Cells(by, model), (whole, at, at + whole.length), state)
            if not found.empty:
                break
        return with_shares(found)

    def trend(
        self, by: str, state: PageState, model: str | None = None, *, names: Iterable[str]
    ) -> pd.DataFrame:
        """Return the cells of these names in each part of the span, oldest first."""
        periods, until = self.periods(state), self.until(state)
        since, cells = until - periods.back, Cells(by, model, frozenset(names))
        if periods.part is None:
            return self._recent(cells, state)
        return with_shares(self._first_seen(cells, (periods.part, since, until), state))

    def columns(self, by: str, state: PageState) -> pd.DataFrame:
        """Return the cells of the few periods that a drawing has a column for each of.

        Where there is one column alone, those of shorter periods, last of all the last hours.
        """
        (column, count), until = self.periods(state).column, self.until(state)
        since = column.start(until - timedelta(microseconds=1)) - (count - 1) * column.length
        found = self._first_seen(Cells(by), (column, since, until), state)
        shorter = column.shorter
        while _columns(found) == 1 and shorter is not None:
            found = _newest_columns(self._seen(Cells(by), (shorter, since, until), state), found)
            shorter = shorter.shorter
        if _columns(found) == 1:
            return _newest_columns(self._recent(Cells(by), state), with_shares(found))
        return with_shares(found)

    def causes(self, section: str, state: PageState) -> pd.DataFrame:
        """Return root-cause tables of a year with costs, by GPUs of the newest week."""
        until = self.until(state)
        found = self.kept(
            ("causes", section, until),
            lambda: without_null(
                self.fleet.source.causes(section, since=until - _YEAR, until=until),
                "cause",
                "corrected",
            ),
        )
        tables = of_one_cohort(self.visible(found, state))
        if tables.empty:
            return tables
        week = RollupPeriod.WEEK
        span = (week, week.start(until) - week.length, until)
        mixes = [
            self.visible(self._mix(Cells("family", model), span)) for model in (None, EVERY_MODEL)
        ]
        return costs(tables, self.fleet.prices, fleet_gpus(*mixes))

    def change(self, by: str, state: PageState, model: str | None = None) -> pd.DataFrame:
        """Return how the newest whole period differs from the one before, if there are two."""
        whole, cells = self.periods(state).whole, Cells(by, model)
        if self.periods(state).part is None:
            return self._last_change(cells, state)
        start = whole.start(self.until(state)) - whole.length
        before, after = start - whole.length, start + whole.length
        if state.cohort is not None:
            spans: tuple[Periods, ...] = ((whole, before, start), (whole, start, after))
            return changes(*(self._seen(cells, span, state) for span in spans))
        by_model = model is not None

        def make() -> pd.DataFrame:
            try:
                return self.fleet.change(by, whole.value, at=start, by_model=by_model)
            except NothingReleased:
                return pd.DataFrame()

        found = self._of_periods(("change", by, by_model), (whole, before, after), make)
        return self.visible(cells.of(found), state)

    def _last_change(self, cells: Cells, state: PageState) -> pd.DataFrame:
        until, by_cohort = self.until(state), state.cohort is not None
        by_model = cells.model is not None

        def make() -> pd.DataFrame:
            try:
                return self.fleet.change(
                    cells.by, minutes=MINUTES, at=until, by_model=by_model, by_cohort=by_cohort
                )
            except NothingReleased:
                return pd.DataFrame()

        back = (1 + BEFORE) * RollupPeriod.HOUR.length
        span = (RollupPeriod.HOUR, until - back, until)
        found = self._of_periods(("last change", cells.by, by_model, by_cohort), span, make)
        return self.visible(cells.of(found), state)

    def ends(self, state: PageState) -> pd.DataFrame:
        """Return how windows ended in each part of the span; long ones by their own length."""
        periods, until = self.periods(state), self.until(state)
        part = periods.part or RollupPeriod.HOUR
        seen: set[str] = set()
        kept = []
        for length in RollupPeriod:
            if length.seconds >= part.seconds:
                rows = self.visible(self._outcomes(length, until - periods.back, until))
                kept.append(rows[~rows["series"].isin(seen)].assign(period_s=length.seconds))
                seen |= set(rows["series"])
        return pd.concat(kept, ignore_index=True)

    def visible(self, frame: pd.DataFrame, state: PageState | None = None) -> pd.DataFrame:
        """Leave out rows of series that the viewer may not see.

        state    one series alone: the asked one, or where it has no row that of most hosts; of the
                 cohort that is asked for
        """
        if "series" not in frame or frame.empty:
            return frame
        seen = frame if self.series is None else frame[frame["series"].isin(self.series)]
        if state is None or seen.empty:
            return seen
        if state.series and state.series not in self.names():
            return seen[:0]
        asked = state.series
        if asked not in set(seen["series"]):
            hosts = next(name for name in ("n_hosts", "hosts", "hosts_after") if name in seen)
            asked = str(seen.groupby("series")[hosts].max().idxmax())
        wanted = seen["series"] == asked
        if state.cohort is not None:
            wanted &= seen["cohort"] == state.cohort
        return seen[wanted]

    def names(self) -> list[str]:
        known = [one.name for one in self.standing.series]
        return sorted(name for name in known if self.series is None or name in self.series)

    def cohorts(self, state: PageState) -> list[int]:
        """Give the cohorts of the asked series; without one, of all that the viewer may see."""
        found = self._settled()
        if state.series:
            found = found[found["series"] == state.series]
        return sorted({int(cohort) for cohort in found["cohort"]})

    def days(self) -> tuple[datetime, datetime]:
        """Give the first and the last day before which there may be a release, naive UTC."""
        found, day = self._settled(), timedelta(days=1)
        last = self.until(PageState()) + day
        first = last if found.empty else pd.Timestamp(found["period_start"].min()).to_pydatetime()
        return first + day, last

    def _settled(self) -> pd.DataFrame:
        """Windows that ended, ever, in the coarsest periods."""
        until = self.until(PageState())
        return self.visible(self._outcomes(RollupPeriod.EIGHT_WEEKS, ALWAYS, until))

    def _first_seen(self, cells: Cells, span: Periods, state: PageState) -> pd.DataFrame:
        """Cells of these periods; where its windows are longer, of the first that hold them."""
        shortest, since, until = span
        found = pd.DataFrame()
        for period in RollupPeriod:
            if found.empty and period.seconds >= shortest.seconds:
                found = self._seen(cells, (period, period.start(since), until), state)
        return found

    def _seen(self, cells: Cells, span: Periods, state: PageState) -> pd.DataFrame:
        """Cells of these periods, of one series and of the asked cohort."""
        return self.visible(self._mix(cells, span, by_cohort=state.cohort is not None), state)

    def _mix(self, cells: Cells, span: Periods, *, by_cohort: bool = False) -> pd.DataFrame:
        period, since, until = span[0], span[0].first_from(span[1]), span[0].first_from(span[2])
        by_model = cells.model is not None
        found = self._part_of(
            cells, ("mix", cells.by, by_model, by_cohort), (period, since, until),
            lambda: self.fleet.mix(
                cells.by, period.value, since=since, until=until, by_model=by_model,
                by_cohort=by_cohort,
            ),
        )  # fmt: skip
        return self._with_epsilon(found)

    def _with_epsilon(self, rows: pd.DataFrame) -> pd.DataFrame:
        epsilons = {one.name: one.epsilon for one in self.standing.series}
        return rows.assign(epsilon=rows["series"].map(epsilons))

    def _outcomes(self, period: RollupPeriod, since: datetime, until: datetime) -> pd.DataFrame:
        since, until = period.first_from(since), period.first_from(until)
        return self._of_periods(
            ("outcomes",), (period, since, until),
            lambda: self.fleet.outcomes(period.value, since=since, until=until),
        )  # fmt: skip

    def _of_periods(self, key: Key, span: Periods, make: Make) -> pd.DataFrame:
        """Give a frame of these periods, made anew where they have grown."""
        source = self.fleet.source
        return self.frames((source, *key, *span, source.windows_in(*span)), make)

    def _part_of(self, cells: Cells, key: Key, span: Periods, make: Make) -> pd.DataFrame:
        """Give a part of a frame as `_of_periods`: pages of other parts share the whole one."""
        return self._of_periods(
            (*key, *cells), span, lambda: cells.of(self._of_periods(key, span, make))
        )

    def _recent(self, cells: Cells, state: PageState) -> pd.DataFrame:
        """Return the last hour at each minute of the span, its newest minute beside it."""
        hours, minutes = (self._last(cells, length, state) for length in (MINUTES, 1))
        if hours.empty or minutes.empty:
            return hours
        beside = {name: f"minute_{name}" for name in (*_NUMBER, "told", "reason")}
        named = minutes[[*_MOMENT, *beside]].rename(columns=beside)
        found = hours.merge(named, how="left", on=list(_MOMENT))
        return found.assign(minute_told=found["minute_told"].eq(True))

    def _last(self, cells: Cells, minutes: int, state: PageState) -> pd.DataFrame:
        until, by_cohort = self.until(state), state.cohort is not None
        since, by_model = until - _RECENT, cells.model is not None
        found = self._part_of(
            cells, ("recent", cells.by, minutes, by_model, by_cohort),
            (RollupPeriod.HOUR, since - RollupPeriod.HOUR.length, until),
            lambda: self.fleet.recent(
                cells.by, minutes, since=since, until=until, by_model=by_model,
                by_cohort=by_cohort,
            ),
        )  # fmt: skip
        rows = with_shares(self._with_epsilon(self.visible(found, state)))
        length = pd.to_timedelta(rows["period_s"], unit="s")
        return rows.assign(moment=rows["period_start"] + length)


def _newest_columns(cells: pd.DataFrame, otherwise: pd.DataFrame) -> pd.DataFrame:
    """Take the newest of many columns; the others where there are none."""
    if cells.empty:
        return otherwise
    newest = sorted(cells["period_start"].unique())[-_MOST_COLUMNS:]
    found: pd.DataFrame = cells[cells["period_start"] >= newest[0]]
    return found


def _columns(cells: pd.DataFrame) -> int:
    return 0 if cells.empty else int(cells["period_start"].nunique())
