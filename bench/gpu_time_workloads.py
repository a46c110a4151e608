"""Programs whose launches are made up: what the estimates of GPU time have to be right about.

Windows are drawn and cut as the library does, and what it would write goes through the collector's
own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.gpu_time_outcomes import Told
from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.recorded_work import Growth
from collectors.gpu_time.segment import DEVICE, ROW, RowKind, Snapshot
from collectors.gpu_time.settings import GpuTimeSection
from collectors.gpu_time.time_budget import Budget

SPAN_S: Final = 900.0
"""How long each program runs."""
_TICK_S: Final = 0.02
"""How often the library looks whether a window has enough records."""
_LATE_S: Final = 0.001
"""A thread wakes so late at most."""
_COUNTS: Final = (
    "state", "records", "on_ns", "written_ns", "opened_ns", "closed_ns", "windows", "detaches",
    "generation", "launches", "numbered", "records_lost_cupti", "buffers_refused", "bad_times",
    "without_context",
)  # fmt: skip
_Floats = NDArray[np.float64]
_Made = tuple[_Floats, NDArray[np.int64], _Floats]
"""When launches are made in s, of which kernel, and the kernels' durations in s."""


@dataclass(frozen=True, slots=True)
class Program:
    """All launches of one program.

    at_s            float64[n], ascending
    counts, times   float64[n + 1, kernels], records and ns before each launch
    kind            KERNEL where CUPTI numbers the launches, else NODE
    """

    name: str
    at_s: _Floats
    counts: _Floats
    times: _Floats
    kind: RowKind

    def place(self, at_s: float) -> int:
        """Give how many launches there are before a time."""
        return int(np.searchsorted(self.at_s, at_s))

    def between(self, from_s: float, to_s: float) -> _Floats:
        """Give the true ns of each kernel, float64[kernels]."""
        found: _Floats = self.times[self.place(to_s)] - self.times[self.place(from_s)]
        return found

    def state(self, counts: _Floats, times: _Floats, header: Mapping[str, int]) -> Snapshot:
        """Give the segment once so much was recorded."""
        rows = np.zeros(len(counts), ROW)
        rows["kind"], rows["count"], rows["total_ns"] = self.kind, counts, times
        names = tuple(f"kernel{kernel}" for kernel in range(len(counts)))
        return Snapshot(header, np.zeros(0, DEVICE), (), rows, names)


def _together(parts: Sequence[tuple[_Floats, NDArray[np.int64]]], durations: list[float]) -> _Made:
    at_s = np.concatenate([times for times, _ in parts])
    kernel = np.concatenate([kernels for _, kernels in parts])
    return at_s, kernel, np.array(durations)[kernel]


def _evenly(_rng: np.random.Generator) -> _Made:
    at_s = np.arange(0, SPAN_S, 1 / 2000)
    return _together([(at_s, np.arange(len(at_s)) % 5)], [5e-6, 2e-5, 1e-4, 1e-5, 5e-5])


def _bursts(rng: np.random.Generator) -> _Made:
    """0.3 s in about every 1.8."""
    parts, now_s = [], 0.0
    while now_s < SPAN_S:
        at_s = now_s + np.arange(0, 0.3, 1 / 8000)
        parts.append((at_s, np.arange(len(at_s)) % 3))
        now_s += 1.8 * rng.uniform(0.8, 1.2)
    return _together(parts, [5e-6, 2e-5, 4e-5])


def _steps(rng: np.random.Generator) -> _Made:
    """Training: many short kernels, few long ones, very many very short ones, a pause."""
    parts, now_s = [], 0.0
    while now_s < SPAN_S:
        for number, begin_s, length_s, kernel in (
            (200, 0.0, 0.2, 0), (200, 0.0005, 0.2, 1), (60, 0.2, 0.4, 2), (600, 0.6, 0.05, 3),
        ):  # fmt: skip
            at_s = now_s + begin_s + np.arange(number, dtype=np.float64) * (length_s / number)
            parts.append((at_s, np.full(number, kernel)))
        now_s += 0.8 * rng.uniform(0.97, 1.03)
    return _together(parts, [3e-4, 6e-4, 6e-3, 5e-5])


def _phases(rng: np.random.Generator) -> _Made:
    """Half a minute of many short kernels, half a minute of few long ones."""
    parts, now_s, busy = [], 0.0, True
    while now_s < SPAN_S:
        length_s = rng.uniform(10, 50)
        number = rng.poisson(length_s * (3000 if busy else 150))
        kernels = rng.integers(0, 2, number) if busy else np.full(number, 2)
        parts.append((now_s + rng.uniform(0, length_s, number), kernels))
        now_s, busy = now_s + length_s, not busy
    return _together(parts, [5e-5, 1e-4, 5e-3])


def _wide(rng: np.random.Generator) -> _Made:
    """Durations that differ tenfold, at random times."""
    number = rng.poisson(1000 * SPAN_S)
    at_s, kernels, durations = _together(
        [(rng.uniform(0, SPAN_S, number), rng.integers(0, 3, number))], [1e-5, 5e-5, 1e-4]
    )
    return at_s, kernels, durations * rng.lognormal(0, 1, number)


def _serving(rng: np.random.Generator) -> _Made:
    """Requests at random: a few long kernels each, then many short ones."""
    parts: list[tuple[_Floats, NDArray[np.int64]]] = []
    for now_s in rng.uniform(0, SPAN_S, rng.poisson(1.5 * SPAN_S)).tolist():
        parts.append((now_s + np.arange(40) * 2e-3, np.zeros(40, np.int64)))
        short = 100 * int(rng.geometric(1 / 60))
        parts.append((now_s + 0.08 + np.arange(short) * 2e-4, np.ones(short, np.int64)))
    return _together(parts, [1.9e-3, 1.5e-4])


def _seldom(rng: np.random.Generator) -> _Made:
    """One kernel all the time, another for half a second in seven."""
    at_s = np.sort(rng.uniform(0, SPAN_S, rng.poisson(2000 * SPAN_S)))
    begun_s = np.arange(5, SPAN_S, 7.3)
    seldom_s = (begun_s[:, None] + np.arange(0, 0.5, 0.01)).ravel()
    parts = [(at_s, np.zeros(len(at_s), np.int64)), (seldom_s, np.ones(len(seldom_s), np.int64))]
    return _together(parts, [1e-4, 8e-3])


WORKLOADS: Final[Mapping[str, Callable[[np.random.Generator], _Made]]] = {
    "evenly": _evenly, "bursts": _bursts, "steps": _steps, "phases": _phases, "wide": _wide,
    "serving": _serving, "seldom": _seldom,
}  # fmt: skip


def program(name: str, kind: RowKind, rng: np.random.Generator) -> Program:
    """Make a program of WORKLOADS up."""
    at_s, kernel, duration_s = WORKLOADS[name](rng)
    order = np.argsort(at_s, kind="stable")
    order = order[at_s[order] < SPAN_S]
    at_s, kernel, duration_ns = at_s[order], kernel[order], np.rint(duration_s[order] * 1e9)
    counts, times = (np.zeros((len(at_s) + 1, int(kernel.max()) + 1)) for _ in range(2))
    for number in range(counts.shape[1]):
        of = kernel == number
        counts[1:, number] = np.cumsum(of)
        times[1:, number] = np.cumsum(np.where(of, duration_ns, 0.0))
    return Program(name, at_s, counts, times, kind)


class _Recorded:
    """What the library has written so far."""

    def __init__(self, of: Program) -> None:
        self._program = of
        self._header = dict.fromkeys(_COUNTS, 0)
        self._counts, self._times = np.zeros((2, of.counts.shape[1]))
        self._met = 0

    def window(self, begin_s: float, end_s: float) -> Snapshot:
        """Record from one time to another; give the state behind it."""
        of, header = self._program, self._header
        first, end = of.place(begin_s), of.place(end_s)
        self._counts = self._counts + of.counts[end] - of.counts[first]
        self._times = self._times + of.times[end] - of.times[first]
        header["on_ns"] += round((end_s - begin_s) * 1e9)
        header["records"] += end - first
        header["written_ns"] = round(end_s * 1e9)
        if of.kind is RowKind.KERNEL and end > first:
            header["launches"] += end - first
            header["numbered"] += end - self._met
            self._met = end
        return self.state()

    def state(self) -> Snapshot:
        """Give the present state."""
        return self._program.state(self._counts, self._times, dict(self._header))


def _windows(
    of: Program, plan: WindowPlan, now_s: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Draw the next period's window, cut short where it has enough records."""
    on_s, period_s = plan.on_ms / 1e3, plan.period_ms / 1e3
    begin_s = now_s + rng.uniform(0, period_s - on_s)
    end_s = min(begin_s + on_s + rng.uniform(0, _LATE_S), now_s + period_s)
    enough = of.place(begin_s) + plan.most
    if enough < len(of.at_s) and on_s < period_s:
        ticks = np.ceil((of.at_s[enough] - begin_s) / _TICK_S)
        end_s = min(end_s, begin_s + float(ticks) * _TICK_S)
    return begin_s, end_s


def followed(of: Program, rng: np.random.Generator) -> Iterator[Told]:
    """Follow a program under the default budget; yield what is told, window by window."""
    recorded, budget = _Recorded(of), Budget(GpuTimeSection().budget)
    growth, plan = Growth(recorded.state(), 0), budget.plan()
    kernels, now_s, told_s = of.counts.shape[1], 0.0, 0.0
    while now_s + plan.period_ms / 1e3 < SPAN_S:
        begin_s, end_s = _windows(of, plan, now_s, rng)
        state = recorded.window(begin_s, end_s)
        now_s += plan.period_ms / 1e3
        list(growth.follow(state))
        plan = budget.follow(state)
        if growth.estimated is None or not growth.estimated.told:
            continue
        by_kernel = growth.estimated.by(np.arange(kernels), kernels)
        (whole,) = growth.estimated.by(np.zeros(kernels, np.int64), 1)
        truth = of.between(told_s, end_s).tolist()
        told_s = end_s
        yield Told([*by_kernel, whole], [*truth, sum(truth)])
