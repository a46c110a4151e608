"""Launches that were not seen: estimates and bounds, and how often they hold the truth."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest

from bench.gpu_time_counts import PATTERNS, SimulatedHost, holds, statement
from collectors.gpu_calls.activity_records import Named
from collectors.gpu_calls.costs import MOST_PROCESSES, CpuClocks
from collectors.gpu_calls.governor import Governor, GovernorSettings
from collectors.gpu_calls.launch_counts import LaunchCounts
from collectors.gpu_calls.launch_estimates import (
    LEAST_CALL_NS,
    SeenWindow,
    UnseenCalls,
    Unwatched,
    mix_variance,
    unseen,
)
from collectors.gpu_calls.periods import Collected
from collectors.gpu_calls.readout import LaunchRow, ProbeDrain
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import CountedCalls, ProbeGroup

S = 10**9
STEADY = [SeenWindow(20_000 + 40 * (n % 3), 0.4 * S, 0.0, S) for n in range(6)]


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("steady_1k", 1.0), ("steady_5k", 0.95), ("steady_20k", 0.0), ("bursts_20k", 0.0),
        ("bursts_3k", 0.95), ("one_burst", 0.5), ("never_idle", 0.0),
    ],
)  # fmt: skip
def test_statements_hold_the_truth_and_launches_that_fit_are_counted_exactly(
    name: str, exact: float
) -> None:
    rows = [row for seed in (1, 2, 3) for row in SimulatedHost([PATTERNS[name]], seed).run(100.0)]
    kinds = [statement(row) for row in rows]
    held = sum(holds(row) for row in rows)
    assert held >= 0.95 * len(rows), f"{name}: {held} of {len(rows)}"
    assert all(holds(row) for row, kind in zip(rows, kinds, strict=True) if kind != "intervals")
    assert kinds.count("exact") >= exact * len(rows)
    if name != "one_burst":
        truth = sum(row.truth for row in rows)
        assert sum(row.launches.value for row in rows) == pytest.approx(truth, rel=0.1), name


def test_estimate_follows_the_cpu_time_of_a_burst() -> None:
    bursts = [
        SeenWindow(n * 50_000, n * 0.3 * S, n * 0.03 * S, S) for n in (0, 1, 1, 0, 2, 1, 0, 1)
    ]
    found = unseen(None, Unwatched(0, 0.54 * S, 5 * S), bursts)
    assert found.value == pytest.approx(100_000, rel=0.05)
    assert found.error < 0.2 * found.value
    assert found.beyond == 0.0


def test_estimate_of_no_cpu_time_is_nothing() -> None:
    assert unseen(STEADY[0], Unwatched(0, 0.0, 5 * S), STEADY) == UnseenCalls()


def test_estimate_bounds_cpu_time_that_windows_never_saw() -> None:
    found = unseen(STEADY[0], Unwatched(0, 0.4 * 5 * S + 0.9 * S, 5 * S), STEADY)
    assert found.beyond > 8_000_000
    assert found.beyond <= 0.9 * S / LEAST_CALL_NS


def test_estimate_of_a_process_that_was_never_watched_is_a_bound_alone() -> None:
    found = unseen(None, Unwatched(7, 0.5 * S, S), [])
    assert found == UnseenCalls(beyond=0.5 * S / LEAST_CALL_NS)
    assert unseen(None, Unwatched(7, 0.5 * S, S, S // 2), []).beyond == inf


def test_estimate_of_time_that_could_not_be_read_has_no_upper_end() -> None:
    assert unseen(STEADY[0], Unwatched(0, 0.2 * S, S, S // 2), STEADY).beyond == inf
    assert unseen(STEADY[0], Unwatched(0, None, S), STEADY).beyond == inf


def test_estimate_of_few_windows_is_wider() -> None:
    rest = Unwatched(0, 2.0 * S, 5 * S)
    widths = [unseen(None, rest, STEADY[:count]).variance for count in (2, 3, 6)]
    assert widths[0] > widths[1] > widths[2] > 0.0
    one = unseen(None, rest, STEADY[:1])
    assert (one.variance, one.below) == (0.0, one.value)


def test_estimate_states_what_hits_may_have_cost() -> None:
    dear = [window._replace(paid_ns=0.1 * S) for window in STEADY]
    found = unseen(None, Unwatched(0, 0.5 * S, 5 * S), dear)
    cheapest, dearest = 0.5 * S * 20_000 / (0.315 * S), 0.5 * S * 20_000 / (0.24 * S)
    assert found.value - found.below == pytest.approx(cheapest, rel=0.01)
    assert found.value + found.above == pytest.approx(dearest, rel=0.01)


def test_mix_of_one_window_is_not_known() -> None:
    assert mix_variance([5], [10], 0.5) == inf
    assert mix_variance([50, 50, 51], [100, 100, 102], 0.5) < 0.1


def test_counts_add_up_with_their_bounds() -> None:
    parts = [CountedCalls(5, 20.0, 16.0, 0.5, 2.0, 3.0), CountedCalls.exactly(7)]
    total = CountedCalls.total(parts, 0.75)
    assert total == CountedCalls(12, 27.0, 16.0, 0.75, 2.0, 3.0)
    assert total.interval == pytest.approx((27 - 2 - 1.959964 * 4, 27 + 3 + 1.959964 * 4))
    assert total.error == pytest.approx(3 + 1.959964 * 4)
    unknown = CountedCalls.total([*parts, CountedCalls(0, 0.0, 0.0, 0.0, 0.0, inf)], 0.5)
    assert (unknown.error, unknown.interval[1]) == (inf, inf)


def test_clocks_tell_growth_and_say_once_that_a_process_ended() -> None:
    young, old = ProcessKey(7, 99 * S), ProcessKey(8, 1 * S)
    times: dict[ProcessKey, int | None] = {young: 3, old: 50}
    clocks = CpuClocks(lambda: [young], times.get, lambda _: True, lambda: 100 * S)
    clocks.note([old, ProcessKey(0, 0)])
    assert clocks.take() == {young: 3, old: None}  # how much of 50 is of this time nobody knows
    times.update({young: 10, old: 60})
    assert clocks.take() == {young: 7, old: 10}
    times[old] = None
    assert clocks.take() == {young: 0, old: None}
    assert clocks.take() == {young: 0}


def test_clocks_follow_a_bounded_number_of_processes() -> None:
    clocks = CpuClocks(read=lambda _: 1, check=lambda _: True)
    clocks.note([ProcessKey(pid, 1) for pid in range(1, 2 * MOST_PROCESSES)])
    assert len(clocks.take()) == MOST_PROCESSES


def test_estimate_of_a_steady_process_goes_by_wall_time() -> None:
    """Its calls take more CPU time in one second than in another."""
    window = SeenWindow(20_000, 0.7 * S, 0.02 * S, S)
    found = unseen(None, Unwatched(0, 0.5 * S, S), [window])
    assert found.value == pytest.approx(20_000, rel=0.03)


def test_estimate_of_a_process_that_probes_held_up_is_not_by_wall_time() -> None:
    """It calls without a pause, has four tenths of a CPU, and probes took most of that."""
    windows = [SeenWindow(500_000, 0.4 * S, 0.35 * S, S)] * 3
    found = unseen(None, Unwatched(0, 0.4 * S, S), windows)
    assert found.value + found.above > 4_000_000


class Stretch(NamedTuple):
    """What a drain says of a process: launches, milliseconds of CPU time, of probes, of wall time.

    sure  whether what probes took is calibrated
    """

    calls: int
    used_ms: float
    paid_ms: float
    span_ms: float
    sure: bool = True


def launches_of(*stretches: tuple[bool, Stretch]) -> CountedCalls:
    """Launches over as many records; of watched stretches every launch was seen."""
    process, made = ProcessKey(7, 0), LaunchCounts(lambda _process: False)
    period = Governor(GovernorSettings(), lambda _below: 0).period(0)
    rows, begun_ns = [], 1
    for watched, of in stretches:
        launched = (LaunchRow(process, 1, 1, "cudart.launch", of.calls, 0, 0, 0),)
        drain = ProbeDrain(begun_ns, round(of.span_ms * 1e6), launched if of.calls else ())
        begun_ns += drain.span_ns
        groups = frozenset(ProbeGroup) if watched else frozenset[ProbeGroup]()
        cpu_ns, paid_ns = {process: round(of.used_ms * 1e6)}, {process: of.paid_ms * 1e6}
        made.add(
            Collected(drain, period, {}, None, groups, cpu_ns, paid_ns, of.sure),
            {(process, 1): Named("a_kernel", "gemm")},
        )
        rows += [count.all for _, count in made.take(random=True)]
    return CountedCalls.total(rows, 0.0)


SILENT = [(True, Stretch(0, 0.8, 0.0, 306.0)), *[(True, Stretch(0, 0.0, 0.0, 16.0))] * 6]
"""A process that began, and then waited."""


@pytest.mark.parametrize(
    ("truth", "stretches"),
    [
        pytest.param(
            8_000_000,
            [
                (True, Stretch(61_000, 98.0, 244.0, 1006.0, sure=False)),
                (False, Stretch(4_300, 18.5, 17.2, 102.0, sure=False)),
            ],
            id="hits_cost_less_than_assumed",
        ),
        pytest.param(
            60_000_000,
            [
                *[(True, Stretch(10_000, 17.8, 9.8, 600.0))] * 5,
                (False, Stretch(0, 144.0, 0.0, 3_000.0)),
            ],
            id="hits_cost_more_than_calibrated",
        ),
        pytest.param(
            60_000_000,
            [
                (True, Stretch(90_000, 142.0, 361.0, 911.0, sure=False)),
                (True, Stretch(0, 4.6, 0.0, 12.3)),
                (False, Stretch(5_600, 38.5, 22.4, 128.0, sure=False)),
                (False, Stretch(0, 127.0, 0.0, 374.0)),
            ],
            id="the_clock_lagged",
        ),
        pytest.param(
            8_000_000,
            [
                *SILENT,
                (True, Stretch(0, 2.1, 0.0, 10.0)),
                (False, Stretch(1_300, 30.0, 20.5, 140.0, sure=False)),
            ],
            id="windows_saw_none",
        ),
        pytest.param(
            8_000_000,
            [*SILENT, (True, Stretch(0, 2.1, 0.0, 10.0)), (False, Stretch(0, 20.0, 0.0, 140.0))],
            id="one_short_window_was_busy",
        ),
    ],
)
def test_bounds_hold_a_burst_of_calls_that_take_two_nanoseconds(
    truth: int, stretches: list[tuple[bool, Stretch]]
) -> None:
    found = launches_of(*stretches)
    low, high = found.interval
    assert low <= truth <= high
    assert found.error == inf
