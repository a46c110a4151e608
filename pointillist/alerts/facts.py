"""Alerts of releases: drifts of a mix and rises of a cause, at one false-discovery rate.

Alerts of a host's own journal: incidents of its jobs, by job and owner; they are its operator's.

A journal is not released, so whoever runs this on a host tells its operator's own receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from analytics import FleetReleases, NothingReleased, RollupPeriod
from analytics.changes import OF_SHARE
from analytics.rollup_files import period_of
from diagnosis.detect.findings import Diagnosis
from diagnosis.detect.journal import JournalLine

from .alert import Alert, AlertsConfig, FleetRules

CAUSES = ("cause", "fault")


def fleet_alerts(fleet: FleetReleases, rules: FleetRules) -> Iterator[Alert]:
    """Give changes that are large enough and not a gap's. Raises ValueError for an unknown name."""
    asked = [(by, rules.period, False) for by in rules.by]
    if rules.causes:
        asked += [(by, _causes_period(by, rules.period), True) for by in CAUSES]
    for by, period, rises in asked:
        series = set(fleet.outcomes(period)["series"])
        for name in sorted(series.intersection(rules.series) if rules.series else series):
            try:
                rows = fleet.change(by, period, series=name)
            except NothingReleased:
                continue
            yield from _told(rows, period_of(period), rules, rises=rises)


def _causes_period(by: str, period: str) -> str:
    """Give the period of a cause: incidents have windows of a week, faults of eight."""
    least = RollupPeriod.WEEK if by == CAUSES[0] else RollupPeriod.EIGHT_WEEKS
    asked = period_of(period)
    return (asked if asked.seconds > least.seconds else least).value


def _told(
    rows: pd.DataFrame, period: RollupPeriod, rules: FleetRules, *, rises: bool
) -> Iterator[Alert]:
    for row in rows[rows["told"].astype(bool)].to_dict("records"):
        covered = min(row["coverage_before"], row["coverage_after"]) >= rules.least_coverage
        # What hosts left out may move an indicator without any incident more.
        size = abs(row["change"]) - (row["bias_bound"] if rises else 0.0)
        large = size >= rules.least_change if row["unit"] == OF_SHARE and not rises else size > 0
        if covered and large and (row["change"] > 0 or not rises):
            yield _alert(row, period, rises=rises)


def _alert(row: Mapping[Any, Any], period: RollupPeriod, *, rises: bool) -> Alert:
    start_s = pd.Timestamp(row["after_start"]).timestamp()
    percent = row["unit"] == OF_SHARE
    before, after = _said(row["before"], percent), _said(row["after"], percent)
    way = "rose" if row["change"] > 0 else "fell"
    low, high = _said(row["low"], percent), _said(row["high"], percent)
    return Alert(
        {
            "alertname": "PointillistCauseRise" if rises else "PointillistDrift",
            "severity": "warning",
            "series": str(row["series"]),
            "section": str(row["section"]),
            "cell": str(row["cell"]),
            "direction": "up" if row["change"] > 0 else "down",
            "period": period.value,
        },
        {
            "summary": f"{row['name']} {way} from {before} to {after} in a {period.value}",
            "description": (
                f"The change is {_said(row['change'], percent)}, 95 % interval {low} to {high}, "
                f"q-value {row['q_value']:.2g}. Of such alerts of one section and "
                f"{period.value}, at most {FALSE_DISCOVERY_RATE:.0%} are expected to be false."
            ),
        },
        # The fact is known once its period has ended, and stands until the next has.
        start_s + period.seconds,
        start_s + 2 * period.seconds,
    )


def _said(value: float, percent: bool) -> str:
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"


STANDS_S = 900.0
"""Of an incident that no later diagnosis renews."""


def host_alerts(
    lines: Iterable[JournalLine], config: AlertsConfig, host: str
) -> Iterator[tuple[int, Alert]]:
    """Give what is heavy enough to be an incident, with the Unix nanoseconds at which it was known.

    host   name of this host, as its operator knows it
    """
    for line in lines:
        if isinstance(line.finding, Diagnosis) and line.finding.incident:
            yield line.unix_ns, _host_alert(line, line.finding, config, host)


def _host_alert(line: JournalLine, found: Diagnosis, config: AlertsConfig, host: str) -> Alert:
    job = found.subject
    slower = found.now.p99_ms / found.before.p99_ms if found.before.p99_ms else 0.0
    return Alert(
        {
            "alertname": "PointillistIncident",
            "severity": "warning",
            "cause": found.cause.value,
            "job": job,
            "owner": config.owner(job),
            "host": host,
        },
        {
            "summary": f"{job} on {host} is slow: {found.cause.value}",
            "description": (
                f"Steps take {slower:.1f} times as long as usual at the 99th percentile; "
                f"confidence {found.confidence:.0%}. `pointillist agent diagnose` on the host has "
                "the evidence."
            ),
        },
        (found.onset_ns + line.offset_ns) / 1e9,
        line.unix_ns / 1e9 + STANDS_S,
    )
