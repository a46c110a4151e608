"""The compose file, run for real."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.images.compose_fleet import ComposeFleet, compose_fleet, why_no_compose
from tests.deploy.images.podman import why_no_containers
from tests.wait_kit import until

AGENT = "/etc/pointillist/agent.toml"
pytestmark = [pytest.mark.images, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def fleet() -> Iterator[ComposeFleet]:
    if reason := why_no_containers() or why_no_compose():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="plst-compose-", dir="/var/tmp"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield stack.enter_context(compose_fleet(folder))


@pytest.mark.parametrize("role", ["leader", "helper"])
def test_party_of_the_compose_file_runs(fleet: ComposeFleet, role: str) -> None:
    config = ("--config", f"/etc/pointillist/{role}.toml")
    until(lambda: fleet.ends(role, "pointillist", role, "status", *config) in {0, 1})


def test_agent_of_the_compose_file_has_asked_and_counts_by_ebpf(fleet: ComposeFleet) -> None:
    asked = ("history", "--since", "10m", "--kind", "metric", "--name", "*switches*")
    command = ("agent", "pointillist", "agent", *asked, "--config", AGENT)
    until(lambda: fleet.ends(*command) == 0 and "switches" in fleet.compose("exec", *command))
    assert (fleet.folder / "fleet" / "agent" / "agent" / "asked").exists()


def test_pages_and_prometheus_of_the_compose_file_see_the_fleet(fleet: ComposeFleet) -> None:
    until(lambda: "series" in json.dumps(fleet.fetched("http://127.0.0.1:8765/api/v1/store")))
    jobs = ("pointillist-leader", "pointillist-helper", "pointillist-web", "pointillist-agent")
    until(lambda: {fleet.targets().get(job) for job in jobs} == {"up"})
