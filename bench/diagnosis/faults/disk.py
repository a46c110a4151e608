"""Others who use the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bench.diagnosis.faults.fault import STRESS, Fault, Graded

_TASKS: Final = (2, 4, 8)


def waiting_s(folder: Path) -> float:
    """Time that requests have spent at the device of a folder, summed over requests.

    Raises      RuntimeError where the folder is on no block device
    """
    device = folder.stat().st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in Path("/proc/diskstats").read_text(encoding="utf-8").splitlines():
        row = line.split()
        if row[:2] == wanted:
            return int(row[13]) / 1e3
    raise RuntimeError(f"expected {folder} on a block device, found {':'.join(wanted)}")


class _Busy(Fault):
    cause = "disk_io"
    counter = "device_wait_s"
    least = 0.5

    def meter(self) -> float:
        return waiting_s(self.work.folder)


class StressDisk(_Busy):
    """stress-ng writes and reads files past the page cache."""

    injector = "stress_hdd"

    def inject(self) -> None:
        tasks = str(_TASKS[self.intensity])
        words = [STRESS, "--hdd", tasks, "--hdd-opts", "direct", "--hdd-write-size", "1M"]
        folder = ["--hdd-bytes", "64M", "--temp-path", str(self.work.folder)]
        self.launch([*words, *folder, "--quiet"])


class RandomReaders(Graded, _Busy):
    """Own processes that read large pieces at random."""

    injector = "random_readers"

    grades = _TASKS
    rest = 0.0

    def apply(self, number: float) -> None:
        while self.loads < int(number):
            self.load("read", self.work.folder / "data", self.seed * 100 + self.loads)
