"""How far a lie moves a released number of the shipped plan before it is suppressed."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final

from aggregator.possible_sums import PossibleSums, SumRules
from aggregator.released import Capacity
from aggregator.tasks import build_task, task_plan, windows_from
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
    beyond      how far a sum may lie beyond its range; a true zero is moved by 100 more at most
    errors      the same from a true zero, in standard errors of a window, an hour and a week
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
    return {
        "section": spec.name,
        "series": task.series,
        "before": 100 * WORD_STEPS / full,
        "beyond": 100 * beyond / full,
        "most": 100 * most / full,
        "error": 100 * error / full,
        "errors_window": most / error,
        "errors_hour": _over(HOUR_S, task, most / error),
        "errors_week": _over(WEEK_S, task, most / error),
        "total": 100 * beyond * sqrt(spec.length) / (sums.n * spec.bound_steps),
    }


def _over(period_s: int, task: Task, errors: float) -> float | None:
    """The same lie in every window of a period: it adds up, noise by its root."""
    windows = period_s // task.window_s
    return errors * sqrt(windows) if windows else None
