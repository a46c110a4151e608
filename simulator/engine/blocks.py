"""The hosts of one process in blocks: rows, what their hosts report, and the truth of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.fleet.fleet_rows import block_rng
from simulator.fleet.hosts import FleetState
from wire.task import CHECK_WORDS, Task

from .engine_port import EngineSettings, RowSource


@dataclass(frozen=True, slots=True)
class Span:
    """Hosts lo .. hi - 1 of the fleet, block number `block`."""

    block: int
    lo: int
    hi: int


def spans(hosts: int, block_hosts: int, processes: int) -> list[tuple[Span, ...]]:
    """Divide a fleet's blocks among processes, as evenly as they go; none without a block."""
    starts = range(0, hosts, block_hosts)
    blocks = [Span(i, lo, min(lo + block_hosts, hosts)) for i, lo in enumerate(starts)]
    parts = min(processes, len(blocks))
    ends = [len(blocks) * part // parts for part in range(parts + 1)]
    return [tuple(blocks[a:b]) for a, b in pairwise(ends)]


@dataclass(slots=True)
class Drawn:
    """One block of one window.

    rows        int64[hosts, k]; valid until the next block is drawn
    present     bool[hosts], hosts that report; late: too late
    """

    span: Span
    rows: NDArray[np.int64]
    present: NDArray[np.bool_]
    late: NDArray[np.bool_]

    @property
    def reporting(self) -> NDArray[np.bool_]:
        """Hosts whose reports count."""
        return self.present & ~self.late


class BlockRows:
    """Draws a process's blocks window by window, and adds up the truth."""

    def __init__(self, spans_: tuple[Span, ...], settings: EngineSettings) -> None:
        self._spans, self._settings = spans_, settings
        self._buffer = np.empty((0, 0), dtype=np.int64)
        self._rows: dict[str, RowSource] = {}

    def learn(self, series: str, rows: RowSource) -> None:
        """Take the source of a series' rows; it is sent once."""
        self._rows[series] = rows

    def draw(self, task: Task, state: FleetState, truth: NDArray[np.int64]) -> Iterator[Drawn]:
        """Draw block after block; `truth` int64[k] grows by the rows of those that report."""
        source, width = self._rows[task.series], task.d - CHECK_WORDS
        size = self._settings.block_hosts
        if self._buffer.shape != (size, width):
            self._buffer = np.empty((size, width), dtype=np.int64)
        for span in self._spans:
            rng = block_rng(self._settings.seed, task.series, state.start_s, span.block)
            out = self._buffer[: span.hi - span.lo]
            rows = source.block(state, span.lo, span.hi, rng, out)
            part = slice(span.lo, span.hi)
            drawn = Drawn(span, rows, state.present[part], state.late[part])
            keep = drawn.reporting
            truth += (rows if keep.all() else rows[keep]).sum(axis=0)
            yield drawn
