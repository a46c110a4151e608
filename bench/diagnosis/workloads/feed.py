"""The input of a training loop: a store that holds items, a feeder that fetches and decodes them.

The feeder works ahead into a pipe that holds a few items; the loop waits only when it is empty.
Run as `python -m bench.diagnosis.workloads.feed FOLDER` this is the store.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import Final

from bench.diagnosis.shared import Knobs

ITEM_BYTES: Final = 64 << 10
AHEAD_ITEMS: Final = 4
STORE_SOCKET: Final = "store"


class Feed:
    """The loop's end: starts the feeder as a child and takes items from it."""

    def __init__(self, folder: Path, knobs: Knobs) -> None:
        self._pipe, end = os.pipe()
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, AHEAD_ITEMS * ITEM_BYTES)
        self._knobs, self._buffer = knobs, bytearray(ITEM_BYTES)
        self.child = os.fork()
        if self.child == 0:
            os.close(self._pipe)
            feeder(folder, end)
        os.close(end)

    def take(self) -> None:
        """Take one item; the time waited is added to `input_wait_s`."""
        view, have, began = memoryview(self._buffer), 0, time.monotonic()
        while have < ITEM_BYTES:
            got = os.readv(self._pipe, [view[have:]])
            if got == 0:
                raise RuntimeError("expected an item, the feeder has ended")
            have += got
        self._knobs.add("input_wait_s", time.monotonic() - began)


def feeder(folder: Path, pipe: int) -> None:
    """Fetch, decode and hand on items until nobody takes them."""
    knobs = Knobs(folder)
    store = socket.socket(socket.AF_UNIX)
    store.connect(str(folder / STORE_SOCKET))
    try:
        while item := store.recv(ITEM_BYTES, socket.MSG_WAITALL):
            _spin(knobs["decode_ms"])
            zlib.crc32(item)
            os.writev(pipe, [item])
            knobs.add("decodes", 1)
    except (BrokenPipeError, ConnectionResetError):
        pass
    os._exit(0)


def _spin(milliseconds: float) -> None:
    until = time.thread_time_ns() + milliseconds * 1e6
    while time.thread_time_ns() < until:
        zlib.crc32(b"decode" * 1000)


def store(folder: Path) -> None:
    """Give out items to one feeder after the other, no faster than the knob allows."""
    knobs, item = Knobs(folder), os.urandom(ITEM_BYTES)
    path = folder / STORE_SOCKET
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ITEM_BYTES)
                _give(connection, item, knobs)


def _give(connection: socket.socket, item: bytes, knobs: Knobs) -> None:
    due = time.monotonic()
    try:
        while True:
            rate = knobs["store_bytes_per_s"]
            if rate > 0:
                due = max(due + ITEM_BYTES / rate, time.monotonic() - 0.05)
                time.sleep(max(0.0, due - time.monotonic()))
            else:
                due = time.monotonic()
            connection.sendall(item)
    except (BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    store(Path(sys.argv[1]))
