"""The arithmetic of `make bench-probes`, on slices and periods that we lay out ourselves."""

from __future__ import annotations

import pytest

from bench.probes_governed import count_error, slowdown
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


def record(begin_ms: int, length_ms: int, value: float) -> dict[str, float]:
    return {"begin_ns": begin_ms * MS, "span_ns": length_ms * MS, "value": value}


def test_slowdown_is_the_excess_of_probed_slices() -> None:
    assert slowdown(slices(1000, 4 * MS, 3 * MS)) == pytest.approx(1 / 8)


def test_count_error_compares_records_inside_the_run_alone() -> None:
    run = slices(1000, 4 * MS, 4 * MS)  # 10 launches in each 8 ms
    found = count_error(
        run,
        [
            record(-1, 100, 7),  # began before the process
            record(1000, 1000, 1200),
            record(2000, 1000, 1350),
            record(7500, 1000, 9),  # ended after it
        ],
    )
    assert found["count_error"] == pytest.approx(2550 / 2500 - 1)
