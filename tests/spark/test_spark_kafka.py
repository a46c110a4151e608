"""Spark itself on a real broker: killed at each step of a batch, and given everything twice."""

from __future__ import annotations

import os
import pickle
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from aggregator.party.spark_settings import SparkSettings
from aggregator.spark.spark_processes import SparkJob, python_of
from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.ledger_hosts import LedgerHosts
from tests.process_kit import wait_for
from tests.protocol_kit import T0, WINDOW_S, World
from tests.worker_processes_kit import WorkerProcessFleet, desk_address
from tests.workers.test_workers_kafka import replayed, transcript
from tests.workers.test_workers_killed import check, countersigned, passes, released
from transport.kafka.kafka_settings import KafkaSettings
from transport.opening import Side, open_transport
from transport.port import create_topics

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = ["", "spark before sink commit", "spark after sink commit"]
PATIENCE_S = 200.0


class DriverProcess:
    """A process of another environment, as `multiprocessing` would show it."""

    def __init__(self, command: list[str], log: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=log.parent, env=environment, stdout=file, stderr=file
            )

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


class SparkProcessFleet(WorkerProcessFleet):
    """Helper, coordinator and Spark's driver in processes of their own."""

    def __init__(self, world: World, folder: Path, log: KafkaSettings) -> None:
        self.kafka = log
        super().__init__(world, folder, log, workers=0)
        self.start("spark")

    def start(self, party: str) -> None:
        if party != "spark":
            super().start(party)
            return
        settings = SparkSettings(master="local[2]", options={"spark.driver.memory": "512m"})
        python = python_of(settings)
        job = SparkJob(
            *(self.kafka, desk_address(self.folder), self.world.parties, settings),
            *(python.parent.parent / "jars", self.folder / "spark"),
        )
        told = self.folder / "job"
        told.write_bytes(pickle.dumps(job))
        command = [str(python), "-m", "tests.spark.driver_process", str(self.folder), str(told)]
        self.processes[party] = DriverProcess(command, self.folder / "spark.log")  # type: ignore[assignment]


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
        wait_for(lambda: passes(fleet) and countersigned(fleet, len(STEPS)), PATIENCE_S)
        wait_for(lambda: "redelivered" in (tmp_path / "steps").read_text(), PATIENCE_S)
        assert fleet.stop() == [0] * 3
    finally:
        fleet.stop()
        fleet.reports.close()
        hosts.close()
    check(fleet, hosts, len(STEPS))
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
    wait_for(lambda: fleet.killed() and passes(fleet) and released(fleet, number + 1), PATIENCE_S)
