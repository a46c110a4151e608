"""A training loop without a GPU: input, disk, copies, wake-ups, an exchange, about 10 ms a step.

python -m bench.diagnosis.workloads.step_loop FOLDER LIBRARY ADDRESS PORT SEED
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from bench.diagnosis.shared import Knobs, StepLog
from bench.diagnosis.workloads.feed import Feed
from bench.diagnosis.workloads.pieces import (
    KIB,
    MIB,
    Copies,
    StepMarks,
    WakeUps,
    connect,
    job_files,
    receive_block,
    send_block,
)

DEVICE_S: Final = 0.003
"""What a GPU would compute while the host waits."""
EXCHANGE_BYTES: Final = 128 * KIB


class StepLoop:
    def __init__(self, folder: Path, library: Path, address: str, port: int, seed: int) -> None:
        self.knobs = Knobs(folder)
        # Children are forked before files and threads are opened.
        self._wake_ups = WakeUps()
        self._feed = Feed(folder, self.knobs)
        self._disk, self._cached = job_files(folder, seed)
        self._copies = Copies()
        self._peer, self._buffer = connect(address, port), bytearray(4 * MIB)
        self._marks = StepMarks(library, StepLog(folder))
        self._saved, self._folder = self.knobs["checkpoints"], folder

    def step(self) -> None:
        scale, evaluating = self.knobs["batch_scale"] or 1.0, self.knobs["phase"] == 1
        self._feed.take()
        self._disk.read(max(1, round(3 * scale)))
        self._cached.read(round(112 * scale))
        self._copies.copy(max(1, round((8 if evaluating else 4) * scale)))
        self._wake_ups.turns(20)
        time.sleep(DEVICE_S * scale)
        self._exchange(4 * KIB if evaluating else round(EXCHANGE_BYTES * scale))
        if self.knobs["checkpoints"] != self._saved:
            self._checkpoint()
        self.knobs.add("beyond_usual", scale - 1.0)
        self.knobs.add("evaluated", evaluating)
        self._marks.step()

    def _exchange(self, size: int) -> None:
        began = time.monotonic()
        send_block(self._peer, size)
        if receive_block(self._peer, self._buffer) == 0:
            raise RuntimeError("expected an answer, the peer has closed")
        self.knobs.add("exchange_wait_s", time.monotonic() - began)

    def _checkpoint(self) -> None:
        self._saved = self.knobs["checkpoints"]
        block = bytes(MIB)
        with (self._folder / "checkpoint").open("wb") as file:
            for _ in range(int(self.knobs["checkpoint_bytes"]) // MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        self.knobs.add("checkpoints_done", 1)


def hold_interpreter(knobs: Knobs) -> None:
    """Hold the interpreter's lock for `hold_ms`, again and again, while that is asked for."""
    sleeping = ctypes.PyDLL(None).usleep  # PyDLL keeps the lock during the call
    while True:
        hold_ms = knobs["hold_ms"]
        if hold_ms > 0:
            sleeping(int(hold_ms * 1000))
            knobs.add("held_s", hold_ms / 1e3)
        time.sleep(0.02)


def main(folder: Path, library: Path, address: str, port: int, seed: int) -> None:
    loop = StepLoop(folder, library, address, port, seed)
    threading.Thread(target=hold_interpreter, args=(loop.knobs,), daemon=True).start()
    while loop.knobs["stop"] == 0:
        loop.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
