"""`pointillist leader run --workers` as processes that gave root up, in a folder closed to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from aggregator.party.party_health import Health
from aggregator.workers.coordinator_shell import CoordinatorShell
from privacy.signing import SigningKey
from tests.closed_kit import closed
from tests.process_kit import wait_for
from tests.protocol_kit import seeded_bytes
from transport.files.keyfiles import write_signing_key
from transport.process.privileges import LEADER_USER, ensure_users


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the Leader's user may enter."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def configuration(folder: Path) -> Path:
    """A Leader's configuration whose Helper is away."""
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    write_signing_key(keys / "identity.key", SigningKey.generate())
    shared = ensure_users()
    if shared:
        for path in (keys, keys / "identity.key"):
            shutil.chown(path, LEADER_USER, LEADER_USER)
    (folder / "signed").mkdir()
    path = folder / "leader.toml"
    path.write_text(
        f"""
[leader]
key_dir = "{keys}"
state_dir = "{folder}/state"
signed_dir = "{folder}/signed"
helper_pk = "{SigningKey.from_seed_bytes(seeded_bytes("helper")).public_bytes.hex()}"

[transport]
folder = "{folder}/log"
{'group = "pointillist"' if shared else ""}

[helper]
socket = "{folder}/nobody.sock"

[store]
database = "{folder}/store/releases.duckdb"
releases_dir = "{folder}/releases"
"""
    )
    return path


def status(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / "state" / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return document


def test_workers_come_are_followed_and_end_with_the_leader(place: Path) -> None:
    config = configuration(place)
    command = [sys.executable, "-m", "pointillist", "leader", "run"]
    command += ["--config", str(config), "--workers", "2"]
    leader = subprocess.Popen(closed(command), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: status(place).get("workers") == 2 and status(place)["log_lag"] == 0, 40)
        (fork_server,) = psutil.Process(leader.pid).children()
        workers = fork_server.children()
        assert len(workers) == 2
        uid = os.geteuid() or psutil.Process(workers[0].pid).uids().real
        assert {worker.uids().real for worker in workers} == {uid}
        assert uid != 0
        health = Health("leader", CoordinatorShell.measures)
        health.say(status(place))
        said_of_workers = {f.name: f.samples[0].value for f in health.families() if f.samples}
        assert said_of_workers["pointillist_leader_workers"] == 2
        assert said_of_workers["pointillist_leader_partitions_unread"] == 0
        assert said_of_workers["pointillist_leader_partial_sums"] == 0
        workers[0].send_signal(signal.SIGKILL)
        # The session of the one that fell goes on for a minute.
        wait_for(lambda: status(place)["workers"] == 3 and status(place)["log_lag"] == 0, 40)
        workers = fork_server.children()
        leader.send_signal(signal.SIGTERM)
        assert leader.wait(40) == 0
        wait_for(lambda: not any(worker.is_running() for worker in workers), 20)
    finally:
        leader.kill()
        _, said = leader.communicate()
    assert '"worker fell"' in said
