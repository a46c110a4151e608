"""What an analyst asks of releases, as pandas frames: `pointillist.connect`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pandas as pd

from aggregator.releases.releases import Moment, moment
from transport.process.supervision import Closing
from wire.catalogue import Catalogue

from .changes import BEFORE, CHANGE_COLUMNS, MINUTE_ERRORS, changes
from .costs import FleetGpus, PriceList, costs, fleet_gpus, load_prices
from .quantiles_sql import quantiles
from .recent_hours import MINUTES, MOST_MINUTES
from .release_source import FolderSource, ReleaseSource
from .rollup_files import RollupPeriod, period_of
from .server_source import ReleaseServer, ServerSource, token_of
from .spent_budget import SeriesTask, budget, tasks_in

BY: Final = {
    "family": "kernel_mix",
    "application": "application_mix",
    "duration": "kernel_duration",
    "copy_size": "copy_size",
    "utilisation": "gpu_utilisation",
    "memory": "gpu_memory",
    "power": "gpu_power",
    "temperature": "gpu_temperature",
    "seen": "applications_seen",
    "cause": "incidents",
    "fault": "hardware_faults",
}
"""What people say -> section of the catalogue; any section's own name is taken too."""

MODELLED: Final = {"kernel_mix": "kernel_mix_by_model"}
"""Section -> the one that has it by GPU model."""

INCIDENTS: Final = "incidents"
FAULTS: Final = "hardware_faults"

_NONE: Final = "expected a released {}, got none"


class NothingReleased(LookupError):
    """There is no released number of what was asked for."""


class FleetReleases(Closing):
    """Released numbers of one fleet; reading them costs no budget.

    Times are naive UTC; arguments that are times take a datetime, a date, ISO text or unix seconds.
    Frames of cells have `value`, `standard_error`, `low`, `high` in `unit`; `share`, `share_low`,
    `share_high` as fractions; `q_value` and `told`, whether the cell is told from zero;
    `suppressed` and `reason`, where there is no number; `coverage`, the released part of the
    period, which is all that value and interval are about; `bias_bound`, what indicators may lack
    beyond the interval. All columns: `analytics.sql.CELL_MEANINGS`.
    """

    def __init__(
        self,
        source: ReleaseSource,
        prices: PriceList | None = None,
        tasks: Sequence[SeriesTask] = (),
    ) -> None:
        self.source = source
        self.prices = load_prices() if prices is None else prices
        self.tasks = tuple(tasks)
        self._catalogue = Catalogue.load()

    @property
    def simulated(self) -> str | None:
        """Say in a line what was simulated; None: nothing was. Raises MarkUnreadable."""
        mark = self.source.mark()
        return None if mark is None else mark.line

    def close(self) -> None:
        self.source.close()

    def mix(
        self,
        by: str = "family",
        period: str = "week",
        *,
        model: str | None = None,
        by_model: bool = False,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_cohort: bool = False,
    ) -> pd.DataFrame:
        """Return a section by hour, day, week or eight weeks.

        by          one of BY, or a section of the catalogue
        period      hour, day, week or eight_weeks
        model       GPUs of this model alone; by_model: of each (families alone have models)
        series      this one alone; an operator's own task is a series of its own
        since, until    periods that start in [since, until)
        by_cohort   a row for each cohort; else cohorts are added up
        Returns     columns of `sql.CELL_MEANINGS`, bins in order; in a mix value is in GPU-s
                    and a share is of measured time. Warns where other periods hold the section and
                    this one does not
        Raises      ValueError for a name that is none
        """
        length, section = period_of(period), self._section(by, by_model=by_model or bool(model))
        rows = self.source.cells(
            length, section, series=series, since=since, until=until, by_cohort=by_cohort
        )
        if rows.empty and since is None and until is None:
            where = self._held_by(section, series)
            if where:
                warnings.warn(f"{section}: {_NONE.format(length)}{where}", stacklevel=2)
        return _of_model(rows, model)

    def recent(
        self,
        by: str = "family",
        minutes: int = MINUTES,
        *,
        model: str | None = None,
        by_model: bool = False,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_cohort: bool = False,
    ) -> pd.DataFrame:
        """Return the last 60 minutes of a section, renewed with each window that ends.

        minutes     how many, a multiple of the windows that are added up
        since, until    the minutes to each moment in (since, until]; without `since` the newest
        by, ...     as `mix`
        Returns     as `mix`: `windows` counts those that were released, `coverage` is their part
                    of all; rows of moments closer than `minutes` share windows
        Raises      ValueError
        """
        if not 1 <= minutes <= MOST_MINUTES:
            raise ValueError(f"minutes: expected 1 to {MOST_MINUTES:,}, got {minutes}")
        section = self._section(by, by_model=by_model or bool(model))
        rows = self.source.recent(
            section, minutes=minutes, by_cohort=by_cohort, series=series, since=since, until=until
        )
        return _of_model(rows, model)

    def newest(self, by: str = "family", period: str = "week", **chosen: Any) -> pd.DataFrame:
        """As `mix`, of the newest period that has ended. Raises NothingReleased; ValueError."""
        return self._of_period(by, period, self._period(by, period, None, chosen), chosen)

    def applications(self, period: str | None = None, **bounds: Any) -> pd.DataFrame:
        """Return GPU time by application, as `mix`; None: by day, or what holds any."""
        return self._mix("application", period, RollupPeriod.DAY, bounds)

    def seen(self, period: str | None = None, **bounds: Any) -> pd.DataFrame:
        """Return hosts by application that ran on them, over many days host days; as `mix`."""
        return self._mix("seen", period, RollupPeriod.DAY, bounds)

    def durations(self, period: str | None = None, **bounds: Any) -> pd.DataFrame:
        """Return GPU time by how long kernels ran; arguments and columns as `binned`."""
        return self.binned("duration", period, **bounds)

    def binned(self, by: str, period: str | None = None, **bounds: Any) -> pd.DataFrame:
        """Return a histogram as `mix`, by hour or the shortest longer period that holds any."""
        rows = self._mix(by, period, RollupPeriod.HOUR, bounds)
        return rows.sort_values(["period_start", "series", "cohort", "bin"], ignore_index=True)

    def quantile(
        self,
        fraction: float | Sequence[float] = 0.5,
        by: str = "duration",
        period: str | None = None,
        **bounds: Any,
    ) -> pd.DataFrame:
        """Return the value below which a fraction of a histogram lies; of durations, of GPU time.

        fraction    between 0 and 1, or several
        period      None: week, or the shortest longer period that holds any
        bounds      as `mix`
        Returns     columns of `quantiles_sql.QUANTILE_MEANINGS`: `value`, and `low` and `high`, the
                    ends of the bins that a 95 % interval holds, in `unit`
        Raises      ValueError
        """
        fractions = [fraction] if isinstance(fraction, int | float) else fraction
        return quantiles(self._mix(by, period, RollupPeriod.WEEK, bounds), fractions)

    def causes(self, since: Moment | None = None, until: Moment | None = None) -> pd.DataFrame:
        """Return incidents by cause and week: hosts, GPU hours and money; `costs.COST_COLUMNS`."""
        return self._costs(INCIDENTS, since, until)

    def faults(self, since: Moment | None = None, until: Moment | None = None) -> pd.DataFrame:
        """Return hardware faults by eight weeks; columns as `causes`."""
        return self._costs(FAULTS, since, until)

    def change(
        self,
        by: str = "family",
        period: str = "week",
        *,
        minutes: int | None = None,
        at: Moment | None = None,
        against: Moment | None = None,
        **chosen: Any,
    ) -> pd.DataFrame:
        """Compare one period with another, cell by cell.

        minutes     the last so many with six times as many before them, instead of periods
        at          any moment of the later one, or where the last minutes end; None: the newest
                    that has ended
        against     any moment of the other; None: the period before
        chosen      model, by_model, series as `mix`
        Returns     columns of `changes.CHANGE_COLUMNS`; of the rows that are `told` at most 1 % are
                    expected not to have changed
        Raises      NothingReleased where there is no period to compare; ValueError
        """
        if minutes is None:
            length, after = period_of(period), self._period(by, period, at, chosen)
            before = after - length.length if against is None else length.start(moment(against))
            return changes(*(self._of_period(by, period, at, chosen) for at in (before, after)))
        found = []
        last = self.recent(by, minutes, until=at, **chosen)
        for (name, _), own in last.groupby(["series", "period_start"]):
            until = own["period_start"].iloc[0].to_pydatetime()  # no window is of both
            earlier = self.recent(by, BEFORE * minutes, until=until, **{**chosen, "series": name})
            found.append(changes(earlier, own, errors=MINUTE_ERRORS))
        if not found:
            raise NothingReleased(f"{by}: {_NONE.format('window')} of such minutes")
        return pd.concat(found, ignore_index=True)

    def compare_models(
        self,
        model: str,
        than: str,
        by: str = "family",
        period: str = "week",
        *,
        at: Moment | None = None,
        series: str | None = None,
    ) -> pd.DataFrame:
        """Compare GPUs of one model with those of another in the same period, cell by cell.

        at          any moment of the period; None: the newest that has ended
        Returns     columns of `changes.CHANGE_COLUMNS`: `before` is of `than`, `after` of `model`,
                    `change` what `model` has more; cells without their model's name
        Raises      NothingReleased where there is no period to compare; ValueError
        """
        chosen = {"by_model": True, "series": series}
        rows = self._of_period(by, period, self._period(by, period, at, chosen), chosen)
        known = sorted({*rows["model"]} - {""})
        for name in (model, than):
            if name not in known:
                raise ValueError(f"model: expected one of {', '.join(known)}, got {name!r}")
        compared = (rows[rows["model"] == name] for name in (than, model))
        return changes(*(
            own.assign(cell=own["cell"].str.partition("/")[2], model="") for own in compared
        ))  # fmt: skip

    def windows(
        self,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """Return how each window ended: series, cohort, window_start, outcome, reason, n_hosts."""
        return self.source.windows(series=series, since=since, until=until)

    def outcomes(self, period: str = "hour", **bounds: Any) -> pd.DataFrame:
        """Return how windows ended by period; arguments `series`, `since`, `until`."""
        return self.source.outcomes(period_of(period), **bounds)

    def budget(self) -> pd.DataFrame:
        """Return what a host spent in the newest 168 hours, `spent_budget.BUDGET_COLUMNS`."""
        newest = self.source.newest(RollupPeriod.HOUR, None)
        found = []
        for period in RollupPeriod:
            recent = max(2 * RollupPeriod.WEEK.length, 2 * period.length)
            since = None if newest is None else newest - recent
            found.append(self.source.outcomes(period, since=since))
        return budget(found, self.tasks)

    def sql(self, text: str) -> pd.DataFrame:
        """Run one SELECT: `releases`, `latest`, `windows`, `causes`, `recent`, `hours`, `days`,
        `weeks`, `eight_weeks`, `outcomes`, `changes` and `costs`.

        Raises      QueryRefused, QueryForbidden
        """
        frames = {
            "changes": self._all_changes,
            "costs": lambda: pd.concat([self.causes(), self.faults()], ignore_index=True),
        }
        return self.source.sql(text, frames)

    def gpus(self, since: Moment | None = None, until: Moment | None = None) -> FleetGpus:
        """Return how many GPUs a host has, and of which models, as releases of these weeks tell."""
        week = RollupPeriod.WEEK
        mix, by_model = (
            self.source.cells(week, section, since=since, until=until)
            for section in next(iter(MODELLED.items()))
        )
        return fleet_gpus(mix, by_model)

    def _costs(self, section: str, since: Moment | None, until: Moment | None) -> pd.DataFrame:
        found = self.source.causes(section, since=since, until=until)
        return costs(found, self.prices, self.gpus(since, until))

    def _of_period(
        self, by: str, period: str, start: datetime, chosen: Mapping[str, Any]
    ) -> pd.DataFrame:
        return self.mix(by, period, since=start, until=start + period_of(period).length, **chosen)

    def _period(
        self, by: str, period: str, at: Moment | None, chosen: Mapping[str, Any]
    ) -> datetime:
        """Return the first moment of the period that `at` is in; None: the newest that ended."""
        length, series = period_of(period), chosen.get("series")
        by_model = bool(chosen.get("by_model") or chosen.get("model"))
        section = self._section(by, by_model=by_model)
        found = self.source.newest(length, section, series) if at is None else moment(at)
        if found is None:
            held = self._held_by(section, series)
            raise NothingReleased(f"{section}: {_NONE.format(length)}{held}")
        return length.start(found)

    def _mix(
        self, by: str, period: str | None, shortest: RollupPeriod, bounds: Mapping[str, Any]
    ) -> pd.DataFrame:
        """Return a mix; without a period by the first from `shortest` on that holds any."""
        if period is not None:
            return self.mix(by, period, **bounds)
        section, series = self._section(by), bounds.get("series")
        held = (one for one in self._holding(section, series) if one.seconds >= shortest.seconds)
        return self.mix(by, next(held, shortest), **bounds)

    def _holding(self, section: str, series: str | None) -> Iterator[RollupPeriod]:
        return (one for one in RollupPeriod if self.source.newest(one, section, series))

    def _held_by(self, section: str, series: str | None) -> str:
        """Say by which periods a section was released; nothing where by none."""
        held = ", ".join(self._holding(section, series))
        return f"; it is there by {held}" if held else ""

    def _section(self, by: str, *, by_model: bool = False) -> str:
        section = BY.get(by, by)
        known = {section.name for section in self._catalogue.sections}
        if section not in known:
            raise ValueError(f"by: expected one of {', '.join(BY)} or a section, got {by!r}")
        if by_model and section not in MODELLED:
            models = ", ".join(name for name, of in BY.items() if of in MODELLED)
            raise ValueError(f"GPU models: expected by = {models}, got {by!r}")
        return MODELLED[section] if by_model else section

    def _all_changes(self) -> pd.DataFrame:
        """Compare the newest whole week of each series with the one before, every section."""
        week = RollupPeriod.WEEK
        newest = self.source.newest(week, None)
        found: list[pd.DataFrame] = []
        if newest is not None:
            rows = self.source.cells(week, None, since=newest - 2 * week.length)
            for _, own in rows.groupby("series"):
                starts = own["period_start"]
                after = starts[starts + week.length <= own["until"].max()].max()
                found.append(changes(own[starts == after - week.length], own[starts == after]))
        told = [rows for rows in found if len(rows)]
        return pd.concat(told) if told else pd.DataFrame(columns=list(CHANGE_COLUMNS))


def _of_model(rows: pd.DataFrame, model: str | None) -> pd.DataFrame:
    """Take the rows of one GPU model, None: all; bins in order."""
    if rows["bin"].notna().any():
        rows = rows.sort_values(["series", "cohort", "period_start", "bin"], ignore_index=True)
    return rows if model is None else rows[rows["model"] == model].reset_index(drop=True)


def connect(
    where: str | os.PathLike[str],
    *,
    prices: str | os.PathLike[str] | None = None,
    tasks: str | os.PathLike[str] | None = None,
    rollups: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> FleetReleases:
    """Read releases as frames.

    where       the Leader's folder of released Parquet, or the address of a `pointillist web`:
                https://HOST[:PORT], or http:// on this machine
    prices      a price list (TOML); None: the shipped one
    tasks       the folder of signed tasks (*.task): what windows cost of the budget
    rollups     of a folder: where roll-ups are kept; None: beside the releases, else in the user's
                cache
    token_file  of a server: the file of the token that opens it; None: POINTILLIST_TOKEN, if set
    ca_file     of a server: certificates that are trusted, PEM; None: the system's
    Raises      FileNotFoundError, PriceListError, ReportRejected, ValueError; of a server
                NotAFleetServer, FleetAccessRefused, FleetServerUnavailable
    """
    text = os.fspath(where)
    source: ReleaseSource
    if "://" in text:
        if rollups is not None:
            raise ValueError("rollups: expected none beside a server, got a folder")
        ca = None if ca_file is None else Path(ca_file)
        source = ServerSource(ReleaseServer(text, token_of(token_file), ca))
    else:
        if token_file is not None or ca_file is not None:
            raise ValueError("token_file, ca_file: expected a server beside them, got a folder")
        source = FolderSource(text, rollups)
    return FleetReleases(
        source,
        load_prices(None if prices is None else Path(prices)),
        () if tasks is None else tasks_in(Path(tasks)),
    )
