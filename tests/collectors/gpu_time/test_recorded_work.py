"""What came between two states, and which share of it was recorded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu_time.recorded_work import CounterDeltas, RecordedShare, Work
from collectors.gpu_time.segment import ROW, RowKind, Snapshot
from tests.segment_kit import snapshot

S = 1_000_000_000
START_NS = 1000 * S
KERNEL, COPY, NODE = RowKind.KERNEL, RowKind.COPY, RowKind.NODE


def deltas() -> CounterDeltas:
    return CounterDeltas(snapshot(), START_NS)


def estimate(found: list[Work]) -> float:
    return sum(one.records * 1_000_000 / one.rate for one in found)


def test_work_is_what_came_since_the_last_state() -> None:
    following = CounterDeltas(snapshot(("gemm", KERNEL, 10, 100)), START_NS)
    (one,) = following.follow(snapshot(("gemm", KERNEL, 13, 190), launches=3, numbered=3))
    assert one == Work(0, KERNEL, "gemm", 3, 90, ((3, 3),), 1_000_000, 1)
    assert list(following.follow(snapshot(("gemm", KERNEL, 13, 190), launches=3, numbered=3))) == []


def test_launches_are_scaled_by_their_numbers_and_copies_by_time() -> None:
    rows = (("gemm", KERNEL, 10, 100), ("copy HtoD", COPY, 4, 40), ("node", NODE, 6, 60))
    header = {"launches": 10, "numbered": 40, "on_ns": S // 10, "written_ns": START_NS + S}
    rates = {one.kind: one.rate for one in deltas().follow(snapshot(*rows, **header))}
    assert rates == {KERNEL: 250_000, COPY: 100_000, NODE: 100_000}


def test_a_burst_between_windows_is_counted_once_a_launch_is_met() -> None:
    """8 million launches of which none was recorded, and one behind them."""
    following = deltas()
    assert list(following.follow(snapshot(on_ns=S // 100, written_ns=START_NS + S))) == []
    after = snapshot(("gemm", KERNEL, 1, 7), launches=1, numbered=8_000_001, on_ns=S // 50,
                     written_ns=START_NS + 2 * S)  # fmt: skip
    found = list(following.follow(after))
    assert estimate(found) == pytest.approx(8_000_001, rel=1e-4)


@given(st.integers(1, 10**6), st.integers(0, 10**12))
def test_the_number_of_launches_is_exact_whatever_was_recorded(launches: int, unseen: int) -> None:
    header = {"launches": launches, "numbered": launches + unseen}
    found = list(deltas().follow(snapshot(("gemm", KERNEL, launches, launches), **header)))
    assert estimate(found) == pytest.approx(launches + unseen, rel=1e-4)
    assert all(1 <= one.rate <= 1_000_000 for one in found)


def test_records_that_come_behind_their_window_are_scaled_as_it_was() -> None:
    following = deltas()
    list(following.follow(snapshot(on_ns=S // 100, written_ns=START_NS + S)))
    tail = snapshot(("copy HtoD", COPY, 5, 50), on_ns=S // 100, written_ns=START_NS + S + 30)
    assert estimate(list(following.follow(tail))) == pytest.approx(500)


def test_a_window_stands_for_the_time_since_the_one_before() -> None:
    """Windows of 10 ms in every fourth second, 100 copies a second: none is forgotten."""
    following, total = deltas(), 0.0
    on_ns, copies = 0, 0
    for second in range(1, 401):
        if second % 4 == 0:
            on_ns, copies = on_ns + S // 100, copies + 1
            written_ns = START_NS + second * S
        elif second < 4:
            written_ns = 0
        total += estimate(list(following.follow(snapshot(("c", COPY, copies, copies), on_ns=on_ns,
                                                         written_ns=written_ns))))  # fmt: skip
    assert total == pytest.approx(40_000, rel=1e-3)


def test_time_by_windows_at_random_is_right_on_average() -> None:
    random.seed(1)
    following, total, on_ns, copies = deltas(), 0.0, 0, 0
    for second in range(1, 3001):
        windows = random.randrange(3)
        on_ns += windows * S // 50
        copies += sum(random.random() < 0.5 for _ in range(windows * 2))
        state = snapshot(("c", COPY, copies, copies), on_ns=on_ns,
                         written_ns=START_NS + second * S)  # fmt: skip
        total += estimate(list(following.follow(state)))
    assert total == pytest.approx(3000 * 50, rel=0.1)


def test_a_process_recorded_all_the_time_is_told_as_it_is() -> None:
    following = deltas()
    for second in range(1, 20):
        at_ns = START_NS + second * S - 20_000_000 * (second % 2)
        found = list(following.follow(
            snapshot(("c", COPY, second, second), on_ns=at_ns - START_NS, written_ns=at_ns)
        ))  # fmt: skip
        assert [(one.records, one.rate) for one in found] == [(1, 1_000_000)]


def test_launches_that_are_already_numbered_are_no_more_of_them() -> None:
    following = deltas()
    list(following.follow(snapshot(("k", KERNEL, 5, 5), launches=5, numbered=10)))
    (late,) = following.follow(snapshot(("k", KERNEL, 6, 6), launches=6, numbered=10))
    assert late.rate == 500_000


def test_rows_that_go_backwards_give_nothing() -> None:
    following = CounterDeltas(snapshot(("a", KERNEL, 10, 100), ("b", KERNEL, 5, 50)), START_NS)
    assert list(following.follow(snapshot(("a", KERNEL, 9, 100)))) == []
    assert list(following.follow(snapshot(("a", KERNEL, 11, 99)))) == []
    assert list(following.follow(snapshot())) == []


def test_rows_that_no_gpu_fills_give_nothing() -> None:
    huge = snapshot(("a", KERNEL, (1 << 64) - 1, 5), ("b", KERNEL, 5, (1 << 64) - 1))
    assert list(deltas().follow(huge)) == []


def test_bins_that_went_round_are_followed() -> None:
    before = snapshot(("a", KERNEL, (1 << 32) - 1, 10))
    following = CounterDeltas(before, START_NS)
    (one,) = following.follow(snapshot(("a", KERNEL, (1 << 32) + 1, 30), launches=2, numbered=2))
    assert (one.records, one.bins) == (2, ((3, 2),))


def hostile(rng: np.random.Generator) -> Snapshot:
    made = snapshot()
    rows = np.frombuffer(rng.bytes(ROW.itemsize * int(rng.integers(1, 9))), ROW)
    header = {name: int(rng.integers(0, 1 << 63)) * 2 for name in made.header}
    names = tuple("x" for _ in rows)
    return Snapshot(header, made.devices, made.uuids, rows, names)


@given(st.integers(0, 1 << 32))
def test_whatever_a_process_writes_its_work_is_bounded(seed: int) -> None:
    rng = np.random.default_rng(seed)
    following = deltas()
    for _ in range(4):
        for one in following.follow(hostile(rng)):
            assert 0 < one.records <= one.weight << 40
            assert 0 <= one.time_ns <= one.weight << 50
            assert 1 <= one.rate <= 1_000_000
            assert one.weight <= 10**20
            assert all(0 < number <= one.records for _, number in one.bins)


@given(st.integers(1, 10**9), st.integers(0, 10**18))
def test_share_is_told_within_a_ten_thousandth(part: int, more: int) -> None:
    rate, weight = RecordedShare(part, part + more).rate()
    assert 1 <= rate <= 1_000_000
    assert rate / weight / 1e6 == pytest.approx(part / (part + more), rel=1e-4)
