"""What travels in clear is what the threat model lists, and nothing of it follows the load."""

from __future__ import annotations

import dataclasses

import numpy as np

from edge_agent.ledger.ledger_records import SealedRecord
from tests.agent_world import T0, World, close_window, epochs, reports, started
from wire.epoch import Epoch, EpochHeader
from wire.report import Report, ReportHeader

IN_CLEAR = {
    Report: "host_id epoch_id task_id header tag_h box raw",
    ReportHeader: "cohort d window report_id",
    Epoch: "header seal_h seal_l signature",
    EpochHeader: (
        "host_id epoch_id not_before not_after helper_kid leader_kid roster_ver ledger_ctr"
    ),
}
"""The page names each of these; sealed parts, tags and signatures apart."""


def played(load: int) -> list[SealedRecord]:
    """Three windows of one host that tells of so many base units."""
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    rows = np.full((1, task.d - 2), load, dtype=np.int64)
    for number in range(3):
        close_window(runtime, world, task, tid, T0 + 60 * number, rows)
    return runtime.published


def test_nothing_else_travels_in_clear() -> None:
    for message, names in IN_CLEAR.items():
        assert [field.name for field in dataclasses.fields(message)] == names.split()


def test_idle_and_busy_hosts_send_the_same_but_for_what_is_sealed() -> None:
    idle, busy = played(0), played(16_000)
    assert [(r.topic, len(r.key), len(r.value)) for r in idle] == [
        (r.topic, len(r.key), len(r.value)) for r in busy
    ]
    clear = [
        [(r.header.cohort, r.header.d, r.header.window) for r in reports(records)]
        + [(e.header.not_before, e.header.not_after, e.header.ledger_ctr) for e in epochs(records)]
        for records in (idle, busy)
    ]
    assert clear[0] == clear[1]


def test_each_start_of_an_agent_shows_as_an_epoch() -> None:
    """The page says so: the counter tells how many epochs a host ever opened."""
    world = World(1)
    task = world.task()
    told: list[int] = []
    view = world.empty_view()
    for _ in range(3):
        runtime, _ = started(world, [task], participant=world.participant(view))
        (epoch,) = epochs(runtime.published)
        told.append(epoch.header.ledger_ctr)
        host = dataclasses.replace(view.hosts[0], epoch_ctr=epoch.header.ledger_ctr)
        view = dataclasses.replace(view, hosts=(host,))
    assert told == [1, 2, 3]
