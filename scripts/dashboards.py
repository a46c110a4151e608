"""Write deploy/grafana/*.json, Grafana's dashboards, from the panels below.

    python -m scripts.dashboards          writes them
    python -m scripts.dashboards --check  fails where a file is not what they give

Charts of releases have a band of 1.96 standard errors: no number is drawn without its error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
SCHEMA_VERSION: Final = 39
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_Z95: Final = "1.96"


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """One expression of PromQL; the legend is of its labels."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """One drawing.

    kind    timeseries, stat or table
    unit    Grafana's name of it
    width   of 24 columns
    """

    title: str
    text: str
    queries: Sequence[DashboardQuery]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    most: float | None = None


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """One dashboard; variables are labels of a metric that a reader chooses from."""

    uid: str
    title: str
    text: str
    panels: Sequence[DashboardPanel]
    variables: Sequence[tuple[str, str]] = ()


def _share(section: str, least: str) -> list[DashboardQuery]:
    """Give shares that are told from zero, with both ends of their 95 % intervals."""
    chosen = f'{{series=~"$series", cohort=~"$cohort", section="{section}"}}'
    told = f"pointillist_release_q_value{chosen} <= 0.01"
    share = f"pointillist_release_share_ratio{chosen}"
    error = f"pointillist_release_share_standard_error_ratio{chosen}"
    return [
        DashboardQuery(f"({share} > {least}) and ({told})", "{{cell}}"),
        DashboardQuery(
            f"({share} + {_Z95} * {error}) and ({share} > {least}) and ({told})", "{{cell}} high"
        ),
        DashboardQuery(
            f"({share} - {_Z95} * {error}) and ({share} > {least}) and ({told})", "{{cell}} low"
        ),
    ]


_WINDOW: Final = '{series=~"$series", cohort=~"$cohort"}'

FLEET: Final = DashboardPage(
    "pointillist-fleet",
    "Pointillist: fleet",
    "Released numbers with their errors. Looking costs no privacy budget.",
    (
        DashboardPanel(
            "GPU time by kernel family",
            "Shares of GPU time that are told from zero, above 2 %, with 95 % intervals.",
            _share("kernel_mix", "0.02"),
            unit="percentunit",
            width=24,
        ),
        DashboardPanel(
            "Root causes",
            "Hosts with an incident, by cause, that are told from zero; the error is beside it.",
            (
                DashboardQuery(
                    'pointillist_release_value{series=~"$series", section="incidents"} and '
                    '(pointillist_release_q_value{series=~"$series", section="incidents"} <= 0.01)',
                    "{{cell}}",
                ),
                DashboardQuery(
                    'pointillist_release_standard_error{series=~"$series", section="incidents"} and'
                    ' (pointillist_release_q_value{series=~"$series", section="incidents"}'
                    " <= 0.01)",
                    "{{cell}} standard error",
                ),
            ),
        ),
        DashboardPanel(
            "Hosts in the newest release",
            "Accepted hosts, which the noise is divided among.",
            (DashboardQuery(f"pointillist_release_hosts{_WINDOW}", "{{series}} {{cohort}}"),),
        ),
        DashboardPanel(
            "Released windows of the last day",
            "What is missing was suppressed; it need not be like the rest.",
            (
                DashboardQuery(
                    f"pointillist_windows_released_ratio{_WINDOW}", "{{series}} {{cohort}}"
                ),
            ),
            unit="percentunit",
            most=1,
        ),
        DashboardPanel(
            "Windows suppressed in a row",
            "Newest windows without a release.",
            (
                DashboardQuery(
                    f"pointillist_windows_suppressed_run{_WINDOW}", "{{series}} {{cohort}}"
                ),
            ),
        ),
        DashboardPanel(
            "Age of the newest release",
            "Since the end of the window that it is of.",
            (
                DashboardQuery(
                    f"time() - pointillist_release_window_end_timestamp_seconds{_WINDOW}",
                    "{{series}} {{cohort}}",
                ),
            ),
            unit="s",
        ),
        DashboardPanel(
            "Privacy budget of a host",
            "What a series may cost in 168 hours, and what its newest 168 hours cost.",
            (
                DashboardQuery('pointillist_budget_weight_ratio{series=~"$series"}', "{{series}}"),
                DashboardQuery(
                    'pointillist_budget_spent_ratio{series=~"$series"}', "{{series}} spent"
                ),
            ),
            unit="percentunit",
            most=1,
        ),
    ),
    (
        ("series", "label_values(pointillist_window_end_timestamp_seconds, series)"),
        (
            "cohort",
            'label_values(pointillist_window_end_timestamp_seconds{series=~"$series"}, cohort)',
        ),
    ),
)

PIPELINE: Final = DashboardPage(
    "pointillist-pipeline",
    "Pointillist: pipeline",
    "Leader, Helper, agents: what runs, what waits, what is refused.",
    (
        DashboardPanel(
            "Up",
            "1 while the process answers Prometheus.",
            (DashboardQuery('up{job=~"pointillist-.*"}', "{{job}} {{instance}}"),),
            kind="stat",
            width=8,
        ),
        DashboardPanel(
            "Ready",
            "1 while nothing keeps the party from its work.",
            (
                DashboardQuery("pointillist_leader_ready", "leader"),
                DashboardQuery("pointillist_helper_ready", "helper"),
            ),
            kind="stat",
            width=8,
        ),
        DashboardPanel(
            "Store",
            "How the store of releases stands.",
            (DashboardQuery("pointillist_store_state == 1", "{{state}}"),),
            kind="stat",
            width=8,
        ),
        DashboardPanel(
            "Troubles",
            "1 while a trouble stands.",
            (
                DashboardQuery("pointillist_leader_trouble", "leader {{trouble}}"),
                DashboardQuery("pointillist_helper_trouble", "helper {{trouble}}"),
            ),
            most=1,
        ),
        DashboardPanel(
            "Reports admitted and refused",
            "A second, over five minutes.",
            (
                DashboardQuery("rate(pointillist_leader_reports_admitted_total[5m])", "admitted"),
                DashboardQuery("rate(pointillist_leader_rejected_total[5m])", "{{reason}}"),
            ),
            unit="reqps",
        ),
        DashboardPanel(
            "Windows",
            "Released, and suppressed by reason, in an hour.",
            (
                DashboardQuery(
                    "increase(pointillist_leader_windows_released_total[1h])", "released"
                ),
                DashboardQuery(
                    "increase(pointillist_leader_windows_suppressed_total[1h])", "{{reason}}"
                ),
                DashboardQuery("pointillist_leader_windows_unsettled", "unsettled"),
            ),
        ),
        DashboardPanel(
            "Records left to read",
            "The Leader's lag behind the log; -1 while the log is away.",
            (DashboardQuery("pointillist_leader_log_lag_records", "records"),),
        ),
        DashboardPanel(
            "Last contact",
            "Since the Helper last answered the Leader, and the Leader last asked the Helper.",
            (
                DashboardQuery("time() - pointillist_leader_helper_seen_seconds", "Helper seen"),
                DashboardQuery("time() - pointillist_helper_leader_seen_seconds", "Leader seen"),
            ),
            unit="s",
        ),
        DashboardPanel(
            "Free disk",
            "Of the file systems that state and releases are on.",
            (
                DashboardQuery("pointillist_leader_disk_free_ratio", "leader {{folder}}"),
                DashboardQuery("pointillist_helper_disk_free_ratio", "helper {{folder}}"),
            ),
            unit="percentunit",
            most=1,
        ),
        DashboardPanel(
            "Agents: reports sealed",
            "A host that seals none for hours measures nothing, or may not report.",
            (
                DashboardQuery(
                    "increase(pointillist_agent_sealed_reports_total[1h])", "{{instance}}"
                ),
            ),
        ),
        DashboardPanel(
            "Agents: withheld and waiting",
            "What agents withhold, by reason, and records that wait on their disks.",
            (
                DashboardQuery(
                    "sum by (reason) (increase(pointillist_agent_refused_total[1h]))", "{{reason}}"
                ),
                DashboardQuery("sum(pointillist_agent_spool_records)", "waiting"),
            ),
        ),
    ),
)

PAGES: Final = (FLEET, PIPELINE)


def dashboard(page: DashboardPage) -> dict[str, Any]:
    """Give a dashboard as Grafana reads it."""
    return {
        "uid": page.uid,
        "title": page.title,
        "description": page.text,
        "tags": ["pointillist"],
        "timezone": "utc",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(*each) for each in page.variables)]},
        "panels": list(_placed(page.panels)),
    }


def _source() -> dict[str, Any]:
    return {
        "name": "datasource", "type": "datasource", "label": "Prometheus", "query": "prometheus",
    }  # fmt: skip


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "label": name.capitalize(), "datasource": _SOURCE,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _placed(panels: Sequence[DashboardPanel]) -> Iterator[dict[str, Any]]:
    """Set panels beside each other, row by row, each row as high as its charts need."""
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else 9
        yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
        x += panel.width


def _panel(panel: DashboardPanel, number: int, place: dict[str, int]) -> dict[str, Any]:
    limits: dict[str, Any] = {} if panel.most is None else {"min": 0, "max": panel.most}
    overrides = [_band(end) for end in ("low", "high") if _has_band(panel)]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, **limits}, "overrides": overrides},
        "targets": [
            {
                "refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": query.expr,
                "legendFormat": query.legend,
            }
            for at, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _has_band(panel: DashboardPanel) -> bool:
    return any(query.legend.endswith(" low") for query in panel.queries)


def _band(end: str) -> dict[str, Any]:
    """Draw an end of an interval as a thin dashed line without a legend of its own."""
    return {
        "matcher": {"id": "byRegexp", "options": f".* {end}"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [2, 4]}},
            {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}},
        ],
    }


def text(page: DashboardPage) -> str:
    """Give a dashboard's file."""
    return json.dumps(dashboard(page), indent=2) + "\n"


def main() -> int:
    """Write the files, or compare them."""
    stale = []
    for page in PAGES:
        path = FOLDER / f"{page.uid}.json"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text(page):
                stale.append(path.name)
        else:
            path.write_text(text(page))
    if stale:
        print(f"{', '.join(stale)}: run python -m scripts.dashboards", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
