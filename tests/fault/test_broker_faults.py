"""A fleet on Kafka whose broker is killed within a window: nothing is lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pointillist.broker.local import BrokerOptions, LocalBroker, RunningBroker, free_ports
from pointillist.broker.properties import Ports
from tests.disk_kit import fill, small_disk
from tests.fault_fleet import STEP_S, FaultFleet
from tests.kafka_cluster import LocalCluster
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.netns_kit import FAR, Link, linked
from tests.outage_kit import HOSTS
from tests.wait_kit import until
from transport.factory import TransportTable
from transport.kafka.kafka_frame import KafkaSettings

pytestmark = [pytest.mark.kafka, pytest.mark.release, pytest.mark.timeout(300)]


def started(folder: Path, settings: KafkaSettings) -> FaultFleet:
    """A fleet that has released its first window."""
    fleet = FaultFleet(folder, log=TransportTable(kafka=settings), windows=3)
    fleet.line.patient = True  # a group takes its time to be formed
    fleet.run_to(fleet.first + 62, step_s=STEP_S)
    return fleet


@pytest.fixture
def fleet(tmp_path: Path, broker: RunningBroker) -> Iterator[FaultFleet]:
    made = started(tmp_path, plain_settings(broker, fresh_prefix(), timeout_s=2.0))
    yield made
    made.close()


@pytest.mark.fault_case("broker-restarted")
def test_broker_killed_within_a_window_costs_no_report(
    fleet: FaultFleet, local_broker: LocalBroker
) -> None:
    local_broker.kill()
    fleet.run_to(fleet.first + 75, step_s=STEP_S)
    local_broker.start()
    fleet.recover()
    verdict = fleet.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.fixture
def replicated(tmp_path: Path, cluster: LocalCluster) -> Iterator[FaultFleet]:
    settings = KafkaSettings(
        cluster.bootstrap, replication=3, idle_read_s=0.1, timeout_s=2.0, lease_s=6.0
    )
    (tmp_path / "fleet").mkdir()
    made = started(tmp_path / "fleet", settings)
    yield made
    made.close()


@pytest.mark.fault_case("broker-of-three-killed")
def test_one_of_three_brokers_gone_for_good_costs_no_report(
    replicated: FaultFleet, cluster: LocalCluster
) -> None:
    cluster.brokers[0].kill()
    replicated.recover()
    verdict = replicated.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


def test_three_brokers_restarted_in_turn_under_a_fleet_cost_no_report(
    replicated: FaultFleet, cluster: LocalCluster
) -> None:
    """As an upgrade does it: each ends in order, hands its partitions on and comes back."""
    for broker in cluster.brokers:
        broker.stop()
        replicated.run_to(replicated.now_s() + 5)
        broker.start()
        replicated.recover()
        replicated.run_to(replicated.now_s() + 10, step_s=STEP_S)
    verdict = replicated.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
    assert replicated.all_refused() == {}


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[tuple[FaultFleet, LocalBroker, Path]]:
    """A fleet whose broker has a small disk."""
    options = BrokerOptions(heap_mib=256)
    with (
        small_disk(tmp_path / "disk", "64m") as disk,
        LocalBroker(disk / "kafka", options) as broker,
    ):
        settings = plain_settings(broker.start(print), timeout_s=2.0)
        (tmp_path / "fleet").mkdir()
        made = started(tmp_path / "fleet", settings)
        yield made, broker, disk
        made.close()


@pytest.mark.root
@pytest.mark.fault_case("broker-disk-full")
def test_broker_that_its_full_disk_ends_costs_no_report(
    cramped: tuple[FaultFleet, LocalBroker, Path],
) -> None:
    fleet, broker, disk = cramped
    ballast = fill(disk)
    fleet.run_to(fleet.first + 75, step_s=STEP_S)
    until(lambda: broker.status() is None)  # without a disk to write to it ends by itself
    ballast.unlink()
    broker.start()
    fleet.recover()
    verdict = fleet.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


class FarBroker(LocalBroker):
    """A broker at the far end of a link."""

    def __init__(self, folder: Path, link: Link) -> None:
        plain, controller = free_ports(2)
        listens = f"PLAINTEXT://{FAR}:{plain}"
        extra = {
            "listeners": f"{listens},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"{listens},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        }
        super().__init__(folder, BrokerOptions(heap_mib=256, extra=extra))
        self._link, self._plain = link, plain

    def _java(self, libraries: Path) -> list[str]:
        return self._link.far(super()._java(libraries))

    def _running(self, pid: int, ports: Ports) -> RunningBroker:
        return replace(super()._running(pid, ports), bootstrap=f"{FAR}:{self._plain}")


@pytest.fixture
def link() -> Iterator[Link]:
    with linked() as made:
        yield made


@pytest.fixture
def far_fleet(tmp_path: Path, link: Link) -> Iterator[FaultFleet]:
    with FarBroker(tmp_path / "kafka", link) as broker:
        settings = plain_settings(broker.start(print), timeout_s=2.0)
        (tmp_path / "fleet").mkdir()
        made = started(tmp_path / "fleet", settings)
        yield made
        link.mend()
        made.close()


@pytest.mark.root
@pytest.mark.fault_case("agent-cut-off")
def test_link_to_the_broker_down_within_a_window_costs_no_report(
    far_fleet: FaultFleet, link: Link
) -> None:
    link.cut()
    far_fleet.run_to(far_fleet.first + 75, step_s=STEP_S)
    link.mend()
    far_fleet.recover()
    verdict = far_fleet.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
