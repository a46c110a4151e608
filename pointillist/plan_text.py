"""A plan's figures for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .plan_report import PlanReport, TaskFigures, VisibleRows

_PERIODS = ("minute", "hour", "day", "week")
_GROUPS = {
    "hosts_2": "2 hosts of one person",
    "hosts_8": "8 hosts of one person",
    "weeks_4": "4 weeks of a host",
    "weeks_52": "52 weeks of a host",
    "replace": "one host's data replaced by other data",
}


def plan_text(report: PlanReport) -> str:
    """Lay the report out in at most 100 columns."""
    return "\n".join(
        part.rstrip()
        for line in _lines(report)
        for part in textwrap.wrap(line, 100, subsequent_indent="  ") or [""]
    )


def _lines(report: PlanReport) -> Iterator[str]:
    yield (
        f"Plan {report.plan}, scheme {report.scheme}: epsilon {report.epsilon:g}, delta "
        f"{report.delta:g} per host and any 168 hours (mu {report.mu:.9f})"
    )
    yield from _cohort(report)
    yield (
        "Noise is in units of Delta, the most that one host can change a section (L2): sigma_total "
        "is what privacy needs, sigma_local what each host adds, released what a release carries."
    )
    for task in report.tasks:
        yield ""
        yield from _task(task)
    yield ""
    yield from _costs(report)
    yield ""
    if _has_indicators(report):
        for rows in report.visible:
            yield from _visible(rows)
        yield ""
    yield from _protection(report)


def _cohort(report: PlanReport) -> Iterator[str]:
    if report.scheme == "local":
        yield f"Cohort: {report.hosts:,} hosts; each adds the whole noise, no Helper is needed."
        return
    yield (
        f"Cohort: {report.hosts:,} hosts, n_min {report.n_min:,}, t {report.t:,}, "
        f"h = n_min - t = {report.h:,}. Fewer accepted hosts than n_min release nothing."
    )
    yield (
        f"Operator cap: {report.operator_cap_hosts:,} hosts ({report.operator_cap_percent:.0f} % "
        f"of the roster). t must cover the largest operator; at the cap every error is "
        f"{report.sigma_factor_at_cap:.2f} times as large."
    )


def _task(task: TaskFigures) -> Iterator[str]:
    yield (
        f"{task.series}: windows of {task.window_s:,} s, T = {task.windows:,}, weight "
        f"{task.weight:g}; {task.coordinates:,} words, {task.report_bytes:,} B a report"
    )
    yield (
        f"  {'section':<22}{'weight':>7}{'sigma_total':>13}{'sigma_local':>13}{'released':>11}"
        f"  error (% of full scale) a"
    )
    yield f"  {'':<22}{'':>7}{'Delta':>13}{'Delta':>13}{'Delta':>11}" + "".join(
        f"{period:>8}" for period in _PERIODS
    )
    shown = task.sections[:1] if _all_equal(task) else task.sections
    for section in shown:
        name = "each section" if len(shown) < len(task.sections) else section.name
        line = (
            f"  {name:<22}{section.weight:>7.4g} {section.sigma_total:>12,.2f}"
            f" {section.sigma_local:>12,.4f} {section.sigma_released:>10,.2f}"
        )
        if section.sigma_hosts is not None:
            yield line + f"   {section.sigma_hosts:.1f} hosts a window"
        else:
            yield line + "".join(_percent(section.error_percent[name]) for name in _PERIODS)


def _all_equal(task: TaskFigures) -> bool:
    return len({(s.weight, s.kind, s.sigma_local_1024) for s in task.sections}) == 1


def _percent(value: float | None) -> str:
    if value is None:
        return f"{'-':>8}"
    # Above 10,000 % the digits say nothing but how far it is from being of use.
    return f" {value:>7.4g}" if value < 10_000 else f" {'>9999':>7}"


def _costs(report: PlanReport) -> Iterator[str]:
    costs = report.costs
    yield (
        f"A live agent, estimated: {costs.bytes_per_day / 1e6:.2f} MB and "
        f"{costs.cpu_seconds_per_day:.1f} s of CPU a day "
        f"({costs.cpu_percent_of_one_core:.3f} % of one core) to publish."
    )
    if _has_indicators(report):
        yield (
            f"Weekly indicators at m = 2: standard error {report.weekly_indicator_hosts:.1f} hosts."
        )


def _has_indicators(report: PlanReport) -> bool:
    """Whether the plan counts hosts at all; only then are there incidents to see."""
    return any(s.sigma_hosts is not None for task in report.tasks for s in task.sections)


def _visible(rows: VisibleRows) -> Iterator[str]:
    total = len(rows.above) + rows.below
    yield (
        f"At Llama 3's published rates, {rows.section} over {rows.days:g} days (standard error "
        f"{rows.standard_error_hosts:.1f} hosts): {len(rows.above)} of {total} causes above noise"
    )
    named = ", ".join(f"{row.cause} {row.expected_hosts:.0f}" for row in rows.above)
    yield f"  {named or 'none'}; the other {rows.below} would read as below noise"


def _epsilon(value: float) -> str:
    """Whole above 10, else two figures: 0.04 is not 0."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _protection(report: PlanReport) -> Iterator[str]:
    yield "The same noise gives, for more than one host-week, epsilon"
    yield "  " + "; ".join(f"{_GROUPS[k]} {v:.3g}" for k, v in report.group_epsilon.items())
    if report.collusion_epsilon:
        each = report.collusion_epsilon
        week, hour, window = (_epsilon(each[name]) for name in ("week", "hour", "window"))
        yield (
            f"If Leader and Helper collude, only a host's own noise is left: epsilon {week} a "
            f"week, {hour} an hour, {window} a window. Treat that as no protection."
        )
    if report.accountant_epsilon is not None:
        yield f"dp-accounting's figure for a week, slack included: {report.accountant_epsilon:.6f}"
