"""How often intervals of estimated GPU time hold the truth: made-up programs.

Their windows are drawn and cut as the library does, and what it would write goes through the
collector's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from collectors.gpu_time.gpu_time_source import GpuTimeSection
from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.recorded_work import CounterDeltas
from collectors.gpu_time.segment import DEVICE, ROW, RowKind, Snapshot
from collectors.gpu_time.window_estimates import Budget
from collectors.records.gpu_time import EstimatedTime, summed

SPANS: Final = (1, 3, 12, 48)
"""Windows that an estimate is summed over: 5 s to 4 minutes at the default budget."""
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
_SEED: Final = 20
_RUNS: Final = 10
_NOMINAL: Final = 95.0
"""The goal is 94 to 96."""


class Told(NamedTuple):
    """What was told of one span, by kernel and of all: the estimate and the true ns of each."""

    estimates: Sequence[EstimatedTime]
    truth: Sequence[float]


class Outcome(NamedTuple):
    """One sum over windows. `error_ns` is None where no interval is stated."""

    windows: int
    value_ns: float
    error_ns: float | None
    truth_ns: float

    @property
    def holds(self) -> bool:
        """Tell whether the interval has the truth in it, but for a microsecond of rounding."""
        return self.error_ns is not None and (
            abs(self.value_ns - self.truth_ns) <= self.error_ns + 1_000
        )


def outcomes(told: Sequence[Told], spans: Iterable[int] = SPANS) -> Iterator[Outcome]:
    """Sum over so many windows after each other, and compare."""
    for windows in spans:
        for first in range(0, len(told) - windows + 1, windows):
            parts = told[first : first + windows]
            for at in range(len(parts[0].truth)):
                estimate = summed(part.estimates[at] for part in parts)
                truth_ns = sum(part.truth[at] for part in parts)
                yield Outcome(windows, estimate.value_ns, estimate.error_ns, truth_ns)


def coverage_percent(found: Iterable[Outcome]) -> float:
    """Give how many of the intervals that were stated hold the truth."""
    stated = [outcome.holds for outcome in found if outcome.error_ns is not None]
    return 100 * float(np.mean(stated))


@dataclass(frozen=True, slots=True)
class MadeUp:
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


def made_up(name: str, kind: RowKind, rng: np.random.Generator) -> MadeUp:
    at_s, kernel, duration_s = WORKLOADS[name](rng)
    order = np.argsort(at_s, kind="stable")
    order = order[at_s[order] < SPAN_S]
    at_s, kernel, duration_ns = at_s[order], kernel[order], np.rint(duration_s[order] * 1e9)
    counts, times = (np.zeros((len(at_s) + 1, int(kernel.max()) + 1)) for _ in range(2))
    for number in range(counts.shape[1]):
        of = kernel == number
        counts[1:, number] = np.cumsum(of)
        times[1:, number] = np.cumsum(np.where(of, duration_ns, 0.0))
    return MadeUp(name, at_s, counts, times, kind)


class _Recorded:
    def __init__(self, of: MadeUp) -> None:
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
        return self._program.state(self._counts, self._times, dict(self._header))


def _drawn(
    of: MadeUp, plan: WindowPlan, now_s: float, rng: np.random.Generator
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


def followed(of: MadeUp, rng: np.random.Generator) -> Iterator[Told]:
    """Follow a program under the default budget; yield what is told, window by window."""
    recorded, budget = _Recorded(of), Budget(GpuTimeSection().budget)
    deltas, plan = CounterDeltas(recorded.state(), 0), budget.plan()
    kernels, now_s, told_s = of.counts.shape[1], 0.0, 0.0
    while now_s + plan.period_ms / 1e3 < SPAN_S:
        begin_s, end_s = _drawn(of, plan, now_s, rng)
        state = recorded.window(begin_s, end_s)
        now_s += plan.period_ms / 1e3
        list(deltas.follow(state))
        plan = budget.follow(state)
        if deltas.estimated is None or not deltas.estimated.told:
            continue
        by_kernel = deltas.estimated.by(np.arange(kernels), kernels)
        (whole,) = deltas.estimated.by(np.zeros(kernels, np.int64), 1)
        truth = of.between(told_s, end_s).tolist()
        told_s = end_s
        yield Told([*by_kernel, whole], [*truth, sum(truth)])


def simulated(
    seed: int, runs: int, names: Iterable[str] = tuple(WORKLOADS)
) -> dict[str, list[Outcome]]:
    """Follow each program, launched and as graphs, so often; give what came of each."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Outcome]] = {}
    for name in names:
        for kind in (RowKind.KERNEL, RowKind.NODE):
            of = made_up(name, kind, rng)
            key = name if kind is RowKind.KERNEL else f"{name}_graphs"
            found[key] = [o for _ in range(runs) for o in outcomes(list(followed(of, rng)))]
    return found


def measure(kept: Parts) -> Measured:
    def part() -> Part:
        found = simulated(_SEED, kept.scaled(_RUNS))
        pooled = [outcome for of in found.values() for outcome in of]
        stated = sum(outcome.error_ns is not None for outcome in pooled)
        return {
            "stated": stated,
            "without": 100 * (1 - stated / len(pooled)),
            "coverage": coverage_percent(pooled),
            "worst": min(coverage_percent(of) for of in found.values()),
        }

    found = kept.get("coverage", part)
    name, percent = "simulated_time_coverage_percent", "%"
    return Measured([
        Figure("simulated_time_intervals", found["stated"], "intervals"),
        Figure("simulated_time_without_interval_percent", found["without"], "% of sums"),
        Figure(name, found["coverage"], percent, _NOMINAL),
        Figure(f"{name}_worst", found["worst"], percent),
    ])  # fmt: skip
