"""Images run for real: a fleet of containers up to a release, and what each process may do."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aggregator.releases.releases import read_windows
from tests.deploy.images.container_fleet import (
    FETCH,
    HELPER_UID,
    LEADER_UID,
    WEB_UID,
    ContainerFleet,
)
from tests.deploy.images.podman import Containers, why_no_containers
from tests.wait_kit import until
from transport.process.privileges import CAPABILITIES

CONFIG = "/etc/pointillist/agent.toml"
pytestmark = [pytest.mark.images, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def fleet() -> Iterator[ContainerFleet]:
    if reason := why_no_containers():
        pytest.skip(reason)
    # Users of the containers must get through every folder above: pytest's own are closed to them.
    folder = Path(tempfile.mkdtemp(prefix="plst-images-", dir="/var/tmp"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        containers = stack.enter_context(Containers())
        made = ContainerFleet(folder, containers)
        try:
            made.start_broker()
            made.make_keys()
            made.sign_task()
            made.start_parties()
            made.vouch()
            made.start_agents()
            made.enrol()
            yield made
        finally:
            _keep_logs(containers)


def _keep_logs(containers: Containers) -> None:
    """Show what the containers said, where a test fails."""
    for name in ("leader", "helper", "agent", "crowd"):
        print(f"--- {name}\n{containers.said(name)[-4000:]}")


def _released(fleet: ContainerFleet) -> bool:
    windows = read_windows(fleet.folder / "leader-state" / "releases" / "parquet")
    return bool((windows["outcome"] == "released").any())


def _agent_says(fleet: ContainerFleet, *asked: str) -> str:
    return fleet.containers.run("agent", "pointillist", "agent", *asked, "--config", CONFIG)


def test_fleet_of_containers_releases_a_window(fleet: ContainerFleet) -> None:
    until(lambda: _released(fleet))
    (series,) = json.loads(_agent_says(fleet, "ledger", "show", "--json"))["series"]
    assert series["windows_kept"] >= 1


def test_agent_counts_by_ebpf_and_keeps_two_capabilities(fleet: ContainerFleet) -> None:
    status = fleet.containers.status_of("agent")
    kept = 1 << CAPABILITIES["CAP_BPF"] | 1 << CAPABILITIES["CAP_PERFMON"]
    assert int(status["CapEff"], 16) == kept
    assert int(status["CapBnd"], 16) == kept
    assert status["Uid"].split() == ["10004"] * 4
    asked = ("history", "--since", "10m", "--kind", "metric", "--name", "*switches*")
    until(lambda: "ebpf/switches" in _agent_says(fleet, *asked))


@pytest.mark.parametrize(("role", "uid"), [("leader", LEADER_UID), ("helper", HELPER_UID)])
def test_party_has_no_root_and_no_capability(fleet: ContainerFleet, role: str, uid: int) -> None:
    _hold_nothing(fleet, role, uid)


def test_web_shows_the_release_without_root(fleet: ContainerFleet) -> None:
    until(lambda: _released(fleet))
    fleet.start_web()
    assert "minute" in fleet.containers.run("web", "python3", "-c", FETCH)
    _hold_nothing(fleet, "web", WEB_UID)


def _hold_nothing(fleet: ContainerFleet, role: str, uid: int) -> None:
    status = fleet.containers.status_of(role)
    assert status["Uid"].split() == [str(uid)] * 4
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert fleet.containers.inspect(role)["HostConfig"]["ReadonlyRootfs"] is True
    assert fleet.containers.ends(role, "touch", "/usr/written") != 0
