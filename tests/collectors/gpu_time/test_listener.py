"""Who connects is a stranger: what is no hello is turned away, and nothing of it stays."""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from collectors.gpu_time.listener import (
    HELLO,
    LEASE,
    MAGIC,
    MOST_CONNECTIONS,
    VERSION,
    Listener,
    Reporter,
    WindowPlan,
)
from collectors.gpu_time.listener import ConnectionRefusal as Refusal
from tests.segment_kit import FakeMemory
from tests.wait_kit import until

GREETING = HELLO.pack(MAGIC, VERSION, 1, 0)


@pytest.fixture
def memory() -> Iterator[FakeMemory]:
    found = FakeMemory()
    yield found
    found.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    found = Listener(tmp_path / "s.sock")
    yield found
    found.close()


def greeted(listener: Listener, said: bytes, *descriptors: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(listener._path))
    socket.send_fds(connection, [said], list(descriptors))
    return connection


def open_descriptors() -> int:
    gc.collect()  # what other tests left would be closed in between
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_library_is_taken_with_the_kernel_s_word_for_who_it_is(
    listener: Listener, memory: FakeMemory
) -> None:
    with greeted(listener, GREETING, memory.descriptor) as connection:
        (reporter,) = listener.accept()
        assert (reporter.pid, reporter.uid) == (os.getpid(), os.getuid())
        assert reporter.segment.read().names == ("",)
        assert reporter.lease(WindowPlan(5, 10, 7), 900)
        assert LEASE.unpack(connection.recv(100)) == (MAGIC, VERSION, 900, 5, 10, 7)
        assert not reporter.gone()
        connection.send(b"more")
        assert not reporter.gone()
    assert reporter.gone()
    assert not reporter.lease(WindowPlan(5, 10), 900)
    reporter.close()
    assert reporter.gone()


@pytest.mark.parametrize(
    ("said", "descriptors", "reason"),
    [
        (GREETING, 0, Refusal.HELLO), (GREETING, 2, Refusal.HELLO), (GREETING, 3, Refusal.HELLO),
        (GREETING, 60, Refusal.HELLO), (GREETING[:-1], 1, Refusal.HELLO),
        (GREETING + b"\0", 1, Refusal.HELLO), (GREETING * 1000, 1, Refusal.HELLO),
        (b"x", 1, Refusal.HELLO), (b"\xff" * HELLO.size, 1, Refusal.VERSION),
        (HELLO.pack(MAGIC, 2, 1, 0), 1, Refusal.VERSION),
    ],
    ids=["none", "two", "three", "sixty", "short", "long", "huge", "a byte", "garbage", "newer"],
)  # fmt: skip
def test_what_is_no_hello_is_turned_away(
    listener: Listener, memory: FakeMemory, said: bytes, descriptors: int, reason: Refusal
) -> None:
    before = open_descriptors()
    with greeted(listener, said, *[memory.descriptor] * descriptors) as connection:
        assert list(listener.accept()) == []
        assert listener.refused == {reason: 1}
        connection.settimeout(2)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert open_descriptors() == before


def test_who_says_nothing_does_not_hold_up_others(listener: Listener, memory: FakeMemory) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(listener._path))
        with greeted(listener, GREETING, memory.descriptor):
            (reporter,) = listener.accept()
            reporter.close()
    assert listener.refused == {Refusal.SYSTEM: 1}


def test_memory_that_is_none_is_turned_away(listener: Listener, tmp_path: Path) -> None:
    unsealed = FakeMemory(seals=0)
    before = open_descriptors()
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        for descriptor in (unsealed.descriptor, file.fileno()):
            with greeted(listener, GREETING, descriptor):
                assert list(listener.accept()) == []
    assert listener.refused == {Refusal.MEMORY: 2}
    assert open_descriptors() == before
    unsealed.close()


def test_no_more_stay_than_there_is_room_for(listener: Listener, memory: FakeMemory) -> None:
    before = open_descriptors()
    connections = [greeted(listener, GREETING, memory.descriptor) for _ in range(10)]
    taken = list(listener.accept(room=3))
    assert (len(taken), listener.refused) == (3, {Refusal.FULL: 7})
    for reporter in taken:
        reporter.close()
    for connection in connections:
        connection.close()
    assert open_descriptors() == before


def test_a_flood_of_connections_does_not_hold_the_listener(
    listener: Listener, memory: FakeMemory
) -> None:
    """Others connect as fast as they are turned away: a call still ends."""
    ending = threading.Event()

    def flood() -> None:
        while not ending.is_set():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.connect(str(listener._path))

    floods = [threading.Thread(target=flood) for _ in range(2)]
    for thread in floods:
        thread.start()
    try:
        for _ in range(3):
            assert list(listener.accept()) == []
        assert sum(listener.refused.values()) <= 3 * MOST_CONNECTIONS
    finally:
        ending.set()
        while any(thread.is_alive() for thread in floods):
            list(listener.accept())
    for thread in floods:
        thread.join()
    list(listener.accept())


def test_a_process_out_of_descriptors_listens_on(listener: Listener, memory: FakeMemory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with greeted(listener, GREETING, memory.descriptor):
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            assert list(listener.accept()) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        (reporter,) = listener.accept()
        reporter.close()
    assert listener.refused == {Refusal.SYSTEM: 1}


def test_leases_that_nobody_reads_do_not_hold_up(listener: Listener, memory: FakeMemory) -> None:
    with greeted(listener, GREETING, memory.descriptor):
        (reporter,) = listener.accept()
        assert all(reporter.lease(WindowPlan(0, 10), 900) for _ in range(2000))
        reporter.close()


def test_a_socket_left_behind_is_replaced_and_any_other_file_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    Listener(path)._socket.close()
    assert path.is_socket()
    Listener(path).close()
    assert not path.exists()
    path.write_text("of somebody")
    before = open_descriptors()
    with pytest.raises(OSError, match="in use"):
        Listener(path)
    assert (path.read_text(), open_descriptors()) == ("of somebody", before)


@pytest.mark.parametrize("plan", [(0, 9), (11, 10), (-1, 10), (0, 60_001), (0, 10, 1 << 32)])
def test_plan_out_of_bounds_is_refused(plan: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected a period"):
        WindowPlan(*plan)


def test_reporter_is_gone_when_its_process_is(listener: Listener, memory: FakeMemory) -> None:
    child = os.fork()
    if child == 0:
        greeted(listener, GREETING, memory.descriptor)
        os._exit(0)
    os.waitpid(child, 0)
    found: list[Reporter] = list(listener.accept())
    assert [one.pid for one in found] == [child]
    until(found[0].gone)
    found[0].close()
