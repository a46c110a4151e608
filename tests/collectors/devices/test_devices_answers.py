"""What a child that loaded a vendor's driver answers: a few kinds of values, nothing that runs."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from collectors.devices.bandwidth import Bandwidth
from collectors.devices.bounded import AnswerRefused, Spawner, receive
from collectors.devices.device_port import (
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
    Partition,
    ProcessUse,
)
from collectors.records.basics import FailureKind, ReadFailure

CAPABILITIES = """
import json
from collectors.devices.bounded import Spawner
from transport.process.privileges import AGENT_USER, drop_to, ensure_users, process_status

def say(connection):
    status = process_status()
    connection.send([status["CapEff"], status["CapPrm"], status["CapBnd"]])

ensure_users()
kept = drop_to(AGENT_USER, keep_caps=["CAP_SYSLOG", "CAP_BPF", "CAP_PERFMON"]).kept
spawner = Spawner()
child = spawner.start(say)
print(json.dumps([list(kept), child.connection.recv(), process_status()["CapEff"]]))
"""

GAP = ReadFailure(FailureKind.TIMED_OUT, "late")
ANSWERS = [
    Inventory(2, "550.1", GAP),
    DevicesUnavailable("no driver"),
    Bandwidth(1, 2, 3, 4, None),
    DeviceReading(
        0, "GPU-1", "H200", 5, 6, {Field.POWER: 7, Field.MIG: GAP},
        (ProcessUse(1, 2, GAP, "/", "x"),), (Partition("MIG-1", 1, 2, GAP),),
    ),
]  # fmt: skip


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def _say_all(connection: Connection) -> None:
    for answer in ANSWERS:
        connection.send(answer)


class _Runs:
    """What a taken-over child would send: unpickled, it calls a function of its choice."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.putenv, ("POINTILLIST_TAKEN_OVER", "1")


class _Reaches:
    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (FailureKind, "__init_subclass__")


def _run_this(connection: Connection) -> None:
    connection.send(_Runs())


def _reach_this(connection: Connection) -> None:
    connection.send(_Reaches())


def _say_no_pickle(connection: Connection) -> None:
    connection.send_bytes(b"\x80\x05no pickle")


def _promise_much(connection: Connection) -> None:
    os.write(connection.fileno(), struct.pack("!i", 1 << 30) + b"x")


def _say_half(connection: Connection) -> None:
    os.write(connection.fileno(), struct.pack("!i", 100) + pickle.dumps(1))
    connection.recv()  # stays there


def test_answers_of_every_kind_come_as_they_were_sent(spawner: Spawner) -> None:
    child = spawner.start(_say_all)
    got = [receive(child.connection) for _ in ANSWERS]
    assert got[0] == ANSWERS[0]
    assert str(got[1]) == "no driver"
    assert got[2:] == ANSWERS[2:]
    child.kill()


@pytest.mark.parametrize("task", [_run_this, _reach_this, _say_no_pickle, _promise_much, _say_half])
def test_answers_that_are_none_are_refused_and_run_nothing(spawner: Spawner, task: object) -> None:
    child = spawner.start(task)  # type: ignore[arg-type]
    with pytest.raises((AnswerRefused, OSError)):
        receive(child.connection)
    assert "POINTILLIST_TAKEN_OVER" not in subprocess.run(
        ["env"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    child.kill()


@pytest.mark.root
def test_spawner_children_keep_none_of_the_agents_capabilities() -> None:
    """Root alone can make an agent that keeps some."""
    done = subprocess.run(
        [sys.executable, "-c", CAPABILITIES], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept, (effective, permitted, _), own = json.loads(done.stdout)
    if not kept:
        pytest.skip("this machine grants root none of the agent's capabilities")
    assert int(own, 16)
    assert int(effective, 16) == int(permitted, 16) == 0
