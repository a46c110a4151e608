"""The spawner: children of a driver, started without the agent's keys and ended with the agent."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from collectors.devices.bounded import BoundedReader, Spawner, SpawnerClosed
from collectors.devices.device_port import ALL, DevicesUnavailable
from collectors.records.basics import FailureKind
from tests.agent_live import surroundings
from tests.fake_nvml_kit import FakeDriver
from tests.wait_kit import until

pytestmark = pytest.mark.slow

AGENT = """
import json, os, pickle, sys, time
from pathlib import Path
from edge_agent.open_agent import open_agent

runtime, absent = open_agent(pickle.loads(Path(sys.argv[1]).read_bytes()))
devices = next(source for source in runtime.sources if source.name == "devices")
first = devices._reader.child_pid
os.kill(first, 9)
devices._reader.read(0, ())
devices._reader._quiet_until_ns.clear()
reading = devices._reader.read(0, ())
print(json.dumps([first, devices._reader.child_pid, reading.id]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def _holds(pid: int, secret: bytes) -> bool:
    """Look through every readable page of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if found is None or line.endswith(("[vvar]", "[vvar_vclock]", "[vsyscall]")):
                continue
            begin, end = (int(one, 16) for one in found.groups())
            memory.seek(begin)
            try:
                if secret in memory.read(end - begin):
                    return True
            except OSError:
                continue
    return False


def _files(pid: int) -> set[str]:
    return {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


def _gone(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            == "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_spawner_that_nobody_closed_ends_with_its_object() -> None:
    spawner = Spawner()
    process = psutil.Process(spawner.pid)
    child = os.fork()
    if child == 0:
        del spawner  # a child's copy ends nothing of its parent's
        os._exit(0)
    os.waitpid(child, 0)
    assert process.status() != psutil.STATUS_ZOMBIE
    del spawner
    assert not psutil.pid_exists(process.pid)


@pytest.mark.root
def test_spawner_readers_of_an_agent_hold_no_key_also_after_one_was_replaced(
    tmp_path: Path,
) -> None:
    """Root alone reads the memory of a process that left root; the agent's own is the control."""
    made = surroundings(tmp_path)
    config = tmp_path / "config.pickle"
    config.write_bytes(pickle.dumps(made.config))
    driver = FakeDriver(tmp_path)
    seed = made.world.signing_keys[0].seed_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(config)],
        env={**os.environ, **driver.environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as agent:  # fmt: skip
        assert agent.stdout is not None
        _, child, device_id = json.loads(agent.stdout.readline())
        assert device_id.startswith("GPU-")  # the replacement reads
        spawner = _parent(child)
        assert _parent(spawner) == agent.pid
        assert _holds(agent.pid, seed)
        for pid in (spawner, child):
            assert not _holds(pid, seed)
            assert not [name for name in _files(pid) if str(tmp_path) in name]
        agent.kill()
    until(lambda: _gone(child))
    until(lambda: _gone(spawner))


def _echo(connection: Connection) -> None:
    connection.send((os.getpid(), connection.recv()))


def _wait(connection: Connection) -> None:
    signal.pause()


def test_spawner_gives_each_task_a_child_of_its_own(spawner: Spawner) -> None:
    children = [spawner.start(_echo) for _ in range(3)]
    for place, child in enumerate(children):
        child.connection.send(place)
    answers = [child.connection.recv() for child in children]
    assert answers == [(child.pid, place) for place, child in enumerate(children)]
    until(lambda: all(_gone(child.pid) for child in children))
    for child in children:
        child.kill()


def test_spawner_child_that_hangs_is_killed_and_the_next_one_works(spawner: Spawner) -> None:
    hanging = spawner.start(_wait)
    assert not hanging.connection.poll(0.05)
    hanging.kill()
    hanging.kill()
    until(lambda: _gone(hanging.pid))
    with pytest.raises(OSError, match="closed"):
        hanging.connection.poll()
    after = spawner.start(_echo)
    after.connection.send("x")
    assert after.connection.recv() == (after.pid, "x")
    after.kill()


def test_spawner_that_answers_late_never_gives_the_child_of_another_task() -> None:
    spawner = Spawner(answer_s=1.0)
    os.kill(spawner.pid, signal.SIGSTOP)
    with pytest.raises(SpawnerClosed, match="timed out"):
        spawner.start(_wait)
    os.kill(spawner.pid, signal.SIGCONT)
    child = spawner.start(_echo)
    child.connection.send("x")
    assert child.connection.recv() == (child.pid, "x")
    child.kill()
    left = Path(f"/proc/{spawner.pid}/task/{spawner.pid}/children")
    until(lambda: not left.read_text(encoding="utf-8").split())
    spawner.close()


def test_spawner_that_ended_is_a_gap_and_never_a_child_of_the_agent(tmp_path: Path) -> None:
    driver, spawner = FakeDriver(tmp_path), Spawner()
    reader = BoundedReader(driver.reader, spawner, deadline_s=20)
    reader.open()
    os.kill(spawner.pid, signal.SIGKILL)
    child = reader.child_pid
    assert child is not None
    until(lambda: _gone(child))
    readings = [reader.read(index, ALL) for index in (0, 1)]
    assert all(
        {gap.kind for gap in reading.gaps.values()} == {FailureKind.FAILED} for reading in readings
    )
    assert reader.child_pid is None
    with pytest.raises(DevicesUnavailable, match="no child can be started"):
        reader.open()
    spawner.close()
    spawner.close()
    with pytest.raises(SpawnerClosed):
        spawner.start(_echo)
