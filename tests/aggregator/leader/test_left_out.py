"""Who is left out by chance: what is drawn, and which host a moving sum names."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from aggregator.leader.left_out import DAY_S, LeftOut
from aggregator.protocol.released import ReleasedWindow
from pointillist.plan_file import default_plan
from privacy.calibrate import SIGMA_UNIT
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

HOSTS = [number.to_bytes(16) for number in range(400)]
LIAR = HOSTS[17]
CHAIN = ("minute", 0)
WINDOWS = 600


@pytest.fixture(scope="module")
def task() -> Task:
    plan = default_plan()
    (minute, *_) = plan.tasks
    minute = replace(minute, sections=minute.sections[:1])
    plan = replace(plan, hosts=400, n_min=320, t=40, tasks=(minute,))
    windows = windows_from(minute, 0, 8)
    return build_task(Catalogue.load(), task_plan(plan, minute, windows, (bytes(32), b"1" * 32)))


def play(task: Task, left_out: LeftOut, errors: float, step: float = 0.0) -> None:
    """Release WINDOWS and one of the next day, in which the liar adds to a word.

    errors      standard errors of a window that it adds
    step        the same, by which the fleet itself moves for a third of the windows
    """
    rng = np.random.default_rng(4)
    sigma = task.sigma_vector_1024() / SIGMA_UNIT * np.sqrt(len(HOSTS))
    for number in [*range(WINDOWS), DAY_S // task.window_s]:
        out = left_out.draw(task, HOSTS)
        vector = rng.standard_normal(task.d) * sigma
        moved = errors * (LIAR not in out) + step * (WINDOWS // 3 < number < 2 * WINDOWS // 3)
        vector[CHECK_WORDS + 5] += moved * sigma[-1]
        start, n = number * task.window_s, len(HOSTS) - len(out)
        steps = vector.astype(np.int64)
        released = ReleasedWindow(bytes(32), task, 0, start, n, steps, {}, start, start)
        left_out.released(CHAIN, released, out)


@pytest.mark.parametrize("step", [0.0, 10.0])
def test_host_that_goes_on_lying_is_named_once_the_day_is_over(task: Task, step: float) -> None:
    left_out = LeftOut(0.1, Random(1))
    play(task, left_out, 3, step)
    (shift,) = left_out.named.values()
    assert (shift.host_id, shift.section) == (LIAR, "kernel_mix[5]")
    error = 100 * task.sections[0].sigma_1024 / SIGMA_UNIT / np.sqrt(400)
    assert shift.percent == pytest.approx(3 * error / task.sections[0].cap_steps, rel=0.5)
    assert LIAR in left_out.draw(task, HOSTS)


@pytest.mark.parametrize(("errors", "step"), [(0.0, 0.0), (0.5, 0.0), (0.0, 30.0)])
def test_chance_small_lies_and_what_the_fleet_does_name_nobody(
    task: Task, errors: float, step: float
) -> None:
    left_out = LeftOut(0.1, Random(2))
    play(task, left_out, errors, step)
    assert not left_out.named


def test_draws_leave_enough_hosts_and_long_windows_whole(task: Task) -> None:
    left_out = LeftOut(0.1, Random(3))
    assert len(left_out.draw(task, HOSTS)) == 40
    assert len(left_out.draw(task, HOSTS[:330])) == 5  # half of those above n_min
    assert not left_out.draw(task, HOSTS[:320])
    assert not left_out.draw(replace(task, window_s=DAY_S), HOSTS)
    assert not LeftOut().draw(task, HOSTS)


def test_suppressed_windows_clear_the_hosts_that_were_left_out_of_them(task: Task) -> None:
    """Windows pass only without the liar; one that passes with it clears it."""
    left_out, rng = LeftOut(0.1, Random(4)), np.random.default_rng(5)
    for number in range(300):
        out = left_out.draw(task, HOSTS)
        start = number * task.window_s
        if LIAR in out or number == 60:
            vector = rng.integers(0, 9, task.d)
            window = ReleasedWindow(bytes(32), task, 0, start, 360, vector, {}, start, start)
            left_out.released(CHAIN, window, out)
        else:
            left_out.suppressed(CHAIN, task, start, out)
        if number == 60:
            assert not left_out.named
    assert set(left_out.named) == {LIAR}
