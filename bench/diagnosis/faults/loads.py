"""The bench's own disturbers, one process each.

python -m bench.diagnosis.faults.loads NAME ARGUMENT...
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.diagnosis.shared import Knobs
from bench.diagnosis.workloads.pieces import MIB, DiskReads, connect, listen

DATAGRAM_BYTES: Final = 8900
PORT: Final = 7200
_SYNC_FILE_RANGE_WRITE: Final = 2


def spin(seed: str) -> None:
    """Hash in bursts of 20 to 80 ms with short rests between them."""
    chance, block = random.Random(seed), bytes(4096)
    while True:
        until = time.monotonic() + chance.uniform(0.02, 0.08)
        while time.monotonic() < until:
            hashlib.sha256(block).digest()
        time.sleep(chance.uniform(0.002, 0.02))


def read(path: str, seed: str) -> None:
    """Read pieces of 1 MiB at random places past the page cache, without a rest."""
    reads = DiskReads(Path(path), int(seed), MIB)
    while True:
        reads.read(16)


def write(path: str, bytes_per_s: str) -> None:
    """Write through the page cache at a rate, over the same 256 MiB; the kernel flushes behind."""
    libc, block = ctypes.CDLL(None, use_errno=True), os.urandom(MIB)
    rate, due = float(bytes_per_s), time.monotonic()
    with Path(path).open("wb") as file:
        while True:
            for place in range(0, 256 * MIB, MIB):
                file.seek(place)
                file.write(block)
                file.flush()
                offset = ctypes.c_int64(place), ctypes.c_int64(MIB)
                libc.sync_file_range(file.fileno(), *offset, _SYNC_FILE_RANGE_WRITE)
                due += MIB / rate
                time.sleep(max(0.0, due - time.monotonic()))


def send_datagrams(address: str, bytes_per_s: str, seed: str) -> None:
    rate, block, chance = float(bytes_per_s), bytes(DATAGRAM_BYTES), random.Random(seed)
    due = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while True:
            burst = chance.randint(4, 24)
            for _ in range(burst):
                with contextlib.suppress(OSError):  # the queue is full: this one is lost
                    sender.sendto(block, (address, PORT))
            due = max(due + burst * DATAGRAM_BYTES / rate, time.monotonic() - 0.02)
            time.sleep(max(0.0, due - time.monotonic()))


def time_datagrams(address: str) -> None:
    """Print the seconds that a gigabit of datagrams takes, from 40 of them."""
    block, count = bytes(DATAGRAM_BYTES), 40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # Room for four: the sender waits until the queue has let them go.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * DATAGRAM_BYTES)
        began = time.monotonic()
        for _ in range(count):
            sender.sendto(block, (address, PORT))
        took = time.monotonic() - began
    print(took / (count * DATAGRAM_BYTES * 8) * 1e9)


def receive_datagrams(address: str) -> None:
    buffer = bytearray(1 << 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address, PORT))
        while True:
            receiver.recv_into(buffer)


def send_stream(address: str, port: str) -> None:
    block = bytes(MIB // 4)
    with connect(address, int(port)) as connection:
        while True:
            connection.sendall(block)


def receive_stream(address: str, port: str) -> None:
    buffer = mmap.mmap(-1, MIB)
    with listen(address, int(port)) as listener:
        connection, _ = listener.accept()
        with connection:
            while connection.recv_into(buffer):
                pass


def stops(folder: str, pid: str, stop_ms: str, every_ms: str, seed: str) -> None:
    """Stop a process for some time, again and again; counted in the sum `stops`."""
    knobs, chance, stopped = Knobs(Path(folder)), random.Random(seed), float(stop_ms) / 1e3
    while True:
        time.sleep(float(every_ms) / 1e3 * chance.uniform(0.5, 1.5))
        os.kill(int(pid), signal.SIGSTOP)
        time.sleep(stopped * chance.uniform(0.7, 1.3))
        os.kill(int(pid), signal.SIGCONT)
        knobs.add("stops", 1)


LOADS: Final[dict[str, Callable[..., None]]] = {
    "spin": spin,
    "read": read,
    "write": write,
    "send_datagrams": send_datagrams,
    "time_datagrams": time_datagrams,
    "receive_datagrams": receive_datagrams,
    "send_stream": send_stream,
    "receive_stream": receive_stream,
    "stops": stops,
}

if __name__ == "__main__":
    LOADS[sys.argv[1]](*sys.argv[2:])
