"""Delays every packet between two namespaces: a TUN device in each, and this process between them.

python -m bench.diagnosis.faults.relay DELAY_MS JITTER_MS NAMESPACE DEVICE NAMESPACE DEVICE
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x0001 | 0x1000
_CLONE_NEWNET: Final = 0x40000000
_LONGEST_PACKET: Final = 1 << 16


def open_tun(namespace: str, device: str) -> int:
    """Create a TUN device in a namespace; it lives as long as the descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    if libc.setns(there, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"expected to enter {namespace}")
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN_WITHOUT_HEADER))
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(there)
        os.close(home)
    return tun


class Relay:
    """Packets waiting for their time; order is kept in each direction."""

    def __init__(self, delay_s: float, jitter_s: float, ends: tuple[int, int]) -> None:
        self._delay_s, self._jitter_s, self._ends = delay_s, jitter_s, ends
        self._waiting: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
        self._chance = random.Random(0)

    def turn(self) -> None:
        """Wait for a packet or for one that is due, and move what can be moved."""
        now = time.monotonic()
        due = min((queue[0][0] for queue in self._waiting if queue), default=now + 1.0)
        readable, _, _ = select.select(self._ends, [], [], max(0.0, due - now))
        for end in readable:
            self._take(end)
        now = time.monotonic()
        for queue, other in zip(self._waiting, reversed(self._ends), strict=True):
            while queue and queue[0][0] <= now:
                os.write(other, queue.popleft()[1])

    def _take(self, end: int) -> None:
        queue = self._waiting[self._ends.index(end)]
        while True:
            try:
                packet = os.read(end, _LONGEST_PACKET)
            except BlockingIOError:
                return
            due = time.monotonic() + self._delay_s + self._chance.uniform(0, self._jitter_s)
            queue.append((max(due, queue[-1][0] if queue else 0.0), packet))


def main(delay_ms: float, jitter_ms: float, *ends: str) -> None:
    """Relay until killed."""
    tuns = (open_tun(ends[0], ends[1]), open_tun(ends[2], ends[3]))
    relay = Relay(delay_ms / 1e3, jitter_ms / 1e3, tuns)
    while True:
        relay.turn()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:7])
