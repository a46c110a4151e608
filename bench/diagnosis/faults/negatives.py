"""What is no fault and may look like one: the right answer is silence."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from bench.diagnosis.faults.fault import Fault

NONE: Final = "none"
_SECTOR_BYTES: Final = 512


class BatchSize(Fault):
    """The job's batches grow: every step has more of everything."""

    cause = NONE
    injector = "batch_size"
    counter = "work_beyond_usual"
    least = 0.1
    scales: Final = (1.25, 1.5, 2.0)

    def meter(self) -> float:
        return self.work.knobs["beyond_usual"]

    def inject(self) -> None:
        self.work.knobs["batch_scale"] = self.scales[self.intensity]

    def withdraw(self) -> None:
        self.work.knobs["batch_scale"] = 1.0


class PhaseChange(Fault):
    """The job goes from training to evaluation: more copying, hardly any exchange."""

    cause = NONE
    injector = "phase_change"
    counter = "evaluation_steps"
    least = 1.0

    def meter(self) -> float:
        return self.work.knobs["evaluated"]

    def inject(self) -> None:
        self.work.knobs["phase"] = 1.0

    def withdraw(self) -> None:
        self.work.knobs["phase"] = 0.0


class Checkpoints(Fault):
    """The job writes its state and waits for the disk, twice."""

    cause = NONE
    injector = "checkpoint"
    counter = "checkpoints"
    least = 0.01
    sizes: Final = (32 << 20, 96 << 20, 256 << 20)
    _second: threading.Timer | None = None

    def meter(self) -> float:
        return self.work.knobs["checkpoints_done"]

    def _write(self) -> None:
        self.work.knobs["checkpoints"] += 1

    def inject(self) -> None:
        self.work.knobs["checkpoint_bytes"] = self.sizes[self.intensity]
        self._write()
        self._second = threading.Timer(12.0, self._write)
        self._second.start()

    def withdraw(self) -> None:
        if self._second is not None:
            self._second.cancel()


class WarmUp(Fault):
    """The job ends and is started anew: imports, cold files, first steps."""

    cause = NONE
    injector = "warm_up"
    counter = "restarts"
    least = 0.01
    _restarts = 0

    def meter(self) -> float:
        return self._restarts

    def inject(self) -> None:
        self.work.restart()
        self._restarts += 1


class Writeback(Fault):
    """Somebody else writes files at a rate the disk bears, and the kernel flushes them."""

    cause = NONE
    injector = "writeback"
    counter = "bytes_written"
    least = 5e6
    rates: Final = (10e6, 25e6, 50e6)

    def meter(self) -> float:
        device = self.work.folder.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return int(block.read_text(encoding="utf-8").split()[6]) * _SECTOR_BYTES

    def inject(self) -> None:
        self.load("write", self.work.folder / "others", self.rates[self.intensity])
