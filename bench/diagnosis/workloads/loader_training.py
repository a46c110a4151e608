"""A training that waits for its data: PyTorch's DataLoader, two workers that read files.

python -m bench.diagnosis.workloads.loader_training FOLDER LIBRARY SEED
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.diagnosis.shared import Knobs, StepLog
from bench.diagnosis.workloads.pieces import StepMarks, job_files

_WIDTH: Final = 192
_BATCH: Final = 32
_WORKERS: Final = 2


class Samples(IterableDataset):  # type: ignore[misc]
    """Batches read from two files: one past the page cache, one that fits into it."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__()
        self._folder, self._seed = folder, seed

    def __iter__(self):  # type: ignore[no-untyped-def]
        seed = self._seed * 10 + get_worker_info().id
        knobs = Knobs(self._folder)
        disk, cached = job_files(self._folder, seed)
        block, batch = bytes(64 << 10), torch.randn(_BATCH, _WIDTH)
        while True:
            disk.read(10)
            cached.read(256)
            until = time.thread_time_ns() + (2.0 + _WORKERS * knobs["decode_ms"]) * 1e6
            while time.thread_time_ns() < until:
                zlib.crc32(block)
            yield batch.clone()


def main(folder: Path, library: Path, seed: int) -> None:
    knobs = Knobs(folder)
    job_files(folder, seed)
    layers = torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH)
    )
    optimiser = torch.optim.SGD(layers.parameters(), lr=1e-3)
    loader = DataLoader(
        Samples(folder, seed), batch_size=None, num_workers=_WORKERS, prefetch_factor=2
    )
    marks, began = StepMarks(library, StepLog(folder)), time.monotonic()
    for batch in loader:
        knobs.add("input_wait_s", time.monotonic() - began)
        knobs.add("decodes", 1)
        optimiser.zero_grad()
        layers(batch).square().mean().backward()
        optimiser.step()
        time.sleep(0.002)  # what a GPU would compute while the host waits
        marks.step()
        if knobs["stop"]:
            return
        began = time.monotonic()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
