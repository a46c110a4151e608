"""A live agent and a Leader's reader on three brokers, of which one is away, then two."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from edge_agent.agent_runtime import AgentRuntime
from edge_agent.ledger.ledger_db import read_view
from tests.agent_live import SteppedClock, run_until
from tests.agent_world import T0
from tests.kafka_cluster import LocalCluster
from tests.kafka_kit import KafkaSurroundings, kafka_surroundings
from transport.kafka.kafka_frame import KafkaSettings
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS

pytestmark = [pytest.mark.kafka, pytest.mark.release]

TRIES = 200


@pytest.fixture
def made(tmp_path: Path, cluster: LocalCluster) -> KafkaSurroundings:
    settings = KafkaSettings(
        cluster.bootstrap, replication=3, idle_read_s=0.1, timeout_s=1.0, lease_s=6.0
    )
    return kafka_surroundings(tmp_path, settings)


def windows_on_the_log(made: KafkaSurroundings) -> list[int]:
    reports = [Report.decode(unwrap(r.value, 1 << 22)[1]) for r in made.records(REPORTS)]
    return sorted({bytes(r.header.report_id): r.header.window for r in reports}.values())


def leader_of_reports(cluster: LocalCluster) -> int:
    """Index of the broker that leads partition 0."""
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap)})
    topic = admin.list_topics(REPORTS, timeout=10).topics[REPORTS]
    assert [len(part.replicas) for part in topic.partitions.values()] == [3] * 32
    return topic.partitions[0].leader - 1


def run_until_published(runtime: AgentRuntime, clock: SteppedClock, wanted: int) -> None:
    """A new cluster lets the first group in only after a while; the agent tries again meanwhile."""
    for _ in range(TRIES):
        if runtime.tally.published >= wanted and len(runtime._outbox) <= 1:
            return
        run_until(runtime, clock, clock.now_ms // 1000 + 4)
    raise AssertionError(f"expected {wanted} published, got {runtime.tally}")


def test_cluster_serves_without_one_broker_and_acknowledges_nothing_without_two(
    made: KafkaSurroundings, cluster: LocalCluster
) -> None:
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    run_until_published(runtime, clock, 3)
    first = leader_of_reports(cluster)
    cluster.brokers[first].kill()
    made.wait_until_served()
    run_until_published(runtime, clock, 8)  # two of three acknowledge
    published = runtime.tally.published
    cluster.brokers[(first + 1) % 3].kill()
    run_until(runtime, clock, clock.now_ms // 1000 + 20)
    assert runtime.tally.published == published  # a single copy is none
    assert runtime._ledger.spool_records >= 4
    cluster.start()
    made.wait_until_served()
    run_until_published(runtime, clock, published + 8)
    runtime.close()
    found = windows_on_the_log(made)
    spent = [entry.start for entry in read_view(made.config.ledger_file).hosts[0].entries]
    assert found == spent[: len(found)] == [*range(spent[0], found[-1] + 4, 4)]
    assert len(spent) - len(found) <= 1  # the last may not be due yet
    assert not runtime.tally.refused
