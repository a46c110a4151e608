"""Everything `pointillist plan` says of a plan, as values; the command only prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Final

from pointillist.plan_file import shipped_counts
from privacy.accountant import SectionNoise, gate
from privacy.calibrate import MILLION
from privacy.indicator_bias import SectionCrowding, crowding
from privacy.plan import (
    ExpectedRow,
    Plan,
    PlannedTask,
    SectionFigures,
    SectionShape,
    coalition_epsilons,
    collusion_epsilons,
    expected_rows,
    group_epsilons,
    indicator_sigma_hosts,
    section_figures,
)
from wire.catalogue import Catalogue
from wire.epoch import EPOCH_BYTES
from wire.fields import Scheme
from wire.report import report_length

DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
EPOCHS_PER_DAY: Final = 24
OTHERWISE_M: Final = 2
"""Indicators a host, where a plan has none and is asked what they would see."""

# One core, between two machines that bench-round was run on: of a report of 1,000 words in 12
# sections noise takes 0.11 to 0.36 ms, encoding, mask and box 43 to 80 us, the participant 0.25 to
# 0.55 ms. An epoch is two seals (74-86 us each) and a signature (22 us): 24 a day hardly count.
DRAW_CPU_S: Final = 0.36e-6
REPORT_CPU_S: Final = 0.4e-3
WORD_CPU_S: Final = 0.043e-6
EPOCH_CPU_S: Final = 200e-6

Shapes = Mapping[str, SectionShape]


@dataclass(frozen=True, slots=True)
class TaskFigures:
    series: str
    window_s: int
    windows: int
    weight: float
    coordinates: int
    report_bytes: int
    sections: tuple[SectionFigures, ...]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What one live agent spends: reports and hourly epochs."""

    bytes_per_day: int
    cpu_seconds_per_day: float
    cpu_percent_of_one_core: float


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """Which published causes of interruption are expected above two errors in one window."""

    section: str
    days: float
    standard_error_hosts: float
    above: tuple[ExpectedRow, ...]
    below: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan's figures.

    sigma_factor_at_cap  what the noise grows by when t covers an operator at the cap
    coalition_epsilon    for one host-week, if the Leader pools with several operators of t hosts
    collusion_epsilon    for one host, if both aggregators pool what they have
    group_epsilon        for several hosts or weeks of one person, at the same noise
    accountant_epsilon   dp-accounting's figure for a week, where it was asked for
    crowding             what hosts of simulated fleets would leave out, by indicator section
    """

    plan: str
    scheme: str
    epsilon: float
    delta: float
    mu: float
    hosts: int
    n_min: int
    t: int
    h: int
    operator_cap_hosts: int
    operator_cap_percent: float
    sigma_factor_at_cap: float
    tasks: tuple[TaskFigures, ...]
    costs: HostCosts
    weekly_indicator_hosts: float
    visible: tuple[VisibleRows, ...]
    coalition_epsilon: dict[str, float]
    collusion_epsilon: dict[str, float]
    group_epsilon: dict[str, float]
    accountant_epsilon: float | None
    crowding: tuple[SectionCrowding, ...]


def catalogue_shapes(plan: Plan, catalogue: Catalogue) -> dict[str, SectionShape]:
    """Resolve the plan's sections, keyed by name; KeyError for one the catalogue lacks."""
    shapes = {}
    for task in plan.tasks:
        for planned in task.sections:
            section = catalogue.section(planned.name)
            cap, bound, q = section.resolve(plan.gpus_per_host, task.window_s)
            shapes[planned.name] = SectionShape(str(section.kind), section.length, cap, bound, q)
    return shapes


def coordinates_of(task: PlannedTask, shapes: Shapes) -> int:
    """Words of a report of a task: its sections and the two that count hosts."""
    return 2 + sum(shapes[section.name].length for section in task.sections)


def plan_report(plan: Plan, shapes: Shapes, accountant: bool = False) -> PlanReport:
    """Compute all figures. Raises ParameterError naming the bound that the plan breaks."""
    plan.check()
    tasks = tuple(_task(plan, task, shapes) for task in plan.tasks)
    cap = plan.operator_cap
    masked = plan.scheme == "masked"
    weekly_error = _weekly_indicator_error(plan, tasks)
    return PlanReport(
        plan=plan.name,
        scheme=plan.scheme,
        epsilon=plan.epsilon_millionths / MILLION,
        delta=plan.delta_1e12 / 10**12,
        mu=plan.mu_1e9 / 10**9,
        hosts=plan.hosts,
        n_min=plan.n_min,
        t=plan.t,
        h=plan.h,
        operator_cap_hosts=cap,
        operator_cap_percent=100 * cap / plan.hosts,
        sigma_factor_at_cap=sqrt(plan.h / (plan.n_min - cap)) if masked else 1.0,
        tasks=tasks,
        costs=_costs(plan, tasks),
        weekly_indicator_hosts=weekly_error,
        visible=tuple(_visible(plan, tasks, weekly_error)),
        coalition_epsilon=coalition_epsilons(plan),
        collusion_epsilon=collusion_epsilons(plan),
        group_epsilon=group_epsilons(plan),
        accountant_epsilon=_accountant(plan, tasks, shapes) if accountant else None,
        crowding=tuple(_crowding(plan, shapes)),
    )


def _task(plan: Plan, task: PlannedTask, shapes: Shapes) -> TaskFigures:
    coordinates = coordinates_of(task, shapes)
    return TaskFigures(
        series=task.series,
        window_s=task.window_s,
        windows=task.T,
        weight=task.weight_millionths / MILLION,
        coordinates=coordinates,
        report_bytes=report_length(coordinates, Scheme(plan.scheme)),
        sections=tuple(section_figures(plan, task, s, shapes[s.name]) for s in task.sections),
    )


def _costs(plan: Plan, tasks: Iterable[TaskFigures]) -> HostCosts:
    size = float(EPOCHS_PER_DAY * EPOCH_BYTES[Scheme(plan.scheme)])
    cpu_s = EPOCHS_PER_DAY * EPOCH_CPU_S
    for task in tasks:
        reports = DAY_S / task.window_s
        size += reports * task.report_bytes
        cpu_s += reports * report_cpu_s(task.coordinates)
    return HostCosts(round(size), cpu_s, 100 * cpu_s / DAY_S)


def report_cpu_s(coordinates: int) -> float:
    return coordinates * (DRAW_CPU_S + WORD_CPU_S) + REPORT_CPU_S


def _crowding(plan: Plan, shapes: Shapes) -> Iterable[SectionCrowding]:
    """Hold each m against simulated fleets, where these have counted windows of that length."""
    counts = shipped_counts()
    for task in plan.tasks:
        for section in task.sections:
            found, m = counts.get((section.name, task.window_s)), shapes[section.name].m
            if m and found is not None:
                error = partial(
                    indicator_sigma_hosts, plan, section.weight_millionths, windows=task.T
                )
                yield crowding(section.name, m, plan.hosts, found, error)


def _weekly_indicator_error(plan: Plan, tasks: Iterable[TaskFigures]) -> float:
    """Of the plan's weekly causes; where it has none, of two a host by its first section."""
    for task, _, error in _causes(tasks):
        if task.window_s == WEEK_S:
            return error
    weight = plan.tasks[0].sections[0].weight_millionths
    return indicator_sigma_hosts(plan, weight, OTHERWISE_M, 2)


def _causes(tasks: Iterable[TaskFigures]) -> Iterable[tuple[TaskFigures, str, float]]:
    """Give each section that counts hosts of a cause over a week or longer, and its error."""
    for task in tasks:
        for section in task.sections:
            error, long = section.sigma_hosts, task.window_s >= WEEK_S
            if error is not None and long and section.name != "applications_seen":
                yield task, section.name, error


def _visible(plan: Plan, tasks: Iterable[TaskFigures], error: float) -> list[VisibleRows]:
    found = [_rows(plan, name, task.window_s / DAY_S, own) for task, name, own in _causes(tasks)]
    if found:
        return found
    return [_rows(plan, f"indicators, m = {OTHERWISE_M}", days, error) for days in (7, 56)]


def _rows(plan: Plan, section: str, days: float, error: float) -> VisibleRows:
    rows = list(expected_rows(plan.hosts, days, error))
    above = tuple(row for row in rows if row.above_noise)
    return VisibleRows(section, days, error, above, len(rows) - len(above))


def _accountant(plan: Plan, tasks: Iterable[TaskFigures], shapes: Shapes) -> float:
    noises = [
        SectionNoise(
            shapes[section.name].delta_sq,
            section.sigma_local_1024,
            section.windows,
            shapes[section.name].length,
            plan.h,
        )
        for task in tasks
        for section in task.sections
    ]
    return gate(noises, plan.epsilon_millionths, plan.delta_1e12)
