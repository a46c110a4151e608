"""Fleets on logs whose topics were made with another number of partitions than ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outage_kit import HOSTS, OutageFleet
from tests.upgrade.old_tree import NoHistory, first_compatible, unpack
from transport.embedded.embedded import EmbeddedLog
from transport.factory import TransportTable
from transport.interface import create_topics
from wire.topics import REPORTS

pytestmark = pytest.mark.release


@pytest.mark.parametrize("partitions", [1, 4, 32])
def test_agents_and_leader_take_the_log_as_it_is(tmp_path: Path, partitions: int) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        create_topics(log, reports=partitions)
    fleet = OutageFleet(tmp_path, TransportTable(tmp_path / "log"), window_s=60, windows=2)
    fleet.run_to(fleet.first + 2 * 60 + 60)
    ends = fleet.ends()
    fleet.close()
    assert list(ends.outcome) == ["released"] * 2
    assert set(ends.n_hosts) == {HOSTS}
    with EmbeddedLog(tmp_path / "log") as log:
        assert log.partitions(REPORTS) == partitions


def test_first_compatible_version_refuses_a_log_of_32_in_words(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It joins no such log, so nothing is lost to it: the page on upgrades says so."""
    try:
        old = unpack(first_compatible() or "HEAD", request.config.cache.mkdir("old_trees"))
    except NoHistory as reason:
        pytest.skip(str(reason))
    with EmbeddedLog(tmp_path / "log") as log:
        create_topics(log, reports=32)
    asked = json.dumps({"do": "setup", "folder": str(tmp_path), "hosts": 8})
    answer = subprocess.run(
        [sys.executable, "-m", "tests.upgrade.player"],
        cwd=old, input=f"{asked}\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode != 0
    assert f"topic {REPORTS} has 32 partitions, not 4" in answer.stderr
