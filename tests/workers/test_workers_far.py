"""`pointillist leader run` on two machines: a coordinator, and workers that meet it by mutual TLS.

The far machine is a network namespace, where the broker is too: while the link is down nobody reads
for the Leader, and it says so.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from aggregator.party.party_config import load_leader_config
from tests.fault.test_broker_faults import FarBroker
from tests.integration.test_channel_tls import Authority
from tests.kafka_kit import plain_settings
from tests.netns_kit import NEAR, Link, linked
from tests.process_kit import wait_for
from tests.workers.test_workers_command import configuration, status
from transport.files.keyfiles import load_signing_key
from transport.opening import Side, open_transport
from transport.port import create_topics
from transport.process.privileges import LEADER_USER, ensure_users

pytestmark = [pytest.mark.root, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

PLACE = f"{NEAR}:7445"


@pytest.fixture
def link() -> Iterator[Link]:
    with linked() as made:
        yield made


@pytest.fixture
def log(tmp_path: Path, link: Link) -> Iterator[str]:
    """The table of a broker at the far end, which has every topic."""
    with FarBroker(tmp_path / "kafka", link) as broker:
        running = broker.start(print)
        with open_transport(plain_settings(running), Side.AGGREGATOR) as kafka:
            create_topics(kafka)
        yield f'[transport.kafka]\nbootstrap = ["{running.bootstrap}"]\nlease_s = 6.0\n'


def machine(folder: Path, log: str, tls: Authority, name: str, more: str = "") -> list[str]:
    """The command of a machine, on a configuration in a folder of its own."""
    folder.mkdir(mode=0o755)
    path = configuration(folder)
    files = tls.issue(name)
    if ensure_users():
        for file in (files.ca_file, files.cert_file, files.key_file):
            shutil.chown(file, LEADER_USER, LEADER_USER)
    table = f'[workers]\naddress = "{PLACE}"\nca_file = "{files.ca_file}"\n{more}'
    table += f'cert_file = "{files.cert_file}"\nkey_file = "{files.key_file}"\n'
    own = f'[transport]\nfolder = "{folder}/log"\ngroup = "pointillist"\n'
    path.write_text(path.read_text().replace(own, log) + table)
    assert load_leader_config(path).workers is not None
    return [sys.executable, "-m", "pointillist", "leader", "run", "--config", str(path)]


def test_workers_of_another_machine_read_are_followed_and_come_back(link: Link, log: str) -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        tls = Authority.make(place / "tls", NEAR)
        here = machine(place / "here", log, tls, "coordinator")
        identity = place / "here" / "keys" / "identity.key"
        leader_pk = load_signing_key(identity, owner=identity.stat().st_uid).public_bytes.hex()
        there = machine(place / "there", log, tls, "workers", f'leader_pk = "{leader_pk}"\n')
        coordinator = subprocess.Popen([*here, "--workers", "0"])
        workers = subprocess.Popen(link.far([*there, "--workers", "2"]))
        machines = coordinator, workers

        def reads(sessions: int) -> bool:
            assert all(process.poll() is None for process in machines)
            found = status(place / "here")
            return bool(found.get("workers", 0) >= sessions and found["log_lag"] == 0)

        try:
            wait_for(lambda: reads(2))
            (fork_server,) = psutil.Process(workers.pid).children()
            fork_server.children()[0].kill()
            wait_for(lambda: reads(3))  # the session of the one that fell goes on for a minute
            link.cut()
            wait_for(lambda: status(place / "here")["log_lag"] != 0)
            link.mend()
            wait_for(lambda: reads(2))
            for process in machines:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(60) for process in machines] == [0, 0]
        finally:
            for process in machines:
                process.kill()
                process.wait()
