"""The arithmetic of `make bench-probes`, on slices and periods that we lay out ourselves."""

from __future__ import annotations

import pytest

from bench import probes_governed
from bench.probes_governed import count_error, held_up_ms
from bench.probes_target import Slices

MS = 1_000_000


def slices(pairs: int, probed_ns: int, bare_ns: int, launches: int = 10) -> list[Slices]:
    """Pairs of slices of 4 ms each, one after the other."""
    return [
        Slices(
            at * 8 * MS, at * 8 * MS + 4 * MS, launches, probed_ns,
            at * 8 * MS + 4 * MS, at * 8 * MS + 8 * MS, launches, bare_ns,
        )
        for at in range(pairs)
    ]  # fmt: skip


def period(begin_ms: int, length_ms: int, launches: int, share: float) -> dict[str, float]:
    return {
        "begin_ns": begin_ms * MS, "length_ns": length_ms * MS,
        "launches": launches, "share": share,
    }  # fmt: skip


def record(
    begin_ms: int, length_ms: int, value: float, low: float, high: float
) -> dict[str, float]:
    return {
        "begin_ns": begin_ms * MS, "span_ns": length_ms * MS,
        "value": value, "low": low, "high": high,
    }  # fmt: skip


def test_slowdown_is_the_excess_of_probed_slices() -> None:
    found = probes_governed._slowdown(slices(1000, 4 * MS, 3 * MS), "overhead")
    assert found["overhead"] == pytest.approx(1 / 8)
    assert found["overhead_of_cpu"] == pytest.approx(1 / 7)
    assert found["overhead_ns_a_launch"] == pytest.approx(MS / 10)
    assert found["overhead_interval"] == pytest.approx(0.0, abs=1e-12)


def test_count_error_compares_records_inside_the_run_alone() -> None:
    run = slices(1000, 4 * MS, 4 * MS)  # 10 launches in each 8 ms
    found = count_error(
        run,
        [
            period(-1, 100, 7, 1.0),  # began before the process
            period(1000, 1000, 0, 0.0),  # unwatched
            period(2000, 1000, 130, 0.1),
            period(3000, 1000, 120, 0.1),
            period(7500, 1000, 9, 1.0),  # ended after it
        ],
        [
            record(-1, 100, 7, 7, 7),
            record(1000, 1000, 1200, 900, 1400),
            record(2000, 1000, 1350, 1150, 1550),
            record(7500, 1000, 9, 9, 9),
        ],
    )
    assert found["duty"] == pytest.approx(0.1)
    assert found["count_error"] == pytest.approx(2550 / 2500 - 1)
    # Errors of records do not cancel: half of both intervals, over the truth.
    assert found["count_interval"] == pytest.approx((250 + 200) / 2500)


def test_held_up_is_the_excess_of_bare_slices_in_the_intervals() -> None:
    run = slices(100, 4 * MS, 4 * MS)
    # Two of four slices of this interval are bare, and take 1 ms more.
    for at in (50, 51):
        run[at] = run[at]._replace(bare_own_ns=5 * MS)
    assert held_up_ms(run, [(400 * MS, 416 * MS)]) == pytest.approx(4.0)
    assert held_up_ms(run, [(0, 16 * MS)]) == 0.0
