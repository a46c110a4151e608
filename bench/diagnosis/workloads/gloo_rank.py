"""One rank of a two-rank PyTorch job on the CPU: input, disk, a small model, an all-reduce by gloo.

python -m bench.diagnosis.workloads.gloo_rank FOLDER LIBRARY DEVICE ADDRESS PORT SEED RANK

Rank 0 is watched: it marks its steps. Rank 1 is the peer, as on another host.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from bench.diagnosis.shared import Knobs, StepLog
from bench.diagnosis.workloads.feed import Feed
from bench.diagnosis.workloads.pieces import StepMarks, job_files

_WIDTH: Final = 192
_BATCH: Final = 64


class Model:
    """Two layers whose gradients are averaged over the ranks, 300 kB a step."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._layers = torch.nn.Sequential(
            torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH)
        )
        self._optimiser = torch.optim.SGD(self._layers.parameters(), lr=1e-3)
        self._inputs = torch.randn(4 * _BATCH, _WIDTH)

    def backward(self, scale: float) -> None:
        rows = max(1, min(len(self._inputs), round(_BATCH * scale)))
        self._optimiser.zero_grad()
        self._layers(self._inputs[:rows]).square().mean().backward()

    def average(self) -> None:
        """All-reduce the gradients in one piece and take the step."""
        parameters = list(self._layers.parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        dist.all_reduce(flat)
        self._optimiser.step()


def main(folder: Path, library: Path, seed: int, rank: int) -> None:
    knobs, model, chance = Knobs(folder), Model(seed), random.Random(seed)
    watched = rank == 0
    feed = Feed(folder, knobs) if watched else None
    dist.init_process_group("gloo", rank=rank, world_size=2)
    disk, cached = job_files(folder, seed, str(rank))
    marks = StepMarks(library, StepLog(folder, "steps" if watched else "steps1"))
    while knobs["stop"] == 0:
        if feed is not None:
            feed.take()
        disk.read(3)
        cached.read(160)
        model.backward(knobs["batch_scale"] or 1.0)
        if not watched and knobs["peer_delay_ms"] > 0 and chance.random() < knobs["peer_share"]:
            time.sleep(knobs["peer_delay_ms"] / 1e3 * chance.uniform(0.7, 1.3))
        began = time.monotonic()
        model.average()
        if watched:
            knobs.add("exchange_wait_s", time.monotonic() - began)
            marks.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    device, address, port = sys.argv[3:6]
    os.environ |= {"GLOO_SOCKET_IFNAME": device, "MASTER_ADDR": address, "MASTER_PORT": port}
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[6]), int(sys.argv[7]))
