"""The log is made anew under a whole fleet, or gets partitions: what is sent then counts once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from pointillist.broker.local import RunningBroker
from tests.fault_fleet import STEP_S, FaultFleet
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.outage_kit import HOSTS
from tests.wait_kit import until
from transport.factory import Side, TransportTable, open_transport
from transport.interface import Noted, create_topics
from transport.kafka import kafka_agent_consumer, kafka_frame
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import ENTRIES, EPOCHS, KEYS, REPORTS, ROSTERS, TASKS, TOPICS

WINDOWS = 3


def noted(fleet: FaultFleet) -> int:
    return fleet.all_refused()[Noted.ANEW.value]


def test_embedded_log_made_anew_costs_no_report_that_is_sent_after(tmp_path: Path) -> None:
    fleet = FaultFleet(tmp_path, windows=WINDOWS)
    try:
        fleet.run_to(fleet.first + 100, step_s=STEP_S)
        assert noted(fleet) == 0
        shutil.rmtree(tmp_path / "log")
        verdict = fleet.finish()
        assert (verdict.windows, verdict.released, verdict.lost) == (WINDOWS, WINDOWS * HOSTS, {})
        assert noted(fleet) >= len((EPOCHS, REPORTS))
        assert all(agent.tally.refused[Noted.ANEW.value] == 3 for agent in fleet.agents)
        fleet.run_to(fleet.end_s + 500, step_s=STEP_S)  # the Leader looks at what it has put
        with open_transport(fleet.agent_config(0).transport.settings, Side.AGENT) as log:
            consumer = log.consumer("anybody", [TASKS, ROSTERS, KEYS])
            found = {record.topic for record in consumer.poll(100, 0.1)}
            consumer.close()
        assert found == {TASKS, ROSTERS, KEYS}
    finally:
        fleet.close()


@pytest.mark.kafka
@pytest.mark.release
@pytest.mark.timeout(300)
def test_topics_made_anew_cost_no_report_that_is_sent_after(
    tmp_path: Path, broker: RunningBroker
) -> None:
    settings = plain_settings(broker, fresh_prefix())
    fleet = FaultFleet(tmp_path, log=TransportTable(kafka=settings), windows=WINDOWS)
    fleet.line.patient = True  # a group takes its time to be formed
    try:
        fleet.run_to(fleet.first + 100, step_s=STEP_S)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [settings.named(topic.name) for topic in TOPICS if topic.name != ENTRIES]
        for gone in admin.delete_topics(names).values():
            gone.result()
        until(lambda: not set(names) & set(admin.list_topics(timeout=5).topics))
        with open_transport(settings, Side.AGGREGATOR) as log:
            create_topics(log)
        fleet.recover()
        verdict = fleet.finish(after_s=300)
        assert (verdict.windows, verdict.released, verdict.lost) == (WINDOWS, WINDOWS * HOSTS, {})
        assert noted(fleet) >= 1
    finally:
        fleet.close()


@pytest.mark.kafka
@pytest.mark.release
@pytest.mark.timeout(300)
def test_partitions_that_are_added_cost_no_report(
    tmp_path: Path, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some to every topic of a running fleet, of which half begins anew; more while nobody leads.

    Reports of a host lie in two partitions then, and so do both versions of what is compacted.
    """
    monkeypatch.setattr(kafka_frame, "LOOK_S", 1.0)
    monkeypatch.setattr(kafka_agent_consumer, "_METADATA_S", 1)
    settings = plain_settings(broker, fresh_prefix())
    fleet = FaultFleet(tmp_path, log=TransportTable(kafka=settings), windows=5)
    fleet.line.patient = True

    def read_from(partitions: int) -> bool:
        fleet.step()
        consumer = fleet.leader._consumer
        return consumer is not None and len(consumer.positions()) == partitions

    try:
        fleet.run_to(fleet.first + 100, step_s=STEP_S)
        more = {topic.name: topic.partitions + 2 for topic in TOPICS if topic.name != ENTRIES}
        add_partitions(settings, more | {REPORTS: 40})
        for number in range(0, HOSTS, 2):
            fleet.agents[number].close()
            fleet.agents[number] = fleet.agent(number)
        until(lambda: read_from(40 + 6))
        fleet.run_to(fleet.first + 200, step_s=STEP_S)
        fleet.stop_leader()
        add_partitions(settings, {REPORTS: 41, EPOCHS: 9})
        fleet.start_leader()
        until(lambda: read_from(41 + 9))
        fleet.recover()
        verdict = fleet.finish(after_s=300)
        assert (verdict.windows, verdict.released, verdict.lost) == (5, 5 * HOSTS, {})
        assert not fleet.all_refused() & Counter({noted.value: 1 for noted in Noted})
        assert all(
            not {noted.value for noted in Noted} & agent.tally.refused.keys()
            for agent in fleet.agents
        )
    finally:
        fleet.close()


def add_partitions(settings: KafkaSettings, wanted: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap[0]})
    more = [NewPartitions(settings.named(topic), number) for topic, number in wanted.items()]
    for added in admin.create_partitions(more).values():
        added.result()
