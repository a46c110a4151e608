"""A machine whose folders for temporary files are mounted noexec, as hardening guides ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = [pytest.mark.root, pytest.mark.release, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
# Mounts of its own, which end with it; a program put there is not run.
INSIDE = """
mount --make-rprivate /
for at in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o noexec,nosuid,nodev tmpfs $at; done
printf '#!/bin/sh\\n' >/tmp/program
chmod +x /tmp/program
! /tmp/program 2>/dev/null
exec "$@"
"""
BROKER = """
import sys
from pathlib import Path
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pointillist.broker.local import BrokerOptions, LocalBroker

broker = LocalBroker(Path(sys.argv[1]), BrokerOptions(heap_mib=256))
try:
    servers = {"bootstrap.servers": broker.start().bootstrap, "log_level": 0}
    admin = AdminClient(servers)
    for made in admin.create_topics([NewTopic("records", 1, 1)]).values():
        made.result()
    for codec in ("none", "gzip", "lz4", "snappy", "zstd"):
        failed = []
        limits = {"compression.type": codec, "message.timeout.ms": 30_000, "linger.ms": 100}
        producer = Producer(servers | limits)
        for _ in range(50):
            producer.produce("records", bytes(200), callback=lambda e, _m: e and failed.append(e))
        assert producer.flush(60) == 0 and not failed, (codec, failed)
finally:
    broker.kill()
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "sh", "-euc", INSIDE, "sh", sys.executable, *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "TMPDIR": "/tmp"},
    )  # fmt: skip


def doctor(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {row["name"]: row["verdict"] for row in json.loads(done.stdout)["findings"]}


def test_sources_load_their_programs() -> None:
    words = ("-m", "pointillist", "agent", "doctor", "--json")
    plain = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert doctor(run(*words)) == doctor(plain)


def test_trial_comes_to_a_release() -> None:
    typed = """
    $0 -m pointillist fleet init /tmp/trial --hosts 40 --window-s 10 --windows 60 >&2
    exec $0 -m pointillist fleet up /tmp/trial --until-release --json
    """
    in_a_shell = "import os, sys; os.execvp('sh', ['sh', '-euc', sys.argv[1], sys.executable])"
    done = run("-c", in_a_shell, typed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["released"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is none of those that the mounts hide."""
    with TemporaryDirectory(dir=ROOT / ".tools") as name:
        yield Path(name)


@pytest.mark.kafka
def test_local_broker_takes_every_codec(folder: Path) -> None:
    """Its libraries for snappy and zstd are unpacked into a folder of its own."""
    done = run("-c", BROKER, str(folder / "kafka"))
    assert done.returncode == 0, done.stderr
