"""Workers of one group on a real broker: killed, joined by another, and given everything twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aggregator.leader.leader_events import EpochsArrived
from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.ledger_hosts import LedgerHosts
from tests.process_kit import wait_for
from tests.protocol_kit import T0, WINDOW_S, World
from tests.worker_processes_kit import WorkerProcessFleet
from tests.workers.test_workers_killed import check, countersigned, passes, released
from tests.workers_kit import OneProcess
from transport.kafka.kafka_settings import KafkaSettings
from transport.opening import Side, open_transport
from transport.port import Record, create_topics
from wire.topics import EPOCHS, REPORTS

pytestmark = pytest.mark.kafka

WINDOWS = 3


@pytest.mark.timeout(200)
@pytest.mark.fault_case("worker-lost-in-rebalance")
def test_group_on_kafka_releases_what_one_process_does(
    broker: RunningBroker, tmp_path: Path
) -> None:
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, Side.AGGREGATOR) as kafka:
        create_topics(kafka)
    hosts = LedgerHosts(tmp_path / "hosts")
    fleet = WorkerProcessFleet(hosts.world, tmp_path, settings)
    try:
        play(fleet, hosts)
        assert fleet.stop() == [0] * 5
    finally:
        fleet.stop()
        fleet.reports.close()
        hosts.close()
    check(fleet, hosts, WINDOWS)
    assert transcript(tmp_path / "leader.sqlite") == replayed(hosts.world, settings, tmp_path)


def play(fleet: WorkerProcessFleet, hosts: LedgerHosts) -> None:
    """A quiet window; one with a worker killed; one that another worker joins."""
    for number in range(WINDOWS):
        window = T0 + number * WINDOW_S
        fleet.clock.set(window + 1)
        if number == 1:
            fleet.kill_at("worker after word")
        if number == 2:
            fleet.start("worker-2")
            wait_for(lambda: passes(fleet) and sessions(fleet) == 4)  # and one that fell
        epochs, reports = hosts.report(window)
        fleet.publish(epochs, [*reports, *reports])
        fleet.clock.set(window + WINDOW_S + 1)
        wait_for(
            lambda wanted=number + 1: fleet.killed() and passes(fleet) and released(fleet, wanted)  # type: ignore[misc]
        )
    wait_for(lambda: fleet.killed() and passes(fleet) and countersigned(fleet, WINDOWS))


def sessions(fleet: WorkerProcessFleet) -> int:
    try:
        status = json.loads((fleet.folder / "leader-status.json").read_text())
    except FileNotFoundError:
        return 0
    return int(status["workers"])


def replayed(world: World, settings: KafkaSettings, folder: Path) -> list[tuple[object, ...]]:
    """What one process makes of the same log."""
    records = read_all(settings)
    (folder / "one").mkdir()
    other = OneProcess(world, folder / "one")
    epochs = [record for record in records if record.topic == EPOCHS]
    other.feed(EpochsArrived(epochs, T0 + 1))
    reports = [record for record in records if record.topic == REPORTS]
    other.clock.now_s = T0 + WINDOWS * WINDOW_S + 1
    other.read(reports)
    for _ in range(WINDOWS):
        other.tick(other.clock.now_s + 31)
    return transcript(folder / "one" / "leader.sqlite")


def read_all(settings: KafkaSettings) -> list[Record]:
    with open_transport(settings, Side.AGGREGATOR) as kafka:
        consumer = kafka.consumer("reader-all", [EPOCHS, REPORTS])
        records: list[Record] = []

        def complete() -> bool:
            records.extend(consumer.poll(1000, 0.1))
            return len(records) == 9 + 2 * 9 * WINDOWS

        wait_for(complete)
        consumer.close()
    return records


def transcript(state: Path) -> list[tuple[object, ...]]:
    """Of each window the signed batch and the release under both signatures, as stored."""
    from aggregator.state.state_file import open_read_only

    connection = open_read_only(state)
    try:
        return connection.execute(
            "SELECT window, batch, entry FROM windows WHERE state = 'released' ORDER BY window"
        ).fetchall()
    finally:
        connection.close()
