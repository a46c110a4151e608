"""A Leader has noise made for more hosts than it serves: nothing is ever released, and what lies on
the log carries a fraction of the noise that its cohort should add.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.agent_world import T0, World, calibrated, close_window, told
from wire import labels
from wire.fields import host_id, task_id, voucher_id
from wire.roster import PlanMembership, Roster, RosterEntry

SERIES, WEIGHT = "minute", 600_000


def roster(world: World, hosts: int) -> bytes:
    """A roster of the world's hosts and of others, `hosts` in all."""
    keys = [key.public_bytes for key in world.signing_keys]
    keys += [number.to_bytes(32) for number in range(len(keys), hosts)]
    entries = tuple(
        RosterEntry(
            host_id(pk), pk, f"op{i % 10}", 0, ((2, 8),), bytes(host_id(pk)), voucher_id(pk)
        )
        for i, pk in enumerate(keys)
    )
    body = Roster(1, 0, ((PlanMembership(SERIES, 0, WEIGHT),),), entries).encode_body()
    return world.sign(labels.ROSTER, body)


@pytest.mark.parametrize(("n_max", "served"), [(1_000, 799), (12_500, 500), (200_000, 500)])
def test_nothing_is_sent_into_a_cohort_that_cannot_reach_n_min(n_max: int, served: int) -> None:
    world = World(3)
    task = calibrated(
        dataclasses.replace(world.task(), n_max=n_max, n_min=n_max * 8 // 10, t=n_max // 10)
    )
    signed = world.sign_task(task)
    runtime = told(world.participant(), [signed], roster(world, served), world.keys())
    close_window(runtime, world, task, task_id(signed[:-128]), T0)
    assert runtime.committed == [], "no report, and nothing spent"
    assert {refusal.reason.value for refusal in runtime.refused} == {"roster_small"}


def test_a_cohort_of_n_min_is_served() -> None:
    world = World(3)
    task = world.task()
    signed = world.sign_task(task)
    runtime = told(world.participant(), [signed], roster(world, task.n_min), world.keys())
    close_window(runtime, world, task, task_id(signed[:-128]), T0)
    assert [len(commit.entries) for commit in runtime.committed] == [3]
    assert runtime.refused == []
