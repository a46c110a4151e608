"""A released sum minus the true one is exactly the noise, though the broker was killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from aggregator.leader.leader_events import EpochsArrived, ReportsArrived
from aggregator.leader.window_closing import RESEND_S
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from pointillist.broker.local import LocalBroker, RunningBroker
from tests.integration.test_end_to_end_exact import RecordingSampler, sealed, truth_of
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.protocol_kit import T0, WINDOW_S, Fleet, World, build_world, open_epochs
from transport.factory import Side, open_transport
from transport.interface import Record, Transport, TransportUnavailable, create_topics
from wire.envelope import Kind, wrap
from wire.report import Report
from wire.topics import EPOCHS, REPORTS

pytestmark = [pytest.mark.release, pytest.mark.kafka]

WINDOWS = 3
TRIES = 40


class KafkaFleet(Fleet):
    """Hosts send with the agents' client; the Leader reads, and commits, with its own."""

    def __init__(self, world: World, folder: Path, hosts: Transport, leader: Transport) -> None:
        self.hosts, self.leader_log = hosts, leader
        self.consumer = leader.consumer("leader", [EPOCHS, REPORTS])
        super().__init__(world, folder)
        self.log.commit = lambda offsets: self.consumer.commit(dict(offsets))  # type: ignore[method-assign]

    def send_epochs(self, epochs: Iterable[bytes]) -> None:
        self.publish([(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw)) for raw in epochs])

    def send(self, reports: Iterable[Report | bytes], at_s: float = T0 + WINDOW_S + 1) -> None:
        self.clock.now_s = at_s
        cores = [one if isinstance(one, bytes) else one.encode() for one in reports]
        self.publish([(REPORTS, raw[:16], wrap(Kind.REPORT, raw)) for raw in cores])

    def publish(self, records: Sequence[tuple[str, bytes, bytes]]) -> None:
        """Send as an outbox does: everything again, from a fresh producer, until it is durable."""
        for _ in range(TRIES):
            try:
                producer = self.hosts.producer()
                for record in records:
                    producer.send(*record)
                producer.flush()
                producer.close()
            except TransportUnavailable:
                continue
            self.read(len(records))
            return
        raise AssertionError("expected the broker to come back")

    def read(self, least: int) -> None:
        """Feed the Leader what the log holds."""
        records: list[Record] = []
        for _ in range(TRIES):
            try:
                records += self.consumer.poll(2000, 0.5)
            except TransportUnavailable:
                continue
            if len(records) >= least:
                break
        epochs = [one for one in records if one.topic == EPOCHS]
        reports = [one for one in records if one.topic == REPORTS]
        if epochs:
            self.feed(EpochsArrived(epochs, self.clock()))
        if reports:
            self.feed(ReportsArrived(reports, self.clock()))

    def restart_leader(self) -> None:
        """Crash and come back: memory is lost, state and log remain."""
        self.state.close()
        self.start_leader()
        self.consumer.close()
        self.consumer = self.leader_log.consumer("leader", [EPOCHS, REPORTS])
        self.read(1)


@pytest.fixture
def fleet(tmp_path: Path, broker: RunningBroker) -> Iterator[KafkaFleet]:
    settings = plain_settings(broker, fresh_prefix(), timeout_s=1.0)
    hosts, leader = (open_transport(settings, side) for side in (Side.AGENT, Side.AGGREGATOR))
    with hosts, leader:
        create_topics(leader)
        made = KafkaFleet(build_world(20), tmp_path, hosts, leader)
        yield made
        made.consumer.close()


def test_released_minus_true_is_the_noise_through_a_broker_that_is_killed(
    fleet: KafkaFleet, local_broker: LocalBroker, tmp_path: Path
) -> None:
    world, sampler = fleet.world, RecordingSampler()
    fleet.send_epochs(open_epochs(world))
    for number in range(WINDOWS):
        window = T0 + number * WINDOW_S
        fleet.clock.now_s = window + WINDOW_S + 1
        present = [host for host in world.hosts if (host.number + number) % 7 != 0]
        reports = [sealed(world, sampler, host, window) for host in present]
        damaged = reports[0].box[:-1] + bytes([reports[0].box[-1] ^ 1])
        forged = dataclasses.replace(reports[0], box=damaged)
        records = [
            (REPORTS, bytes(one.host_id), wrap(Kind.REPORT, one.encode()))
            for one in [forged, *reports, *reports[:4]]
        ]
        if number == 1:
            publish_through_a_restart(fleet, local_broker, records)
            fleet.restart_leader()
            fleet.tick(fleet.clock.now_s)
            fleet.tick(fleet.clock.now_s + RESEND_S)
        else:
            fleet.publish(records)
            fleet.tick(window + WINDOW_S + 30)
        release = fleet.store.written[number]
        true = sum((truth_of(world, host, window) for host in present), np.zeros(world.task.d))
        noise = sum((sampler.drawn[host.number, window] for host in present), np.zeros(1))
        assert release.n == len(present)
        assert np.array_equal(release.vector - true, noise)
        assert noise[2:].any()
    assert fleet.leader.rejected["duplicate"] >= 4
    both = [read_transcript(tmp_path / name) for name in ("leader.sqlite", "helper.sqlite")]
    verdict = verify_transcripts(both[0], both[1], world.parties)
    assert (verdict.problems, verdict.releases, verdict.unsigned) == ([], WINDOWS, 0)


def publish_through_a_restart(
    fleet: KafkaFleet, broker: LocalBroker, records: Sequence[tuple[str, bytes, bytes]]
) -> None:
    """Half arrives, the broker is killed before the rest is flushed, and comes back."""
    fleet.publish(records[: len(records) // 2])
    producer = fleet.hosts.producer()
    for record in records:
        producer.send(*record)
    broker.kill()
    with pytest.raises(TransportUnavailable):
        producer.flush()
    broker.start()
    fleet.publish(records)
