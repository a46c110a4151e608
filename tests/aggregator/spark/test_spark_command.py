"""`pointillist leader run --engine spark` as processes: the driver comes, is followed, and ends."""

from __future__ import annotations

import pwd
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from aggregator.party.config import SparkSettings
from aggregator.spark.driver_process import python_of
from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.leader_command_kit import configuration, status
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.interface import create_topics
from transport.process.privileges import LEADER_USER, ensure_users, reachable

pytestmark = [pytest.mark.kafka, pytest.mark.release]

PATIENCE_S = 200.0


def need_reach() -> None:
    """Skip where Spark's environment lies in a folder that the Leader's user may not enter."""
    if not ensure_users():
        return
    leader = pwd.getpwnam(LEADER_USER)
    python = python_of(SparkSettings())
    if not reachable(python, leader.pw_uid, leader.pw_gid):
        pytest.skip(f"needs {python} within the reach of {LEADER_USER}")


def driver_of(leader: psutil.Process) -> psutil.Process | None:
    """The Leader's child that runs Spark."""
    for process in leader.children(recursive=True):
        with suppress(psutil.Error):  # it may end meanwhile
            if "aggregator.spark.driver" in process.cmdline():
                return process
    return None


@pytest.mark.timeout(600)
def test_driver_comes_is_followed_and_ends_with_the_leader(broker: RunningBroker) -> None:
    need_reach()
    prefix = fresh_prefix()
    settings = plain_settings(broker, prefix)
    with open_transport(settings, Side.AGGREGATOR) as kafka:
        create_topics(kafka)
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        config = configuration(folder)
        text = config.read_text().replace(
            f'folder = "{folder}/log"\ngroup = "pointillist"',
            f'[transport.kafka]\nbootstrap = ["{broker.bootstrap}"]\nprefix = "{prefix}"',
        )
        config.write_text(f'{text}\n[spark]\nmaster = "local[2]"\n')
        command = [sys.executable, "-m", "pointillist", "leader", "run"]
        command += ["--config", str(config), "--engine", "spark"]
        said = folder / "said"
        with said.open("w") as file:
            leader = subprocess.Popen(command, stderr=file)
        try:
            seen = psutil.Process(leader.pid)

            def reads() -> bool:
                found = status(folder)
                return found.get("partitions_unread") == 0 and found.get("log_lag") == 0

            until(reads, PATIENCE_S)
            first = driver_of(seen)
            assert first is not None
            assert first.uids() == seen.uids()
            assert first.uids().real != 0 or not ensure_users()
            first.kill()
            until(lambda: driver_of(seen) not in {None, first}, PATIENCE_S)
            until(lambda: said.read_text().count('"driver began"') == 2, PATIENCE_S)
            until(reads, PATIENCE_S)
            last = driver_of(seen)
            leader.send_signal(signal.SIGTERM)
            assert leader.wait(60) == 0
            assert last is not None
            until(lambda: not last.is_running(), 60)
        finally:
            leader.kill()
            leader.wait()
            print(said.read_text()[-4000:])
        assert said.read_text().count('"driver fell"') == 1
