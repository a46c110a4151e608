"""What pages quote that follows from the parameters alone: make bench-arithmetic, in seconds.

Noise and epsilons of the shipped plan and of ten equal sections, how far a lie moves a released
number before it is suppressed, and how far the measured rates of a detector carry. Nothing is drawn
or timed: a test holds the result file against this code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from math import exp, sqrt
from typing import Any, Final

import numpy as np

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from aggregator.protocol.released import Capacity
from aggregator.statistics.correction import Corrected, Detector, Rates, Reported, change, correct
from aggregator.statistics.range_checks import SumRanges, SumRules
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan, equal_sections
from pointillist.plan_report import PlanReport, catalogue_shapes, plan_report
from privacy.plan import Plan, SectionShape, epsilon_of_mu
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
LIED_ABOUT: Final = (
    "kernel_mix", "application_mix", "kernel_duration", "host_cpu", "applications_seen",
    "incidents", "hardware_faults",
)  # fmt: skip
HOSTS: Final = 12_500
WINDOW_S: Final = 60
SECTIONS: Final = 10
CLASSES: Final = 13
RIGHT, MISTAKEN = 0.9, 0.05
"""Of the incidents of a cause: told rightly, and taken for one other cause."""
HONEST: Final = (4_375, 1_000, 100, 10)
"""Hosts of a batch whose noise one party does not know, of h = 8,750 that the plan counts on."""
SECOND_LARGEST: Final = 0.3
"""Of the roster, beside an operator at the cap."""
RUNS: Final = (10, 50, 200, 1_000)
STRUCK: Final = (100, 1_000, 3_000)
MOVED: Final = 100
QUIET_HOURS: Final = (12, 1_000, 10_000, 100_000, 1_000_000)
_Z: Final = 1.959964


def tasks_of(plan: Plan, catalogue: Catalogue) -> Iterable[tuple[Task, SumRanges]]:
    """Give each task, and what all its hosts together can sum to."""
    rules = SumRules(catalogue)
    gpus = Capacity.of([((H100, plan.gpus_per_host),)] * plan.hosts)
    for planned in plan.tasks:
        windows = windows_from(planned, 0, MANY_WEEKS)
        task = build_task(catalogue, task_plan(plan, planned, windows, PARTIES))
        yield task, rules.of(task, plan.hosts, gpus)


def lie_figures(plan: Plan, catalogue: Catalogue) -> Iterable[Figure]:
    """Give what is the same for every section, and the reaches of the worst tasks."""
    reaches = {task.series: sums.reach for task, sums in tasks_of(plan, catalogue)}
    for series, reach in reaches.items():
        yield Figure(f"lie_reach_{series}", reach, "standard deviations")
    yield Figure("lie_one_host_percent", 100 / plan.hosts, "percent of full scale")
    yield Figure("lie_t_hosts_percent", 100 * plan.t / plan.hosts, "percent of full scale")


def lie_rows(plan: Plan, catalogue: Catalogue) -> list[Part]:
    """Give a row for each of LIED_ABOUT, in percent of a word's full scale.

    before      what one host or party moved it by, whatever was possible
    beyond      how far a window's sum may lie beyond its range
    most        how far a true zero is moved at most
    errors      the same in standard errors, and that of the sums of an hour and a week
    held        beyond, of the sums of an hour and a week
    total       how far the section's total may lie beyond its own range, percent of that range
    """
    return [
        _lie_row(task, spec, sums)
        for task, sums in tasks_of(plan, catalogue)
        for spec in task.sections
        if spec.name in LIED_ABOUT
    ]


def _lie_row(task: Task, spec: SectionSpec, sums: SumRanges) -> Part:
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
        "errors_hour": _lie_errors(HOUR_S, task, full / error, sums.reach),
        "errors_week": _lie_errors(WEEK_S, task, full / error, sums.reach),
        "held_hour": _lie_held(HOUR_S, task, 100 * beyond / full),
        "held_week": _lie_held(WEEK_S, task, 100 * beyond / full),
        "total": total,
        "total_week": _lie_held(WEEK_S, task, total),
    }


def _lie_errors(period_s: int, task: Task, full: float, reach: float) -> float | None:
    """The most that a period's sum passes with, in its own standard errors.

    full        full scale in standard errors of a window
    """
    windows = period_s // task.window_s
    return full * sqrt(windows) + reach if windows else None


def _lie_held(period_s: int, task: Task, percent: float) -> float | None:
    """What a sum over a period's windows may lie beyond its range."""
    windows = period_s // task.window_s
    return percent / sqrt(windows) if windows else None


def measure(_kept: Parts) -> Measured:
    return computed()


def computed() -> Measured:
    plan, catalogue = default_plan(), Catalogue.load()
    shipped = plan_report(plan, catalogue_shapes(plan, catalogue))
    figures = [*_of_plan(shipped), *lie_figures(plan, catalogue)]
    for scheme in ("masked", "local"):
        figures += _of_equal_sections(scheme)
    error = shipped.weekly_indicator_hosts
    tables = {
        "honest_hosts": [
            {"hosts": left, "epsilon": epsilon_of_mu(shipped.mu * sqrt(shipped.h / left), 1e-9)}
            for left in HONEST
        ],
        "lies": lie_rows(plan, catalogue),
        "correction": [_with_runs(runs, error) for runs in RUNS],
        "quiet_hours": [_with_quiet_hours(hours, error) for hours in QUIET_HOURS],
    }
    return Measured(figures, tables)


def _of_plan(report: PlanReport) -> Iterable[Figure]:
    yield Figure("mu", report.mu, "standard deviations")
    yield Figure("operator_cap_percent", report.operator_cap_percent, "percent of the roster")
    yield Figure("sigma_factor_at_cap", report.sigma_factor_at_cap, "times the noise")
    for name, epsilon in report.group_epsilon.items():
        yield Figure(f"group_epsilon_{_key(name)}", epsilon, "epsilon")
    for name, epsilon in report.coalition_epsilon.items():
        yield Figure(f"coalition_epsilon_{name}", epsilon, "epsilon")
    # The noise of a plan whose t is at the cap suffices for the hosts outside the largest operator.
    outside = report.n_min - report.operator_cap_hosts
    left = outside - SECOND_LARGEST * report.hosts
    largest = epsilon_of_mu(report.mu * sqrt(outside / left), report.delta)
    yield Figure("coalition_epsilon_two_largest_at_cap", largest, "epsilon")
    sure = 100 * exp(report.epsilon) / (1 + exp(report.epsilon))
    yield Figure("certainty_week_percent", sure, "percent, from 50")
    for name, epsilon in report.collusion_epsilon.items():
        yield Figure(f"collusion_epsilon_default_{_key(name)}", epsilon, "epsilon")
    for task in report.tasks:
        yield Figure(f"windows_{task.series}", task.windows, "windows that a week can touch")
        yield Figure(f"words_{task.series}", task.coordinates, "words of a report")
        for section in task.sections:
            if section.sigma_hosts is not None:
                yield Figure(f"error_hosts_{section.name}", section.sigma_hosts, "hosts a window")
                continue
            for period, percent in section.error_percent.items():
                if percent is not None:
                    yield Figure(
                        f"error_percent_{section.name}_{period}", percent, "percent of full scale"
                    )


def _of_equal_sections(scheme: str) -> Iterable[Figure]:
    content = {"hosts": HOSTS, "scheme": scheme, "epsilon": Decimal(2)}
    plan = equal_sections(content, WINDOW_S, SECTIONS)
    shape = SectionShape("mix", 60, 64, 64, 1)
    report = plan_report(plan, {one.name: shape for one in plan.tasks[0].sections})
    for period, percent in report.tasks[0].sections[0].error_percent.items():
        if percent is not None:
            yield Figure(f"error_percent_ten_{scheme}_{period}", percent, "percent of full scale")
    if scheme == "masked":
        for name, epsilon in report.collusion_epsilon.items():
            yield Figure(f"collusion_epsilon_ten_{_key(name)}", epsilon, "epsilon")


def _key(name: str) -> str:
    return name.replace(" ", "_").replace("'", "")


def _with_runs(runs: int, error: float) -> Part:
    """What a bench of so many runs of each cause leaves open; hosts, as 1.96 standard errors."""
    rates = _rates(runs)
    found = {struck: correct(_reported(rates, struck, error), rates) for struck in STRUCK}
    thousand = _reported(rates, 1_000, error)
    _, moved = change(thousand, _reported(rates, 1_000 - MOVED, error), rates)
    return {
        "runs": runs,
        "error": {str(struck): _hosts(one.standard_error[0]) for struck, one in found.items()},
        "other": _hosts(found[1_000].standard_error[1]),
        "change": _hosts(moved[0]),
        "high": float(found[1_000].high[0] * HOSTS),
    }


def _with_quiet_hours(hours: int, error: float) -> Part:
    """The interval of 1,000 struck hosts after so many hours without a false incident."""
    rates = _rates(200)
    nothing = np.zeros(CLASSES, np.int64)
    detector = Detector(
        "", ("",) * CLASSES, rates.trials, rates.counts, float(hours), nothing, ""
    )  # fmt: skip
    high = detector.rates(WEEK_S).false_alarm_high
    found: Corrected = correct(
        _reported(rates, 1_000, error), replace(rates, false_alarm_high=high)
    )
    low, top = (float(end[0] * HOSTS) for end in (found.low, found.high))
    return {"hours": hours, "low": low, "high": top}


def _rates(runs: int) -> Rates:
    detection = RIGHT * np.eye(CLASSES) + MISTAKEN * np.roll(np.eye(CLASSES), 1, axis=1)
    none = np.zeros(CLASSES)
    counts = np.rint(detection * runs).astype(np.int64)
    return Rates(detection, np.full(CLASSES, runs), counts, none, none, none)


def _reported(rates: Rates, struck: int, error: float) -> Reported:
    hosts: Any = np.zeros(CLASSES)
    hosts[0] = struck
    return Reported(HOSTS, rates.detection.T @ hosts, np.full(CLASSES, error))


def _hosts(share: float) -> float:
    return float(_Z * share * HOSTS)
