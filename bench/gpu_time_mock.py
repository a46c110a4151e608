"""How often intervals of estimated GPU time hold the truth where the library itself records.

A program without a GPU works in bursts beside a steady hum, launched and as graphs; its CUPTI obeys
the library, which the collector's own code follows. Windows are 40 ms of each 300, fifteen times as
many as an agent asks for: there are thousands of intervals within minutes.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from bench.gpu_time_outcomes import Outcome, Told, outcomes
from collectors.boot_clock import boottime_ns
from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.recorded_work import Growth
from collectors.gpu_time.segment import RowKind, SegmentUnsettled, Snapshot
from collectors.gpu_time.window_estimates import WindowEstimates
from scripts.gpu_time.listening import Listening, listening
from tests.gpu_time_kit import Program, program

PLAN: Final = WindowPlan(40, 300)
_LOOK_S: Final = 0.02
_BURST_S: Final = 0.08
_CYCLE_S: Final = 0.42
_HUM_S: Final = 0.004
_PACE_S: Final = 0.001
"""Between batches of a burst: a load that takes a whole core makes the library's thread late."""
_STALL_NS: Final = 30_000_000
"""A span in which nothing was launched for so long is left out: a machine that lets neither the
program nor the library's thread work has windows meet the times alone in which both do."""
_NAMES: Final = ("burst_a", "burst_b", "hum")


@dataclass(slots=True)
class Load:
    """Has a program launch; knows what ran until when.

    at_ns   CLOCK_BOOTTIME at which each batch began and ended, in turns
    ran_ns  by kernel what had run by then, the same by graph behind them
    """

    on: Program
    random: random.Random
    at_ns: list[int] = field(default_factory=lambda: [0])
    ran_ns: list[list[float]] = field(default_factory=lambda: [[0.0] * (2 * len(_NAMES))])
    _ending: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until the end."""
        burst_at_s = time.monotonic()
        while not self._ending.is_set():
            for graph in (False, True):
                self._batch(2, 1, graph)
            if time.monotonic() >= burst_at_s:
                burst_at_s = time.monotonic() + _CYCLE_S * self.random.uniform(0.8, 1.2)
                self._burst()
            time.sleep(_HUM_S * self.random.uniform(0.5, 1.5))

    def _burst(self) -> None:
        end_s = time.monotonic() + _BURST_S * self.random.uniform(0.7, 1.3)
        while time.monotonic() < end_s:
            for graph in (False, True):
                self._batch(self.random.randrange(2), self.random.randrange(5, 40), graph)
            time.sleep(_PACE_S)

    def _batch(self, kernel: int, number: int, graph: bool) -> None:
        """Make some launches that take the same time each."""
        ns = self.random.randrange(2_000, 20_000) * (1 + 3 * kernel)
        self._note()
        self.on.ask(f"kernels {_NAMES[kernel]} {number} 0 {ns} {int(graph)}")
        self._note(kernel + graph * len(_NAMES), number * ns)

    def _note(self, row: int = 0, ns: int = 0) -> None:
        ran = list(self.ran_ns[-1])
        ran[row] += ns
        self.at_ns.append(boottime_ns())
        self.ran_ns.append(ran)

    def truth(self, at_ns: int) -> list[float]:
        """Give what had run by a time; a batch runs evenly."""
        behind = bisect_right(self.at_ns, at_ns)
        if behind >= len(self.ran_ns):
            return self.ran_ns[-1]
        begun_ns, ended_ns = self.at_ns[behind - 1], self.at_ns[behind]
        part = (at_ns - begun_ns) / (ended_ns - begun_ns)
        before, after = self.ran_ns[behind - 1], self.ran_ns[behind]
        return [a + part * (b - a) for a, b in zip(before, after, strict=True)]

    def stalled(self, from_ns: int, to_ns: int) -> bool:
        """Tell whether the machine kept it from working for a while in a span."""
        first, last = (bisect_right(self.at_ns, at_ns) for at_ns in (from_ns, to_ns))
        times = self.at_ns[max(first - 1, 0) : last + 1]
        return any(after - before > _STALL_NS for before, after in pairwise(times))

    def end(self) -> None:
        """Have it stop."""
        self._ending.set()


def measured(seconds: float, seed: int) -> list[Outcome]:
    """Follow a program for so long; give what came of the estimates of its kernels."""
    with listening() as agent:
        agent.plan(PLAN)
        with program(agent.path, FAKE_CUPTI_LOG="") as on:
            agent.wait(on.pid)
            load = Load(on, random.Random(seed))
            thread = threading.Thread(target=load.run)
            thread.start()
            try:
                told = list(_followed(agent, on.pid, load, seconds))
            finally:
                load.end()
                thread.join()
    return list(outcomes(told))


def _followed(agent: Listening, pid: int, load: Load, seconds: float) -> Iterator[Told]:
    """Yield what is told, span by span: launched kernels, kernels of graphs, and both together."""
    growth = Growth(agent.look(pid), boottime_ns())
    told_ns, end_s = growth.since_ns, time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        with suppress(SegmentUnsettled):
            list(growth.follow(agent.look(pid)))
        if growth.estimated is not None and growth.estimated.told:
            begun_ns, told_ns = told_ns, growth.since_ns
            if not load.stalled(begun_ns, told_ns):
                yield _compared(growth.estimated, growth.before, load, begun_ns, told_ns)
            growth.estimated = None


def _compared(
    estimated: WindowEstimates, state: Snapshot, load: Load, begun_ns: int, told_ns: int
) -> Told:
    rows = len(state.rows)
    kernels = [(kind, name) for kind in (RowKind.KERNEL, RowKind.NODE) for name in _NAMES]
    labels = np.array([_label(kernels, state.row(row)[1:]) for row in range(rows)])
    estimates = estimated.by(labels, len(kernels) + 1)[:-1]
    (whole,) = estimated.by(np.zeros(rows, np.int64), 1)
    ran = zip(load.truth(begun_ns), load.truth(told_ns), strict=True)
    truth = [after - before for before, after in ran]
    return Told([*estimates, whole], [*truth, sum(truth)])


def _label(kernels: list[tuple[RowKind, str]], row: tuple[RowKind, str]) -> int:
    return kernels.index(row) if row in kernels else len(kernels)
