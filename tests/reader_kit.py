"""A log of reports in memory, what is sent to it, and the Leader that reads it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import EpochsArrived, ReportsArrived
from aggregator.party.config import Quotas
from aggregator.protocol.interfaces import RosterSeen, TaskSeen
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    honest_reports,
    seal_report,
    vector_of,
)
from transport.interface import Record
from wire.envelope import Kind

PARTITIONS = 4
HOSTS = 14

MANY_RETRIES = Quotas(retries=1000)
"""Ways to read a log are compared by what is refused, and not by how often."""


class OneProcess(Fleet):
    """A Leader whose own loop reads the same kind of log."""

    make_leader = staticmethod(partial(Leader, quotas=MANY_RETRIES))

    def __init__(self, world: World, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(world, folder)
        learn(self)

    def read(self, records: Sequence[Record]) -> None:
        self.feed(ReportsArrived(records, self.clock()))


def learn(fleet: Fleet) -> None:
    fleet.runner.feed(TaskSeen(fleet.world.task_bytes, T0))
    fleet.runner.feed(RosterSeen(fleet.world.roster_bytes))


def what_came(fleet: Fleet) -> list[tuple[int, bytes, bytes, list[int], int]]:
    """Of each window its signed batch, the release under both signatures, the vector and n."""
    rows = fleet.state._tables.execute(
        'SELECT "window", batch, entry FROM windows WHERE state = ? ORDER BY "window"',
        ("released",),
    )
    vectors = {w.window_start_s: (w.vector.tolist(), w.n) for w in fleet.store.written}
    return [(window, batch, entry, *vectors[window]) for window, batch, entry in rows]


def epoch_records(fleet: Fleet) -> list[Record]:
    raw = [host.epoch.encode() for host in fleet.world.hosts if host.epoch is not None]
    return [fleet.epoch_log.append(Kind.EPOCH, epoch) for epoch in raw]


def give_epochs(fleet: Fleet) -> None:
    fleet.feed(EpochsArrived(epoch_records(fleet), fleet.clock()))


def honest_bytes(world: World, window: int = T0) -> list[bytes]:
    return [report.encode() for report in honest_reports(world, window=window)]


def reports_of(world: World, window: int) -> list[bytes]:
    """Honest reports, a second one of a host, a bad tag and a bad box: the last three are lies."""
    honest = honest_bytes(world, window)
    host = world.hosts[0]
    vector = vector_of(host, window, world.task.d)
    second = seal_report(world, host, vector, window=window, report_id=b"s" * 16).encode()
    liar = world.hosts[1]
    honest[1] = seal_report(
        world, liar, vector_of(liar, window, world.task.d), window=window, spoil_tag=True
    ).encode()
    spoilt = honest[2][:-1] + bytes([honest[2][-1] ^ 1])
    return [*honest, honest[3], second, spoilt]


def after(window: int) -> int:
    return window + WINDOW_S + 1
