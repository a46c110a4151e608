"""The child process that bounds NVML's driver: one that hangs, dies or starts slowly."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from collectors.devices.bounded import BoundedReader, Spawner
from collectors.devices.device_port import ALL, DevicesUnavailable, Field
from collectors.devices.devices_source import DevicesSource
from collectors.records.basics import FailureKind
from tests.fake_nvml_kit import Clock, FakeDriver
from transport.process.privileges import harden

pytestmark = pytest.mark.slow


class _Overheard:
    """A connection whose questions are noted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.questions: list[tuple[Any, ...]] = []

    def send(self, question: tuple[Any, ...]) -> None:
        self.questions.append(question)
        self._connection.send(question)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(driver: FakeDriver, clock: Clock) -> Iterator[BoundedReader]:
    bounded = BoundedReader(driver.reader, deadline_s=20, boottime_ns=clock)
    yield bounded
    bounded.close()


def test_nvml_names_are_forgotten_when_the_driver_counts_anew(
    reader: BoundedReader, driver: FakeDriver, clock: Clock
) -> None:
    """With a GPU less the others move up: the last place has no GPU, and must not name one."""
    reader.open()
    assert reader.read(7, (Field.POWER,)).id.endswith("7")
    assert reader.child_pid is not None
    os.kill(reader.child_pid, 9)
    driver.play("gpus 7")
    reader.read(0, (Field.POWER,))
    clock.now_ns += 61_000_000_000
    gone = reader.read(7, (Field.POWER,))
    assert (gone.id, gone.values) == ("index-7", {})


def test_nvml_hanging_call_costs_the_child_and_that_gpu_a_minute(
    driver: FakeDriver, clock: Clock
) -> None:
    driver.play("1 nvmlDeviceGetPowerUsage hang")
    reader = BoundedReader(driver.reader, deadline_s=3, boottime_ns=clock)
    try:
        reader.open()
        reader.read(1, (Field.TEMPERATURE,))
        first = reader.child_pid
        hung = reader.read(1, ALL)
        assert {gap.kind for gap in hung.gaps.values()} == {FailureKind.TIMED_OUT}
        assert hung.id.endswith("1")
        assert (reader.killed, reader.child_pid) == (1, None)
        assert reader.read(0, ALL).values[Field.POWER] == 300_000
        assert reader.child_pid not in {None, first}
        driver.play()
        clock.now_ns += 59_000_000_000
        alone = reader.read(1, ALL)
        assert {gap.kind for gap in alone.gaps.values()} == {FailureKind.LEFT_ALONE}
        clock.now_ns += 2_000_000_000
        assert reader.read(1, ALL).values[Field.POWER] == 300_000
        assert reader.killed == 1
    finally:
        reader.close()


def test_nvml_sweep_of_eight_gpus_is_one_question(reader: BoundedReader) -> None:
    source = DevicesSource([reader])
    source.start()
    assert reader._child is not None
    asked = _Overheard(reader._child.connection)
    reader._child.connection = asked  # type: ignore[assignment]
    for at_s in (1, 2):
        list(source.drain(at_s * 1_000_000_000))
        sweep = source.latest(at_s * 1_000_000_000)
        assert sweep is not None
        assert [one.values[Field.POWER] for one in sweep.devices] == [300_000] * 8
        assert [one.index for one in sweep.devices] == list(range(8))
    assert [indices for indices, *_ in asked.questions] == [tuple(range(8))] * 2


def test_nvml_gpu_that_hangs_in_a_sweep_costs_its_own_look_alone(
    driver: FakeDriver, clock: Clock
) -> None:
    reader = BoundedReader(driver.reader, deadline_s=3, boottime_ns=clock)
    try:
        reader.open()
        driver.play("2 nvmlDeviceGetPowerUsage hang")
        reader.ask(range(8), (Field.POWER,))
        looks = [reader.read(index, (Field.POWER,)) for index in range(8)]
        assert [one.index for one in looks if not one.values] == [2]
        assert [one.id[-1] for one in looks if one.values] == list("0134567")
        assert reader.killed == 1
        reader.ask(range(8), (Field.POWER,))
        again = [reader.read(index, (Field.POWER,)) for index in range(8)]
        assert [one.index for one in again if not one.values] == [2]
        assert reader.killed == 1, "who is left alone is not asked for"
    finally:
        reader.close()


def test_nvml_answers_that_nobody_took_are_nobody_elses(reader: BoundedReader) -> None:
    reader.open()
    reader.ask(range(8), (Field.POWER,))
    assert reader.read(0, (Field.POWER,)).id[-1] == "0"
    assert reader.read(5, (Field.POWER,)).id[-1] == "5"
    reader.ask(range(8), (Field.POWER,))
    assert set(reader.read(0, (Field.TEMPERATURE,)).fields) == {Field.TEMPERATURE}
    reader.ask((3, 4), (Field.POWER,))
    assert [reader.read(index, (Field.POWER,)).id[-1] for index in (3, 4)] == ["3", "4"]


def test_nvml_hanging_start_is_a_refusal_not_a_wait(driver: FakeDriver) -> None:
    driver.play("* nvmlInitWithFlags hang")
    reader = BoundedReader(driver.reader, start_s=0.3)
    with pytest.raises(DevicesUnavailable, match="expected an answer of the driver"):
        reader.open()
    assert reader.child_pid is None


def test_nvml_driver_that_starts_slowly_is_waited_for_without_holding_the_agent(
    driver: FakeDriver, clock: Clock
) -> None:
    reader = BoundedReader(driver.reader, deadline_s=0.2, start_s=20, boottime_ns=clock)
    try:
        driver.play("* nvmlInitWithFlags hang")
        first = reader.read(0, ALL)
        pid = reader.child_pid
        assert {gap.reason for gap in first.gaps.values()} == {"the driver is starting"}
        assert (reader.read(0, ALL).values, reader.child_pid, reader.killed) == ({}, pid, 0)
        clock.now_ns += 21_000_000_000
        reader.read(0, ALL)
        assert (reader.child_pid, reader.killed) == (None, 1)
    finally:
        reader.close()


def test_nvml_missing_driver_is_named(driver: FakeDriver) -> None:
    driver.play("* nvmlInitWithFlags error 9")
    reader = BoundedReader(driver.reader, deadline_s=20)
    with pytest.raises(DevicesUnavailable, match="NVML: Driver Not Loaded"):
        reader.open()


def test_nvml_child_that_dies_is_a_gap_and_is_replaced(
    driver: FakeDriver, clock: Clock, reader: BoundedReader
) -> None:
    reader.open()
    assert reader.child_pid is not None
    os.kill(reader.child_pid, 9)
    dead = reader.read(0, ALL)
    assert {gap.kind for gap in dead.gaps.values()} == {FailureKind.FAILED}
    assert reader.read(1, ALL).values[Field.POWER] == 300_000
    clock.now_ns += 61_000_000_000
    assert reader.read(0, ALL).values[Field.POWER] == 300_000


def test_nvml_child_keeps_no_file_of_the_agent_open(reader: BoundedReader, tmp_path: Path) -> None:
    with (tmp_path / "ledger").open("wb") as kept:
        reader.open()
        files = {str(fd.readlink()) for fd in Path(f"/proc/{reader.child_pid}/fd").iterdir()}
        assert kept.name not in files


@pytest.mark.root
def test_nvml_child_works_after_the_privileges_were_dropped(driver: FakeDriver) -> None:
    """The drop is made in a thread's own process: uid 65534, which cannot read root's folders."""
    driver.library.parent.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            harden()
            reader = BoundedReader(driver.reader, Spawner(), deadline_s=20)
            reader.open()
            code = 0 if reader.read(0, ALL).values[Field.POWER] == 300_000 else 2
            child = Path(f"/proc/{reader.child_pid}")
            reader.close()  # the spawner lives on: only a kill ends the child
            end = time.monotonic() + 10
            while child.exists() and time.monotonic() < end:
                time.sleep(0.01)
            code = code or (3 if child.exists() else 0)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nvml_reads_from_a_threaded_process(reader: BoundedReader) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        reader.open()
        assert reader.read(0, ALL).values[Field.POWER] == 300_000
    finally:
        stop.set()
        thread.join()
