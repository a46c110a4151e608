"""Agents that lie, flood or are another user's: the library leaves them, the program goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from collectors.gpu_time.listener import HELLO, LEASE, MAGIC, VERSION
from collectors.gpu_time.segment import ProcessSegment
from tests.closed_kit import let_in
from tests.gpu_time_kit import program

pytestmark = pytest.mark.slow


class HostileAgent:
    """Listens, and says to each connection what it was made with."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(str(path))
        self.socket.listen(8)
        self.socket.settimeout(10)

    def meet(self) -> tuple[socket.socket, ProcessSegment]:
        """Take a connection; give it with its memory."""
        connection, _ = self.socket.accept()
        said, (descriptor,), _, _ = socket.recv_fds(connection, 64, 4)
        assert HELLO.unpack(said)[:2] == (MAGIC, VERSION)
        segment = ProcessSegment(descriptor)
        os.close(descriptor)
        return connection, segment


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileAgent]:
    found = HostileAgent(tmp_path / "gpu-time.sock")
    yield found
    found.socket.close()


GOOD = (MAGIC, VERSION, 60_000, 1_000, 1_000, 0)
LIES = {
    "garbage": b"\xff" * LEASE.size,
    "nothing": b"",
    "one byte": b"x",
    "short": LEASE.pack(*GOOD)[:-1],
    "long": LEASE.pack(*GOOD) + b"\0",
    "huge": b"\0" * 100_000,
    "another version": LEASE.pack(MAGIC, VERSION + 1, *GOOD[2:]),
    "without a lease": LEASE.pack(*GOOD[:2], 0, *GOOD[3:]),
    "a lease without end": LEASE.pack(*GOOD[:2], 60_001, *GOOD[3:]),
    "a period of nothing": LEASE.pack(*GOOD[:3], 0, 0, 0),
    "longer than its period": LEASE.pack(*GOOD[:3], 1_001, 1_000, 0),
}


def test_an_agent_that_lies_is_left_and_met_again(hostile: HostileAgent, tmp_path: Path) -> None:
    """All lies, each to a program of its own at the same time."""
    with ExitStack() as stack:
        programs = [stack.enter_context(program(tmp_path / "gpu-time.sock")) for _ in LIES]
        connections = [hostile.meet() for _ in LIES]
        for (connection, _), lie in zip(connections, LIES.values(), strict=True):
            connection.send(lie)
        again = [hostile.meet() for _ in LIES]
        for connection, segment in connections:
            connection.settimeout(2)
            assert connection.recv(1) == b""
            assert segment.read().header["windows"] == 0
        for connection, _ in (*connections, *again):
            connection.close()
        for one in programs:
            assert (one.ask("kernels gemm 5 0 10"), one.end()) == ("done 5", 0)


def test_an_agent_that_floods_is_left(hostile: HostileAgent, tmp_path: Path) -> None:
    with program(tmp_path / "gpu-time.sock") as one:
        connection, segment = hostile.meet()
        message, sent = LEASE.pack(*GOOD), 0
        connection.settimeout(5)
        with suppress(ConnectionError):
            while True:
                sent += connection.send(message) > 0
        assert sent > 1000
        assert segment.read().header["cpu_ns"] < 1_000_000_000
        connection.close()
        assert one.end() == 0


def test_descriptors_that_an_agent_sends_are_not_kept(
    hostile: HostileAgent, tmp_path: Path
) -> None:
    with program(tmp_path / "gpu-time.sock") as one:
        connection, _ = hostile.meet()
        before = descriptors(one.pid)
        for _ in range(20):
            socket.send_fds(connection, [LEASE.pack(*GOOD[:3], 0, 1_000, 0)], [0, 1, 2])
        time.sleep(0.2)
        assert descriptors(one.pid) == before
        connection.close()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.root
def test_an_agent_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    let_in(tmp_path)
    tmp_path.chmod(0o777)
    path = tmp_path / "gpu-time.sock"
    lines = (
        "import os, socket, sys",
        "os.setgid(65534); os.setuid(65534)",
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); s.listen(8)",
        "print('listening', flush=True)",
        "c, _ = s.accept()",
        "print(socket.recv_fds(c, 100, 4)[:2], flush=True)",
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines), path], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "listening\n"
        with program(path) as one:
            assert other.stdout.readline() == "(b'', [])\n"
            assert one.end() == 0
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_a_socket_s_name_too_long_is_no_other_s(tmp_path: Path) -> None:
    """The name is not cut: a socket at its beginning is somebody else's."""
    name = str(tmp_path / "a")
    name += "a" * (107 - len(name))  # the longest
    found = HostileAgent(Path(name))
    found.socket.settimeout(0.7)
    with program(Path(f"{name}-longer")) as one:
        with pytest.raises(TimeoutError):
            found.socket.accept()
        assert one.end() == 0
    found.socket.close()
