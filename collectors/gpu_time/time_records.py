"""What the views of this host are told of one process: GPU time with its interval, summed up."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.estimated_time import EstimatedTime, KernelTime, ProcessGpuTime
from collectors.records.process import ProcessKey

from .window_estimates import WindowEstimates


class NamedRow(NamedTuple):
    """A row of a process's segment, as people call it."""

    gpu: int
    kernel: str
    family: str


def process_time(
    process: ProcessKey,
    estimates: WindowEstimates,
    until_ns: int,
    places: NDArray[np.int64],
    named: Sequence[NamedRow],
) -> ProcessGpuTime:
    """Put together what windows tell of a process until a time, CLOCK_BOOTTIME.

    places, named   int64[n], rows of which something is told, and what they are called
    """
    rows = len(estimates.counts)

    def by(keys: Sequence[Hashable]) -> Iterator[tuple[int, EstimatedTime]]:
        """Yield the place among `named` of each key's first row, and the time of all its rows."""
        first: dict[Hashable, int] = {}
        for at, key in enumerate(keys):
            first.setdefault(key, at)
        number = {key: at for at, key in enumerate(first)}
        labels = np.full(rows, len(number), np.int64)
        labels[places] = [number[key] for key in keys]
        yield from zip(first.values(), estimates.by(labels, len(number) + 1), strict=False)

    launches = estimates.launched(rows)[places].tolist()
    families = [(row.gpu, row.family) for row in named]
    return ProcessGpuTime(
        process,
        until_ns - estimates.span_ns,
        estimates.span_ns,
        estimates.launches,
        estimates.by(np.zeros(rows, np.int64), 1)[0],
        tuple((named[at].gpu, time) for at, time in by([row.gpu for row in named])),
        tuple((*families[at], time) for at, time in by(families)),
        tuple(KernelTime(*named[at], launches[at], time) for at, time in by(range(len(named)))),
    )
