"""A plan's figures for people."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from operator import attrgetter
from typing import Final

from privacy.indicator_bias import BIAS_ERRORS, SectionCrowding
from privacy.plan import PERIODS_S, SectionFigures

from .plan_report import PlanReport, TaskFigures, VisibleRows
from .table import Column, cells_of, table_lines

_PERIODS: Final = ("minute", "hour", "day", "week")
_A: Final = {name: f"an {name}" if name == "hour" else f"a {name}" for name in _PERIODS}
_GROUPS: Final = {
    "hosts_2": "2 hosts of one person",
    "hosts_8": "8 hosts of one person",
    "weeks_4": "4 weeks of a host",
    "weeks_52": "52 weeks of a host",
    "replace": "one host's data replaced by other data",
}


def plan_text(report: PlanReport, width: int, *, short: bool = False) -> str:
    return "\n".join(
        part.rstrip()
        for line in (_short_lines(report) if short else _lines(report, width))
        for part in textwrap.wrap(line, width, subsequent_indent="  ") or [""]
    )


def _short_lines(report: PlanReport) -> Iterator[str]:
    yield from _head(report)
    yield from _costs(report)
    yield from _protection(report)


def _head(report: PlanReport) -> Iterator[str]:
    yield (
        f"Plan {report.plan}, scheme {report.scheme}: epsilon {report.epsilon:g}, delta "
        f"{report.delta:g} per host and any 168 hours (mu {report.mu:.9f})"
    )
    yield from _in_short(report)
    yield from _cohort(report)


def _lines(report: PlanReport, width: int) -> Iterator[str]:
    yield from _head(report)
    yield (
        "Below, weight is a section's part of the budget, T the windows that any week touches, and "
        "m how many causes or applications a host tells of at most. Noise is in units of Delta, "
        "the most that one host can change a section (L2): sigma_total is what privacy needs, "
        "sigma_local what each host adds, released what a release carries. Errors are standard "
        "errors in percent of full scale, over a minute, an hour, a day and a week."
    )
    for task in report.tasks:
        yield ""
        yield from _task(task, width)
    yield ""
    yield (
        "Means and shares of hosts are of those that measured. A host that did not sets one cell "
        "of the section, alone: it takes a word and no budget. How many measured is noisy, too: "
        "where a part p of the hosts measured a mean of r of full scale, its error is "
        "sqrt(1 + r^2) / p times the one above (r = 0.3 and p = 1: 1.04 times)."
    )
    yield ""
    yield from _costs(report)
    yield ""
    if report.crowding:
        yield from _crowding(report, width)
        yield ""
    if _has_indicators(report):
        for rows in report.visible:
            yield from _visible(rows)
        yield ""
    yield from _protection(report)


_USELESS_PERCENT: Final = 100 / 3
"""From here on three times the error is more than all there can be."""


def _in_short(report: PlanReport) -> Iterator[str]:
    sections = (section for task in report.tasks for section in task.sections)
    first = next((s for s in sections if s.sigma_hosts is None and any(_errors(s).values())), None)
    if first is None:
        return
    errors = _errors(first)
    told = ", ".join(f"{_short(error)} % over {_A[name]}" for name, error in errors.items())
    yield (
        f"In short: the standard error of {first.name} is {told}, of all there is. A number is "
        "worth reading from three times its error on."
    )
    useless = [name for name, error in errors.items() if error > _USELESS_PERCENT]
    if useless:
        yield f"WARNING: what is released over {_A[useless[-1]]} is mere noise."


def _short(percent: float) -> str:
    return f"{percent:,.0f}" if percent >= 10 else f"{percent:.2g}"


def _errors(section: SectionFigures) -> dict[str, float]:
    """Give period -> percent, of periods that are no shorter than a window."""
    found = {name: section.error_percent[name] for name in _PERIODS}
    return {name: error for name, error in found.items() if error is not None}


def _cohort(report: PlanReport) -> Iterator[str]:
    if report.scheme == "local":
        yield f"Cohort: {report.hosts:,} hosts; each adds the whole noise, no Helper is needed."
        return
    yield (
        f"Cohort: {report.hosts:,} hosts, n_min {report.n_min:,}, t {report.t:,}. With fewer "
        "accepted hosts than n_min nothing is released. Of t hosts one party may know all, so the "
        f"noise of the other h = n_min - t = {report.h:,} protects alone."
    )
    yield (
        f"Operator cap: {report.operator_cap_hosts:,} hosts ({report.operator_cap_percent:.0f} % "
        f"of the roster). t must cover the largest operator; at the cap every error is "
        f"{report.sigma_factor_at_cap:.2f} times as large."
    )


def _task(task: TaskFigures, width: int) -> Iterator[str]:
    yield (
        f"{task.series}: windows of {task.window_s:,} s, T = {task.windows:,}, weight "
        f"{task.weight:g}; {task.coordinates:,} words, {task.report_bytes:,} B a report"
    )
    shown = task.sections[:1] if _all_equal(task) else task.sections
    alike = len(shown) < len(task.sections)
    name = Column("section", (lambda _: "each section") if alike else attrgetter("name"))
    told = [column for column in _ERRORS if any(column.write(section) for section in shown)]
    columns = [name, *_NOISE, *told]
    lines = table_lines(columns, cells_of(columns, shown), width - 2)
    yield from (f"  {line}" for line in lines)


_NOISE: Final = (
    Column("weight", lambda section: f"{section.weight:.4g}", right=True),
    Column("sigma_total", lambda section: f"{section.sigma_total:,.2f}", right=True, leaves=0),
    Column("sigma_local", lambda section: f"{section.sigma_local:,.4f}", right=True, leaves=1),
    Column("released", lambda section: f"{section.sigma_released:,.2f}", right=True, leaves=2),
)


def _period(name: str) -> Callable[[SectionFigures], str]:
    return lambda section: _percent(section.error_percent[name], section.sigma_hosts)


def _hosts_a_window(section: SectionFigures) -> str:
    return "" if section.sigma_hosts is None else f"{section.sigma_hosts:.1f}"


_ERRORS: Final = (
    *(Column(name, _period(name), right=True) for name in _PERIODS),
    Column("hosts a window", _hosts_a_window, right=True),
    Column("m", lambda section: f"{section.m}" if section.m else "", right=True),
)


def _all_equal(task: TaskFigures) -> bool:
    return len({(s.weight, s.kind, s.sigma_local_1024) for s in task.sections}) == 1


def _percent(value: float | None, hosts: float | None) -> str:
    if hosts is not None:
        return ""
    if value is None:
        return "-"
    # Above 10,000 % the digits say nothing but how far it is from being of use.
    return f"{value:.4g}" if value < 10_000 else ">9999"


_CROWDING: Final = (
    Column("section", attrgetter("section")),
    Column("m", lambda row: f"{row.m}", right=True),
    Column("least m", lambda row: f"{row.least_m}", right=True),
    Column("hosts above m", lambda row: f"{100 * row.above_m:.2f} %", right=True),
    Column("low by", lambda row: f"{row.bias_hosts:.0f}", right=True),
    Column("bound", lambda row: f"{row.bias_bound_hosts:.0f}", right=True),
    Column("worst in", attrgetter("scenario"), leaves=0),
)


def _crowding(report: PlanReport, width: int) -> Iterator[str]:
    yield (
        "Hosts with more than m to tell leave some out. In the worst of the shipped scenarios, at "
        "this roster: host-windows above m, by how many hosts a cell is low on average if all of "
        "these hosts have it, the bound that a release would carry (95 %), and the least m that "
        f"keeps the first under {BIAS_ERRORS:g} standard errors in each."
    )
    rows: tuple[SectionCrowding, ...] = report.crowding
    for line in table_lines(_CROWDING, cells_of(_CROWDING, rows), width - 2):
        yield f"  {line}"
    yield "  counted by: make bench-simulator ARGS='--part coverage' (plans/indicator_counts.json)"


def _costs(report: PlanReport) -> Iterator[str]:
    costs = report.costs
    yield (
        f"A live agent, estimated: {costs.bytes_per_day / 1e6:.2f} MB and "
        f"{costs.cpu_seconds_per_day:.1f} s of CPU a day "
        f"({costs.cpu_percent_of_one_core:.3f} % of one core) to publish."
    )
    if _has_indicators(report):
        yield f"Weekly indicators: standard error {report.weekly_indicator_hosts:.1f} hosts."


def _has_indicators(report: PlanReport) -> bool:
    """Whether the plan counts hosts at all; only then are there incidents to see."""
    return any(s.sigma_hosts is not None for task in report.tasks for s in task.sections)


def _visible(rows: VisibleRows) -> Iterator[str]:
    total = len(rows.above) + rows.below
    yield (
        f"At Llama 3's published rates, {rows.section} over {rows.days:g} days (standard error "
        f"{rows.standard_error_hosts:.1f} hosts): {len(rows.above)} of {total} causes "
        "are expected above two standard errors"
    )
    named = ", ".join(f"{row.cause} {row.expected_hosts:.0f}" for row in rows.above)
    yield f"  {named or 'none'}; the other {rows.below} below them, seldom significant"


def _epsilon(value: float) -> str:
    """Whole above 10, else two figures: 0.04 is not 0."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _protection(report: PlanReport) -> Iterator[str]:
    yield "The same noise gives, for more than one host-week, epsilon"
    yield "  " + "; ".join(f"{_GROUPS[k]} {v:.3g}" for k, v in report.group_epsilon.items())
    if report.coalition_epsilon:
        two, *three = report.coalition_epsilon.values()
        more = f", with three {three[0]:.3g}" if three else ""
        yield f"If the Leader pools with two operators of t hosts, epsilon is {two:.3g}{more}."
    if report.collusion_epsilon:
        each = report.collusion_epsilon
        week, hour, window = (_epsilon(each[name]) for name in ("week", "hour", "window"))
        yield (
            f"If Leader and Helper collude, only a host's own noise is left: epsilon {week} a "
            f"week, {hour} an hour, {window} a window. Treat that as no protection."
        )
    if report.accountant_epsilon is not None:
        yield f"dp-accounting's figure for a week, slack included: {report.accountant_epsilon:.6f}"


def beside_text(plan: PlanReport, other: PlanReport, width: int) -> str:
    """Lay two plans' errors side by side, and what hosts would leave out."""
    tasks = [*other.tasks, *plan.tasks]
    names = dict.fromkeys(section.name for task in tasks for section in task.sections)
    rows = [(name, _cell(other, name), _cell(plan, name)) for name in names]
    said = (
        "Standard errors of one window, in percent of full scale or in hosts. Low by, in either: "
        "hosts that a cell lacks on average if all hosts with more than m to tell have it, in the "
        "worst of the shipped scenarios."
    )
    columns = (
        Column("section", lambda row: row[0]),
        Column(other.plan, lambda row: row[1].text, right=True),
        Column(plan.plan, lambda row: row[2].text, right=True),
        Column("smaller", lambda row: _times(row[1], row[2]), right=True),
        Column("low by", _both_low, right=True),
    )
    lines = [next(_head(other)), next(_head(plan)), said]
    folded = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ")]
    return "\n".join([*folded, "", *table_lines(columns, cells_of(columns, rows), width)])


@dataclass(frozen=True, slots=True)
class _Cell:
    """A section's error in one plan, and by how many hosts it is low; "-" where it has none.

    error   what is compared: hosts of a window, or percent of a second
    """

    text: str = "-"
    error: float = 0.0
    unit: str = ""
    low: str = ""


def _cell(report: PlanReport, name: str) -> _Cell:
    found = [section for task in report.tasks for section in task.sections if section.name == name]
    if not found:
        return _Cell()
    (section,) = found
    error, unit = section.sigma_hosts, "hosts"
    if error is None:
        error, unit = 100 * section.sigma_released / report.hosts, "%"
    window = {period: name for name, period in PERIODS_S.items()}.get(section.window_s)
    over = f"in {section.window_s / 86_400:g} days" if window is None else _A[window]
    low = "".join(f"{row.bias_hosts:,.0f}" for row in report.crowding if row.section == name)
    shown = f"{error:.3g} {unit} {over}"
    return _Cell(shown, error if unit == "hosts" else error * sqrt(section.window_s), unit, low)


def _both_low(row: tuple[str, _Cell, _Cell]) -> str:
    return " / ".join(filter(None, (row[1].low, row[2].low)))


def _times(before: _Cell, after: _Cell) -> str:
    known = before.error and after.error and before.unit == after.unit
    return f"{before.error / after.error:.2f} times" if known else ""
