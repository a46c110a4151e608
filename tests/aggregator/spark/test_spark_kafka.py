"""Spark itself on a real broker: killed at each step of a batch, and given everything twice."""

from __future__ import annotations

import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.leader.intake import ReportReader
from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import EpochsArrived
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.config import SparkSettings
from aggregator.spark.driver_process import DriverProcess, SparkJob, python_of
from aggregator.spark.spark_reader import SparkReader
from aggregator.state.state_file import open_read_only
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.ledger_hosts import LedgerHosts
from tests.process_kit import (
    SPAWN,
    FileClock,
    FileStore,
    KillHere,
    ProcessFleet,
    RecordingChannel,
    leader_config,
)
from tests.protocol_kit import T0, WINDOW_S, World
from tests.reader_kit import OneProcess
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.interface import Record, create_topics
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import EPOCHS, REPORTS

pytestmark = [pytest.mark.kafka, pytest.mark.release]

REPOSITORY = Path(__file__).resolve().parents[3]
STEPS = ["", "driver before sink commit", "driver after sink commit"]
WINDOWS = len(STEPS)
PATIENCE_S = 200.0


def leader_by_spark(folder: Path, helper_pk: bytes, log: KafkaSettings) -> None:
    """What runs in the Leader's process: the driver is its child."""
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    config = replace(leader_config(folder, helper_pk), transport=log)
    assert config.helper is not None
    settings = SparkSettings(master="local[2]", options={"spark.driver.memory": "512m"})
    python = python_of(settings)

    def by_spark(leader: Leader) -> ReportReader:
        jars = python.parent.parent / "jars"
        parties = leader.directory.parties
        job = SparkJob(log, parties, settings, python, jars, folder / "spark")
        program = ("-m", "tests.aggregator.spark.driver_process", str(folder))
        return SparkReader(leader, DriverProcess(job, program=program))

    with open_transport(log, Side.AGGREGATOR) as transport:
        shell = LeaderRuntime(
            config,
            transport,
            FileStore(folder),
            helper=RecordingChannel(config.helper, folder),
            reader=by_spark,
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "leader"),
        )
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


class SparkProcessFleet(ProcessFleet):
    """A Helper, and a Leader whose reports Spark reads, in processes of their own."""

    def __init__(self, world: World, folder: Path, log: KafkaSettings) -> None:
        self.settings = log
        super().__init__(world, folder)
        self.reports = open_transport(log, Side.AGGREGATOR)
        self._producer = self.reports.producer()  # type: ignore[assignment]
        for party in ("helper", "leader"):
            self.start(party)

    def start(self, party: str) -> None:
        if party == "helper":
            super().start(party)
            return
        until((self.folder / "run" / "h.sock").exists)
        told = self.folder, self.world.parties.helper_pk, self.settings
        self.processes[party] = SPAWN.Process(target=leader_by_spark, args=told)
        self.processes[party].start()


@pytest.mark.timeout(600)
def test_spark_on_kafka_releases_what_one_process_does(
    broker: RunningBroker, tmp_path: Path
) -> None:
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, Side.AGGREGATOR) as kafka:
        create_topics(kafka)
    hosts = LedgerHosts(tmp_path / "hosts")
    fleet = SparkProcessFleet(hosts.world, tmp_path, settings)
    try:
        for number, step in enumerate(STEPS):
            play_window(fleet, hosts, number, step)
        until(lambda: fleet.passes() and countersigned(fleet), PATIENCE_S)
        until(lambda: "redelivered" in (tmp_path / "steps").read_text(), PATIENCE_S)
        assert fleet.stop() == [0] * 2
    finally:
        fleet.stop()
        fleet.reports.close()
        hosts.close()
    check(fleet, hosts)
    assert transcript(tmp_path / "leader.sqlite") == replayed(hosts.world, settings, tmp_path)


def play_window(fleet: SparkProcessFleet, hosts: LedgerHosts, number: int, step: str) -> None:
    """A window whose reports come twice, the kill armed before them."""
    window = T0 + number * WINDOW_S
    fleet.clock.set(window + 1)
    if step:
        fleet.kill_at(step)
    epochs, reports = hosts.report(window)
    fleet.publish(epochs, [*reports, *reports])
    fleet.clock.set(window + WINDOW_S + 1)
    until(lambda: fleet.killed() and fleet.passes() and fleet.released(number + 1), PATIENCE_S)


def countersigned(fleet: SparkProcessFleet) -> bool:
    try:
        both = [read_transcript(fleet.folder / f"{name}.sqlite") for name in ("leader", "helper")]
    except sqlite3.OperationalError:
        return False
    verdict = verify_transcripts(both[0], both[1], fleet.world.parties)
    return verdict.releases == WINDOWS and verdict.unsigned == 0


def check(fleet: SparkProcessFleet, hosts: LedgerHosts) -> None:
    verdict = hosts.judge(fleet.folder)
    assert verdict.problems == []
    assert (verdict.windows, verdict.released) == (WINDOWS, len(hosts.sealed))
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert all(len(seen) == 1 for seen in shares.values())


def replayed(world: World, settings: KafkaSettings, folder: Path) -> list[tuple[object, ...]]:
    """What one process makes of the same log."""
    records = read_all(settings)
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

        until(complete)
        consumer.close()
    return records


def transcript(state: Path) -> list[tuple[object, ...]]:
    """Of each window the signed batch and the release under both signatures, as stored."""
    connection = open_read_only(state)
    try:
        return connection.execute(
            "SELECT window, batch, entry FROM windows WHERE state = 'released' ORDER BY window"
        ).fetchall()
    finally:
        connection.close()
