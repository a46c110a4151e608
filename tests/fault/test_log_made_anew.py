"""The log is taken away under a whole fleet, and made again: what is sent then counts once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from pointillist.broker.local import RunningBroker
from tests.fault_fleet import STEP_S, FaultFleet
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.outage_kit import HOSTS
from tests.wait_kit import until
from transport.factory import Side, TransportTable, open_transport
from transport.interface import Noted, create_topics
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
