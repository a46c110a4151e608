"""The driver's process and its pipe, with a program in the driver's place that needs no Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from aggregator.party.config import SparkSettings
from aggregator.protocol.directory import PinnedParties
from aggregator.spark import driver_process
from aggregator.spark.driver_process import AGAIN_S, HANGS_S, DriverProcess, SparkJob
from aggregator.spark.messages import EpochUnknown
from tests.wait_kit import until
from transport.kafka.kafka_frame import KafkaSettings

ECHO = """
import pickle, sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[-1]))
assert pipe.recv().parties.leader_pk == b"l" * 32
pipe.send_bytes(b"pid %d" % __import__("os").getpid())
try:
    while True:
        for command in pickle.loads(pipe.recv_bytes()):
            pipe.send_bytes(command.name)
except EOFError:
    pass
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Iterator[Callable[[str], DriverProcess]]:
    """Begins a driver that runs a program of Python's."""
    begun: list[DriverProcess] = []

    def made(program: str, python: Path = Path(sys.executable)) -> DriverProcess:
        job = SparkJob(
            KafkaSettings(("broker:9093",)),
            PinnedParties(b"l" * 32, b"h" * 32),
            SparkSettings(),
            python,
            jars=tmp_path,
            folder=tmp_path / "spark",
        )
        begun.append(DriverProcess(job, program=("-c", program), clock=clock))
        return begun[-1]

    yield made
    for driver in begun:
        driver.close()


def said(driver: DriverProcess, wanted: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def complete() -> bool:
        found.extend(driver.said())
        return len(found) >= wanted

    until(complete)
    return found


def pid_of(words: Sequence[bytes | None]) -> int:
    return int(next(word for word in words if word).split()[1])


def test_driver_says_and_is_told_in_order(begin: Callable[[str], DriverProcess]) -> None:
    driver = begin(ECHO)
    driver.tell([EpochUnknown(b"lost")])  # nobody is there yet
    assert said(driver, 2)[0] is None
    names = [b"%d" % number for number in range(200)]
    for name in names:
        driver.tell([EpochUnknown(name)])
    assert said(driver, 200) == names


def test_driver_that_fell_is_followed_after_a_pause(
    begin: Callable[[str], DriverProcess], clock: Clock
) -> None:
    driver = begin(ECHO)
    first = pid_of(said(driver, 2))
    os.kill(first, 9)
    until(lambda: driver.said() == [] and driver._driver is None)
    assert driver.said() == ()
    clock.now_s = AGAIN_S
    words = said(driver, 2)
    assert words[0] is None
    assert pid_of(words) != first


def test_driver_that_is_refused_ends_and_is_followed(
    begin: Callable[[str], DriverProcess], clock: Clock
) -> None:
    driver = begin(ECHO)
    first = pid_of(said(driver, 2))
    driver.refuse("expected another sum")
    assert not psutil.pid_exists(first)
    clock.now_s = AGAIN_S
    assert pid_of(said(driver, 2)) != first


def test_driver_that_says_too_much_at_once_falls(
    begin: Callable[[str], DriverProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_process, "UPDATE_BYTES", 1000)
    driver = begin(ECHO.replace('b"pid %d" % __import__("os").getpid()', 'b"x" * 1001'))
    assert said(driver, 1) == [None]
    until(lambda: driver.said() == [] and driver._driver is None)


def test_driver_that_hangs_is_followed(begin: Callable[[str], DriverProcess], clock: Clock) -> None:
    driver = begin(ECHO)
    clock.now_s = 10 * HANGS_S  # it has not spoken yet: Spark begins slowly
    first = pid_of(said(driver, 2))
    clock.now_s += HANGS_S
    assert driver.said() == []
    assert driver._driver is not None
    clock.now_s += 1
    assert driver.said() == []
    clock.now_s += AGAIN_S
    assert pid_of(said(driver, 2)) != first


def test_driver_that_says_much_waits_until_it_is_heard(
    begin: Callable[[str], DriverProcess],
) -> None:
    driver = begin(
        ECHO.replace("try:", "for _ in range(2000):\n    pipe.send_bytes(b'x' * 4096)\ntry:")
    )
    assert len(said(driver, 2002)) == 2002


def test_driver_ends_with_its_leader(begin: Callable[[str], DriverProcess]) -> None:
    driver = begin(ECHO)
    pid = pid_of(said(driver, 2))
    driver.close()
    assert not psutil.pid_exists(pid)


def test_python_that_is_not_there_is_tried_again(
    tmp_path: Path, begin: Callable[..., DriverProcess], clock: Clock
) -> None:
    driver = begin(ECHO, tmp_path / "none")
    assert driver.said() == ()
    clock.now_s = AGAIN_S
    assert driver.said() == ()
