"""From a task's expiry on nobody reports, admits or answers, each by its own clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.enrolment.tasks import build_task
from aggregator.leader.window_closing import HELPER_S
from privacy.errors import ParameterError
from tests.agent_world import T0 as FIRST
from tests.agent_world import World as AgentWorld
from tests.agent_world import close_window, started
from tests.aggregator.enrolment.test_tasks import PLAN
from tests.privacy.test_helper_batch_rules import Bench
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    build_world,
    honest_reports,
    open_epochs,
    true_sum,
)
from wire.catalogue import Catalogue

END = T0 + WINDOW_S
END_OF_FIRST = FIRST + 60


def helper_of(folder: Path, expiry: int) -> Bench:
    folder.mkdir(exist_ok=True)
    bench = Bench(build_world(10, expiry=expiry), folder)
    bench.runner.submit_epochs(open_epochs(bench.world))
    return bench


@pytest.mark.parametrize(("now_s", "refusal"), [(END + 3599, ""), (END + 3600, "task_expired")])
def test_helper_answers_until_the_task_expires(tmp_path: Path, now_s: int, refusal: str) -> None:
    """The window ended an hour before the expiry, and its retention is six."""
    bench = helper_of(tmp_path, END + 3600)
    batch = bench.batch(bench.world.hosts)
    bench.clock.now_s = now_s
    reply = bench.ask(batch)
    assert (reply.refusal, bool(reply.share)) == (refusal, not refusal)


def test_helper_repeats_no_answer_of_an_expired_task(tmp_path: Path) -> None:
    bench = helper_of(tmp_path, END + 3600)
    batch = bench.batch(bench.world.hosts)
    assert bench.ask(batch).share
    bench.clock.now_s = END + 3600
    assert bench.ask(batch).refusal == "task_expired"


def test_window_that_the_expiry_leaves_no_time_for_is_answered_by_nobody(tmp_path: Path) -> None:
    """Its lateness ends at the expiry: hosts withhold it, the Leader and the Helper refuse it."""
    expiry = END + 30
    bench = helper_of(tmp_path / "helper", expiry)
    assert bench.ask(bench.batch(bench.world.hosts)).refusal == "task_expired"
    (tmp_path / "leader").mkdir()
    fleet = Fleet(bench.world, tmp_path / "leader")
    fleet.send_epochs(open_epochs(bench.world))
    fleet.send(honest_reports(bench.world))
    assert (fleet.leader.admitted, fleet.leader.rejected["task_expired"]) == (0, 10)


def test_leader_closes_before_the_task_expires(tmp_path: Path) -> None:
    """Too few hosts wait longer, but never so long that the Helper can no longer answer."""
    world = build_world(10, n_min=10, expiry=END + 600)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world, world.hosts[:5]))
    fleet.tick(END + 600 - HELPER_S)
    told = [(one.window_start_s, one.reason) for one in fleet.store.suppressed]
    assert (T0, "n_min") in told


@pytest.mark.parametrize("late_s", [30, 31])
def test_honest_window_of_a_task_that_ends_is_released(tmp_path: Path, late_s: int) -> None:
    world = build_world(10, expiry=END + 32)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world), END + late_s)
    fleet.tick(END + late_s)
    (released,) = fleet.store.written
    assert np.array_equal(released.vector, true_sum(world, world.hosts))


@pytest.mark.parametrize(("late_s", "sealed"), [(99, 1), (100, 0)])
def test_host_seals_nothing_for_an_expired_task(late_s: int, sealed: int) -> None:
    world = AgentWorld(1)
    task = world.task(expiry=END_OF_FIRST + 100, lateness_s=99)
    runtime, (identity,) = started(world, [task])
    close_window(runtime, world, task, identity, FIRST, late_s=late_s)
    assert len(runtime.committed) == sealed
    assert [one.reason.value for one in runtime.refused] == ["task_expired"] * (1 - sealed)
    assert all(r.expires_s == task.expiry for c in runtime.committed for r in c.records)


def test_host_withholds_a_window_that_the_expiry_leaves_no_time_for() -> None:
    world = AgentWorld(1)
    task = world.task(expiry=END_OF_FIRST + 30)
    runtime, (identity,) = started(world, [task])
    close_window(runtime, world, task, identity, FIRST)
    assert (runtime.committed, runtime.refused[0].reason.value) == ([], "task_expired")


def test_task_is_built_with_the_time_to_release_its_last_window() -> None:
    over_s = PLAN.last_window + PLAN.window_s + 6 * 3600
    assert build_task(Catalogue.load(), replace(PLAN, expiry=over_s)).expiry == over_s
    with pytest.raises(ParameterError, match="retention of the last window"):
        build_task(Catalogue.load(), replace(PLAN, expiry=over_s - 1))
