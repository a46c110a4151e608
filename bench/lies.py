"""How far a lie moves a released number of the shipped plan before it is suppressed."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from aggregator.protocol.released import Capacity
from aggregator.statistics.possible_sums import PossibleSums, SumRules
from bench.parts import Part
from bench.record import Figure
from privacy.plan import Plan
from wire.catalogue import Catalogue
from wire.task import SectionSpec, Task

PARTIES: Final = bytes(32), bytes([1]) * 32
H100: Final = 2
WORD_STEPS: Final = 1 << 31
"""What one host or party could add to a word while nothing held the sum to its range."""

MANY_WEEKS: Final = 32
"""Of every series more windows than a week can touch, as one without an end has."""

HOUR_S: Final = 3600
WEEK_S: Final = 604_800
SECTIONS: Final = (
    "kernel_mix", "application_mix", "kernel_duration", "host_cpu", "applications_seen",
    "incidents", "hardware_faults",
)  # fmt: skip


def tasks_of(plan: Plan, catalogue: Catalogue) -> Iterable[tuple[Task, PossibleSums]]:
    """Give each task, and what all its hosts together can sum to."""
    rules = SumRules(catalogue)
    gpus = Capacity.of([((H100, plan.gpus_per_host),)] * plan.hosts)
    for planned in plan.tasks:
        windows = windows_from(planned, 0, MANY_WEEKS)
        task = build_task(catalogue, task_plan(plan, planned, windows, PARTIES))
        yield task, rules.of(task, plan.hosts, gpus)


def figures_of(plan: Plan, catalogue: Catalogue) -> Iterable[Figure]:
    """Give what is the same for every section, and the reaches of the worst tasks."""
    reaches = {task.series: sums.reach for task, sums in tasks_of(plan, catalogue)}
    for series, reach in reaches.items():
        yield Figure(f"lie_reach_{series}", reach, "standard deviations")
    yield Figure("lie_one_host_percent", 100 / plan.hosts, "percent of full scale")
    yield Figure("lie_t_hosts_percent", 100 * plan.t / plan.hosts, "percent of full scale")


def table_of(plan: Plan, catalogue: Catalogue) -> list[Part]:
    """Give a row for each of SECTIONS, in percent of a word's full scale.

    before      what one host or party moved it by, whatever was possible
    beyond      how far a window's sum may lie beyond its range
    most        how far a true zero is moved at most
    errors      the same in standard errors, and that of the sums of an hour and a week
    held        beyond, of the sums of an hour and a week
    total       how far the section's total may lie beyond its own range, percent of that range
    """
    return [
        _row(task, spec, sums)
        for task, sums in tasks_of(plan, catalogue)
        for spec in task.sections
        if spec.name in SECTIONS
    ]


def _row(task: Task, spec: SectionSpec, sums: PossibleSums) -> Part:
    full = sums.n * spec.cap_steps
    error = float(sums.deviation[sums.places[spec.name].start])
    beyond = sums.reach * error
    most = full + beyond
    total = 100 * beyond * sqrt(spec.length) / (sums.n * spec.bound_steps)
    return {
        "section": spec.name,
        "series": task.series,
        "before": 100 * WORD_STEPS / full,
        "beyond": 100 * beyond / full,
        "most": 100 * most / full,
        "error": 100 * error / full,
        "errors_window": most / error,
        "errors_hour": _errors(HOUR_S, task, full / error, sums.reach),
        "errors_week": _errors(WEEK_S, task, full / error, sums.reach),
        "held_hour": _held(HOUR_S, task, 100 * beyond / full),
        "held_week": _held(WEEK_S, task, 100 * beyond / full),
        "total": total,
        "total_week": _held(WEEK_S, task, total),
    }


def _errors(period_s: int, task: Task, full: float, reach: float) -> float | None:
    """The most that a period's sum passes with, in its own standard errors.

    full        full scale in standard errors of a window
    """
    windows = period_s // task.window_s
    return full * sqrt(windows) + reach if windows else None


def _held(period_s: int, task: Task, percent: float) -> float | None:
    """What a sum over a period's windows may lie beyond its range."""
    windows = period_s // task.window_s
    return percent / sqrt(windows) if windows else None
