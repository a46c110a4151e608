"""A live agent while its broker is away, restarted, frozen, throttled or takes too little."""

from __future__ import annotations

import dataclasses
import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.protocol.admin import AlterClientQuotasRequest

from edge_agent.agent_runtime import AgentRuntime
from edge_agent.ledger.ledger_db import read_view
from pointillist.broker.local import LocalBroker, RunningBroker
from tests.agent_live import SteppedClock, run_until
from tests.agent_world import T0
from tests.kafka_kit import KafkaSurroundings, fresh_prefix, kafka_surroundings, plain_settings
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS

pytestmark = [pytest.mark.release, pytest.mark.kafka]

SPOOL_RECORDS = 6


@pytest.fixture
def made(tmp_path: Path, broker: RunningBroker) -> KafkaSurroundings:
    settings = plain_settings(broker, fresh_prefix(), timeout_s=0.5)
    surroundings = kafka_surroundings(tmp_path, settings)
    spool = dataclasses.replace(surroundings.config.spool, max_records=SPOOL_RECORDS)
    surroundings.config = dataclasses.replace(surroundings.config, spool=spool)
    return surroundings


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(T0)


@pytest.fixture
def runtime(made: KafkaSurroundings, clock: SteppedClock) -> AgentRuntime:
    """An agent that has reported its first windows."""
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 13)
    assert runtime.tally.published
    return runtime


def windows_by_report(made: KafkaSurroundings) -> dict[bytes, int]:
    """Report id -> window, of everything on the log; the same bytes may be there twice."""
    reports = [Report.decode(unwrap(r.value, 1 << 22)[1]) for r in made.records(REPORTS)]
    return {bytes(r.header.report_id): r.header.window for r in reports}


def check(made: KafkaSurroundings, runtime: AgentRuntime) -> list[int]:
    """Nothing under a second id, and every window that was paid for arrived; gives the windows."""
    runtime.close()
    found = sorted(windows_by_report(made).values())
    assert len(set(found)) == len(found)
    spent = [entry.start for entry in read_view(made.config.ledger_file).hosts[0].entries]
    assert found == spent
    return found


def test_broker_away_for_longer_than_the_spool_costs_no_more_than_the_spool(
    made: KafkaSurroundings,
    runtime: AgentRuntime,
    clock: SteppedClock,
    local_broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def held_bytes() -> int:
        return sum(path.stat().st_size for path in made.config.ledger_file.parent.iterdir())

    # The client's log records name its sockets, and pytest keeps every record.
    monkeypatch.setattr(logging.getLogger("kafka"), "propagate", False)
    local_broker.kill()
    before = runtime.tally.sealed
    run_until(runtime, clock, T0 + 61)
    assert runtime.tally.sealed >= before + SPOOL_RECORDS - 1  # it went on measuring and sealing
    full_bytes, withheld = held_bytes(), runtime.tally.refused["spool_full"]
    assert withheld >= 4
    gc.collect()
    threads, files = threading.active_count(), psutil.Process().num_fds()
    run_until(runtime, clock, T0 + 241)
    assert runtime._ledger.spool_records == SPOOL_RECORDS
    assert len(runtime._outbox) <= SPOOL_RECORDS
    assert held_bytes() <= full_bytes + (64 << 10)  # what SQLite keeps of its journal
    gc.collect()
    assert threading.active_count() <= threads
    assert psutil.Process().num_fds() <= files + 2  # a connection that is being tried
    withheld = runtime.tally.refused["spool_full"]
    assert withheld >= 40
    local_broker.start()
    made.wait_until_served()
    run_until(runtime, clock, T0 + 340)
    assert runtime._ledger.spool_records <= 1
    found = check(made, runtime)
    assert len(range(T0, found[-1] + 4, 4)) - len(found) >= withheld


def test_broker_killed_and_restarted_loses_no_report(
    made: KafkaSurroundings, runtime: AgentRuntime, clock: SteppedClock, local_broker: LocalBroker
) -> None:
    local_broker.kill()
    run_until(runtime, clock, T0 + 25)
    local_broker.start()
    made.wait_until_served()
    run_until(runtime, clock, T0 + 90)
    found = check(made, runtime)
    assert found == [*range(T0, found[-1] + 4, 4)]


@pytest.fixture
def frozen(runtime: AgentRuntime, local_broker: LocalBroker) -> Iterator[LocalBroker]:
    local_broker.freeze()
    yield local_broker
    local_broker.thaw()


def test_broker_that_answers_nothing_does_not_stop_the_agent(
    made: KafkaSurroundings, runtime: AgentRuntime, clock: SteppedClock, frozen: LocalBroker
) -> None:
    before = runtime.tally.sealed
    run_until(runtime, clock, T0 + 29)
    assert runtime.tally.sealed >= before + 3
    frozen.thaw()
    made.wait_until_served()
    run_until(runtime, clock, T0 + 90)
    found = check(made, runtime)
    # The clock is stepped, the broker's return is not: what found the spool full was withheld.
    missing = len(range(T0, found[-1] + 4, 4)) - len(found)
    assert missing <= min(4, runtime.tally.refused["spool_full"])
    assert found[-4:] == [*range(found[-4], found[-1] + 4, 4)], "it goes on as before"


@pytest.fixture
def stuttering(runtime: AgentRuntime, local_broker: LocalBroker) -> Iterator[threading.Event]:
    """A broker that works a tenth of the time, until the event is set."""
    mended = threading.Event()

    def stutter() -> None:
        while not mended.is_set():
            local_broker.freeze()
            mended.wait(0.45)
            local_broker.thaw()
            mended.wait(0.05)

    thread = threading.Thread(target=stutter)
    thread.start()
    yield mended
    mended.set()
    thread.join()
    local_broker.thaw()


def test_broker_that_is_slow_holds_no_measurement_up_and_gets_each_report_under_one_id(
    made: KafkaSurroundings, runtime: AgentRuntime, clock: SteppedClock, stuttering: threading.Event
) -> None:
    before = runtime.tally.sealed
    run_until(runtime, clock, T0 + 41)
    assert runtime.tally.sealed >= before + 5
    assert runtime._ledger.spool_records <= SPOOL_RECORDS
    stuttering.set()
    made.wait_until_served()
    run_until(runtime, clock, T0 + 120)
    check(made, runtime)


def test_record_longer_than_the_topic_takes_is_dropped_and_counted(
    made: KafkaSurroundings, runtime: AgentRuntime, clock: SteppedClock, broker: RunningBroker
) -> None:
    limit(broker, made, 300)
    run_until(runtime, clock, T0 + 29)
    dropped = runtime.tally.refused["record_too_large"]
    assert dropped >= 3
    limit(broker, made, 1 << 20)
    run_until(runtime, clock, T0 + 49)
    assert runtime.tally.refused["record_too_large"] == dropped
    runtime.close()
    found = windows_by_report(made)
    assert len(set(found.values())) == len(found)
    assert max(found.values()) >= T0 + 40
    assert len(range(T0, max(found.values()) + 4, 4)) - len(found) == dropped


def test_nothing_is_spent_on_reports_that_the_topic_will_not_take(
    broker: RunningBroker, made: KafkaSurroundings, clock: SteppedClock
) -> None:
    limit(broker, made, 300)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 29)
    assert runtime.tally.sealed == 0
    assert runtime.tally.refused["record_too_large"] >= 6
    limit(broker, made, 1 << 20)
    runtime.close()
    assert [host.entries for host in read_view(made.config.ledger_file).hosts] == [()]
    again = made.agent(clock)
    run_until(again, clock, T0 + 41)
    assert again.tally.sealed >= 2
    again.close()


def limit(broker: RunningBroker, made: KafkaSurroundings, max_bytes: int) -> None:
    """Change the longest batch that the topic of reports takes."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(
        "max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET
    )
    settings = made.config.transport.kafka
    assert settings is not None
    topic = ConfigResource(ResourceType.TOPIC, settings.named(REPORTS), incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([topic]).values():
        answer.result()


@pytest.fixture
def throttled(runtime: AgentRuntime, broker: RunningBroker) -> Iterator[None]:
    quota(broker, 500.0)
    yield
    quota(broker, None)


def quota(broker: RunningBroker, bytes_per_s: float | None) -> None:
    """Allow every client so many bytes a second, or any number."""
    kinds: Any = AlterClientQuotasRequest.EntryData
    entity = kinds.EntityData(entity_type="client-id", entity_name=None)
    op = kinds.OpData(
        key="producer_byte_rate", value=bytes_per_s or 0.0, remove=bytes_per_s is None
    )
    request = AlterClientQuotasRequest(
        entries=[kinds(entity=[entity], ops=[op])], validate_only=False
    )
    admin = KafkaAdminClient(bootstrap_servers=[broker.bootstrap])
    try:
        admin._manager.run(admin._send_request_to_controller, request)
    finally:
        admin.close()


@pytest.mark.usefixtures("throttled")
def test_agent_over_its_quota_spools_and_sends_each_report_under_one_id(
    made: KafkaSurroundings, runtime: AgentRuntime, clock: SteppedClock, broker: RunningBroker
) -> None:
    before = runtime.tally.sealed
    run_until(runtime, clock, T0 + 41)
    assert runtime.tally.sealed > before
    assert runtime._ledger.spool_records <= SPOOL_RECORDS
    quota(broker, None)
    run_until(runtime, clock, T0 + 120)
    check(made, runtime)
