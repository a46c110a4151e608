"""How far one replaced agent shifts `kernel_mix` unseen, by what the two parties can do about it.

No proofs: each method is held to what it catches, after how many windows, and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, log, sqrt
from typing import Final

import numpy as np

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from aggregator.leader.left_out import FALSELY_NAMED, shift_of
from aggregator.statistics.range_checks import SumRules
from bench.arithmetic import MANY_WEEKS
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from privacy.calibrate import SIGMA_UNIT
from privacy.plan import Plan, epsilon_of_mu
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

HOSTS: Final = (12_500, 2_000, 500)
SHARES: Final = (0.02, 0.1)
SUMS: Final = (4, 16)
"""Disjoint sums that a window is divided into."""
TRIALS: Final = 20
CAUGHT: Final = 0.95
MOST: Final = 400.0
DAY: Final = 1_440
WORD: Final = CHECK_WORDS
"""The first of kernel_mix."""
_PARTIES: Final = (bytes(32), bytes([1]) * 32)
_PERCENT: Final = "percent of full scale"


def measure(kept: Parts) -> Measured:
    rows = [
        row
        for hosts in HOSTS
        for row in kept.get(f"liar_{hosts}", partial(_methods, hosts))["rows"]
    ]
    of = {(row["hosts"], row["method"]): row for row in rows}
    day = f"{_PERCENT}, of a day's mean, with leave_out = 0.1"
    figures = [
        Figure("one_liar_shift_percent", of[12_500, "left out, 10 %"]["caught_from"], day),
        Figure(
            "one_liar_shift_percent_nobody_left_out", of[12_500, "range"]["caught_from"], _PERCENT
        ),
    ]
    return Measured(figures, {"one_liar": rows})


def _task(hosts: int) -> tuple[Plan, Task]:
    plan = replace(default_plan(), hosts=hosts, n_min=hosts * 4 // 5, t=-(-hosts // 10))
    (planned,) = (task for task in plan.tasks if task.series == "minute")
    windows = windows_from(planned, 0, MANY_WEEKS)
    return plan, build_task(Catalogue.load(), task_plan(plan, planned, windows, _PARTIES))


def _methods(hosts: int) -> Part:
    """Give a row for each method.

    caught_from  percent of full scale of kernel_mix from which a lie is caught, None: never
    windows      minutes after which
    errors       times that a release's errors grow
    """
    plan, task = _task(hosts)
    spec, sums = task.sections[0], SumRules(Catalogue.load()).of(task, hosts)
    error = 100 * spec.sigma_1024 / SIGMA_UNIT * sqrt(hosts) / (hosts * spec.cap_steps)
    beyond = sums.reach * error

    def row(method: str, caught: float | None, windows: float, errors: float) -> Part:
        return {"hosts": hosts, "method": method, "caught_from": caught, "windows": windows,
                "errors": errors}  # fmt: skip

    rows = [row("check words", None, 0, 1), row("range", 100 + beyond, 1, 1)]
    # Each sum has the whole noise, so that fewer of its hosts than of the fleet hide each other.
    rows += [row(f"{k} sums", 100 / k + beyond, 1, sqrt(k)) for k in SUMS]
    for share in SHARES:
        name = f"left out, {100 * share:g} %"
        rows.append(row(name, _caught_from(task, share), DAY, 1 / sqrt(1 - share)))
        passed = ceil(log(hosts / FALSELY_NAMED) / log(1 / share))
        rows.append(
            row(f"{name}, window suppressed", 100 + beyond, passed / share, 1 / sqrt(1 - share))
        )
    # A window that is answered again without one host leaves that host's own noise alone.
    weight = sum(section.weight_millionths for section in task.sections) / 1e6
    alone = plan.mu_1e9 / 1e9 * sqrt(plan.h * weight / plan.tasks[0].T)
    rows.append(
        row("answered again", 100 / hosts + beyond / sqrt(hosts), 1, 1)
        | {"epsilon": epsilon_of_mu(alone, 1e-9)}
    )
    rows.append(row("range proofs", 100 / hosts, 1, 1))
    return {"rows": rows}


def _caught_from(task: Task, share: float) -> float:
    """Percent of a day's mean from which CAUGHT of the liars are named, to a tenth of it."""
    spec, hosts = task.sections[0], task.n_max
    error = 100 * spec.sigma_1024 / SIGMA_UNIT / sqrt(hosts) / spec.cap_steps
    lie = 7 * error / sqrt(share * DAY)
    missed = TRIALS
    while missed > (1 - CAUGHT) * TRIALS and lie < MOST:
        lie, missed = 1.1 * lie, 0
        for trial in range(TRIALS):
            missed += not _named(task, share, lie, trial)
            if missed > (1 - CAUGHT) * TRIALS:
                break
    return lie


def _named(task: Task, share: float, lie: float, seed: int) -> bool:
    """Play a day of minutes in which the first host adds to a word. No other may be named."""
    rng = np.random.default_rng(seed)
    hosts, spec = task.n_max, task.sections[0]
    names = [number.to_bytes(16) for number in range(hosts)]
    left = [
        rng.choice(hosts, int(share * hosts), replace=False).astype(np.int32) for _ in range(DAY)
    ]
    n = hosts - int(share * hosts)
    # A day's swing of a third, and six steps of five points of full scale, as jobs come and go.
    truth = 0.1 * spec.cap_steps * (1 + np.sin(np.arange(DAY) * 2 * np.pi / DAY) / 3)
    truth += (
        0.05
        * spec.cap_steps
        * (np.searchsorted(np.sort(rng.integers(0, DAY, 6)), np.arange(DAY)) % 2)
    )
    noise = task.sigma_vector_1024() / SIGMA_UNIT / sqrt(n)
    rows = rng.standard_normal((DAY, task.d), np.float32) * noise + truth[:, None]
    told = np.array([0 not in places for places in left])
    rows[:, WORD] += told * lie / 100 * spec.cap_steps * hosts / n
    found = shift_of(task, names, list(rows.astype(np.float32)), left)
    if found and found[0].host_id != names[0]:
        raise AssertionError("an honest host was named")
    return bool(found)
