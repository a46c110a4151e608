"""Clients of the inference server: requests arrive as a Poisson process.

python -m bench.diagnosis.workloads.inference_clients ADDRESS PORT REQUESTS_PER_S SEED
"""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from typing import Final

from bench.diagnosis.workloads.pieces import KIB, connect, receive_block, send_block

_CLIENTS: Final = 8
_REQUEST_BYTES: Final = 64 * KIB


class Arrivals:
    """Moments at which requests arrive, one after the other, for whichever client is free."""

    def __init__(self, requests_per_s: float, seed: int) -> None:
        self._rate, self._chance = requests_per_s, random.Random(seed)
        self._due, self._lock = time.monotonic(), threading.Lock()

    def wait(self) -> None:
        """Sleep until the next arrival; what was missed by more than a second is dropped."""
        with self._lock:
            self._due = max(self._due, time.monotonic() - 1.0)
            self._due += self._chance.expovariate(self._rate)
            due = self._due
        time.sleep(max(0.0, due - time.monotonic()))


def _client(connection: socket.socket, arrivals: Arrivals) -> None:
    buffer = bytearray(256 * KIB)
    while True:
        arrivals.wait()
        send_block(connection, _REQUEST_BYTES)
        if receive_block(connection, buffer) == 0:
            return


def main(address: str, port: int, requests_per_s: float, seed: int) -> None:
    arrivals = Arrivals(requests_per_s, seed)
    threads = [
        threading.Thread(target=_client, args=(connect(address, port, 60), arrivals))
        for _ in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
