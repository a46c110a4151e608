"""What steps are made of: reads of the disk and of cached files, copies, wake-ups, an exchange.

Marks are calls into the shared object whose functions carry the probes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.diagnosis.shared import StepLog
from collectors.boot_clock import boottime_ns

KIB: Final = 1 << 10
MIB: Final = 1 << 20
DISK_FILE_BYTES: Final = 128 * MIB
CACHED_FILE_BYTES: Final = 48 * MIB
LENGTH: Final = struct.Struct("<I")


def make_file(path: Path, size: int) -> Path:
    """Write a file of random bytes where none of that size is; returns its path."""
    if not path.exists() or path.stat().st_size != size:
        with path.open("wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


class DiskReads:
    def __init__(self, path: Path, seed: int, piece_bytes: int = 256 * KIB) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._buffer = mmap.mmap(-1, piece_bytes)
        self._pieces = path.stat().st_size // piece_bytes
        self._piece_bytes, self._random = piece_bytes, random.Random(seed)

    def read(self, pieces: int) -> None:
        for _ in range(pieces):
            place = self._random.randrange(self._pieces) * self._piece_bytes
            os.preadv(self._file, [self._buffer], place)


class CachedReads:
    """Reads at random places through the page cache, as of a working set that fits."""

    def __init__(self, path: Path, seed: int, piece_bytes: int = 8 * KIB) -> None:
        self._file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._size, self._piece_bytes = path.stat().st_size, piece_bytes
        self._random = random.Random(seed)

    def fill(self) -> None:
        """Bring the whole file into the cache, charged to this process's cgroup."""
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        for place in range(0, self._size, MIB):
            os.pread(self._file, MIB, place)

    def read(self, pieces: int) -> None:
        for _ in range(pieces):
            place = self._random.randrange(self._size // self._piece_bytes) * self._piece_bytes
            os.pread(self._file, self._piece_bytes, place)


def job_files(folder: Path, seed: int, name: str = "") -> tuple[DiskReads, CachedReads]:
    """Make the job's files where they are not yet; read one past the cache, one through it."""
    disk = DiskReads(make_file(folder / f"data{name}", DISK_FILE_BYTES), seed)
    cached = CachedReads(make_file(folder / f"cached{name}", CACHED_FILE_BYTES), seed)
    cached.fill()
    return disk, cached


class Copies:
    """Copies into fresh memory: page faults and charges, then bandwidth."""

    def __init__(self, size: int = 2 * MIB) -> None:
        self._source = os.urandom(size)

    def copy(self, times: int) -> None:
        with mmap.mmap(-1, len(self._source)) as fresh:
            for _ in range(times):
                fresh.seek(0)
                fresh.write(self._source)


class WakeUps:
    """A child that answers a byte with a byte: two wake-ups a turn."""

    def __init__(self) -> None:
        there, self._send = os.pipe()
        self._receive, back = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self._send)
            os.close(self._receive)
            while byte := os.read(there, 1):
                os.write(back, byte)
            os._exit(0)
        os.close(there)
        os.close(back)

    def turns(self, count: int) -> None:
        for _ in range(count):
            os.write(self._send, b".")
            os.read(self._receive, 1)


def tuned(connection: socket.socket) -> socket.socket:
    """Send at once; back off on loss as most of the world's servers do.

    The send buffer is smaller than a block, as gradients are larger than any buffer: who sends
    waits for the link.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 24 * KIB)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    return connection


def connect(host: str, port: int, patience_s: float = 20.0) -> socket.socket:
    """Connect to a peer that may still be starting."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return tuned(socket.create_connection((host, port), timeout=None))
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def listen(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), backlog=16)
    return tuned(listener)


def send_block(connection: socket.socket, size: int) -> None:
    connection.sendall(LENGTH.pack(size) + bytes(size))


def receive_block(connection: socket.socket, buffer: bytearray) -> int:
    """Receive a block into the buffer, which must hold it; returns its size, 0 at the end."""
    head = connection.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(head) < LENGTH.size:
        return 0
    (size,) = LENGTH.unpack(head)
    view, have = memoryview(buffer), 0
    while have < size:
        got = connection.recv_into(view[have:size])
        if got == 0:
            return 0
        have += got
    return int(size)


class StepMarks:
    """Marks the ends of steps of a loop, and logs their times.

    As with the probe, a step is the time between two marks.
    """

    def __init__(self, library: Path, log: StepLog) -> None:
        self._step = ctypes.CDLL(str(library)).pointillist_step
        self._log, self._last_ns = log, 0

    def step(self) -> None:
        now = boottime_ns()
        self._step()
        if self._last_ns:
            self._log.add(now, now - self._last_ns)
        self._last_ns = now


class RequestMarks:
    """Runs requests inside the probed function, and logs their times."""

    def __init__(self, library: Path, log: StepLog) -> None:
        self._request = ctypes.CDLL(str(library)).pointillist_request
        self._kind = ctypes.CFUNCTYPE(ctypes.c_int)
        self._log = log

    def serve(self, request: Callable[[], int]) -> int:
        """Run one request; its answer is handed on."""
        started = boottime_ns()
        answer = int(self._request(self._kind(request)))
        ended = boottime_ns()
        self._log.add(ended, ended - started)
        return answer
