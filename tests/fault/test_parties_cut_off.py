"""The network between Leader and Helper goes down within a window: a real link, real TLS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.protocol.interfaces import HelperUnavailable
from tests.certificate_kit import Authority
from tests.far_helper import tls_address
from tests.ledger_hosts import LedgerHosts
from tests.netns_kit import FAR, Link, linked
from tests.process_kit import FileStore, ProcessFleet, leader_config
from tests.protocol_kit import T0, WINDOW_S
from tests.wait_kit import until

pytestmark = pytest.mark.root

ADDRESS = f"{FAR}:7443"


@pytest.fixture
def link() -> Iterator[Link]:
    with linked() as made:
        yield made


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[LedgerHosts]:
    made = LedgerHosts(tmp_path / "hosts")
    yield made
    made.close()


@pytest.fixture
def fleet(hosts: LedgerHosts, tmp_path: Path, link: Link) -> Iterator[ProcessFleet]:
    """The Helper at the far end of the link."""
    authority = Authority.make(tmp_path / "tls", FAR)
    for name in ("leader", "helper"):
        authority.issue(name)
    made = ProcessFleet(hosts.world, tmp_path)
    words = [str(tmp_path), hosts.world.leader_key.public_bytes.hex(), ADDRESS]
    command = [sys.executable, "-m", "tests.far_helper", *words, str(tmp_path / "tls")]
    helper = subprocess.Popen(link.far(command))
    yield made
    made.stop()
    helper.terminate()
    assert helper.wait(30) == 0


@pytest.fixture
def leader(fleet: ProcessFleet) -> LeaderRuntime:
    config = leader_config(fleet.folder, fleet.world.helper_key.public_bytes)
    address = tls_address(ADDRESS, fleet.folder / "tls", "leader")
    store = FileStore(fleet.folder)
    return LeaderRuntime(replace(config, helper=address), fleet.log, store, clock=fleet.clock)


def turns(fleet: ProcessFleet, leader: LeaderRuntime) -> bool:
    """A turn of the Leader, and a second of everybody's clock."""
    leader._turn()
    leader._calls.wait()
    fleet.clock.set(fleet.clock() + 0.2)
    return True


@pytest.mark.release
@pytest.mark.fault_case("parties-cut-off")
def test_link_between_the_parties_down_costs_no_window(
    fleet: ProcessFleet, leader: LeaderRuntime, hosts: LedgerHosts, link: Link
) -> None:
    helper = leader._helper
    assert helper is not None
    until(lambda: _answers(leader))
    for number in range(2):
        window = T0 + number * WINDOW_S
        fleet.publish(*hosts.report(window))
        fleet.clock.set(window + WINDOW_S + 29)
        if number == 1:
            link.cut()
            until(lambda: turns(fleet, leader) and "helper_away" in _troubles(leader))
            link.mend()
        until(lambda wanted=number: turns(fleet, leader) and _settled(fleet, wanted + 1))  # type: ignore[misc]
    until(lambda: turns(fleet, leader) and not leader._state.unsigned())
    leader._end()
    verdict = hosts.judge(fleet.folder)
    assert verdict.problems == []
    assert (verdict.windows, verdict.released, verdict.lost) == (2, 18, {})


def _answers(leader: LeaderRuntime) -> bool:
    try:
        return leader._helper is not None and leader._helper.status().version != ""
    except HelperUnavailable:
        return False


def _troubles(leader: LeaderRuntime) -> str:
    return str(leader._status()["troubles"])


def _settled(fleet: ProcessFleet, wanted: int) -> bool:
    return len(fleet.lines("store.jsonl")) >= wanted
