"""A report that nobody signed names a window that no task does: it holds no release up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aggregator.enrolment.tasks import sign_task
from aggregator.leader.leader_events import EpochsArrived
from aggregator.protocol.interfaces import TaskSeen
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    World,
    build_world,
    honest_reports,
    open_epochs,
    seeded_bytes,
)
from tests.reader_kit import OneProcess
from wire.envelope import Kind
from wire.report import EPOCH_AT, TASK_AT

HOSTS = 14


def with_next_version(world: World) -> World:
    """A next version of the task whose windows come after the old one's in their chain."""
    task = replace(world.task, version=world.task.version + 1)
    while True:
        identity, signed = sign_task(task, world.leader_key, world.helper_key)
        if identity > world.task_id:
            return replace(world, task=task, task_id=identity, task_bytes=signed)
        task = replace(task, last_window=task.last_window - task.window_s)


def test_forged_report_of_an_older_task_holds_up_no_release(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    open_epochs(world)
    fleet, newer = OneProcess(world, tmp_path), with_next_version(world)
    epochs = [host.epoch.encode() for host in world.hosts if host.epoch is not None]
    records = [fleet.epoch_log.append(Kind.EPOCH, epoch) for epoch in epochs]
    fleet.feed(EpochsArrived(records, T0))
    fleet.runner.feed(TaskSeen(newer.task_bytes, T0))
    fleet.helper.learn(TaskSeen(newer.task_bytes, T0))
    forged = bytearray(honest_reports(world, window=T0)[0].encode())
    forged[EPOCH_AT:TASK_AT] = seeded_bytes("an epoch of nobody", 0)[:16]
    fleet.clock.now_s = T0 + WINDOW_S + 1
    raw = [bytes(forged), *(report.encode() for report in honest_reports(newer, window=T0))]
    fleet.read([fleet.log.append(Kind.REPORT, report, report[:16]) for report in raw])
    fleet.tick(T0 + WINDOW_S + 2)
    assert (fleet.leader.released, fleet.leader.suppressed) == (1, {"n_min": 1})
    assert fleet.leader.unsettled == 0
