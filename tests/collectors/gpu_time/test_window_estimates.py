"""From windows to all of the time: without bias, and with intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu_time_coverage import Outcome, coverage_percent, simulated
from collectors.gpu_time.recorded_work import CounterDeltas, Work
from collectors.gpu_time.segment import RecordingState, RowKind, Snapshot
from collectors.gpu_time.window_estimates import LEAST_WINDOWS, MOST_WINDOWS
from collectors.records.gpu_time import EstimatedTime
from tests.segment_kit import snapshot

S = 1_000_000_000
KERNEL, NODE, COPY = RowKind.KERNEL, RowKind.NODE, RowKind.COPY
ON, SPAN = S // 10, S


class Process:
    """One whose windows of 0.1 s end once a second."""

    def __init__(self) -> None:
        self.deltas = CounterDeltas(snapshot(), 0)
        self.header = {"on_ns": 0, "written_ns": 0, "launches": 0, "numbered": 0}
        self.rows: dict[tuple[str, RowKind], tuple[int, int]] = {}
        self.works: list[Work] = []

    def state(self, **header: int) -> Snapshot:
        rows = [(name, kind, count, ns) for (name, kind), (count, ns) in self.rows.items()]
        return snapshot(*rows, **(self.header | header))

    def recorded(self, name: str, count: int, ns: int, kind: RowKind = KERNEL) -> None:
        """Write records, `ns` each."""
        before = self.rows.get((name, kind), (0, 0))
        self.rows[name, kind] = before[0] + count, before[1] + count * ns
        if kind is KERNEL:
            self.header["launches"] += count

    def window(self, numbered: int | None = None, on: int = ON, **header: int) -> None:
        """End a window in which what was written was recorded, and so many launches made."""
        launches = self.header["launches"] - self.deltas.before.header["launches"]
        self.header["numbered"] += 10 * launches if numbered is None else numbered
        self.header["on_ns"] += on
        self.header["written_ns"] += SPAN
        self.header |= header
        self.works = list(self.deltas.follow(self.state()))

    def of(self, *names: str) -> EstimatedTime:
        """Give what is told of these rows together."""
        assert self.deltas.estimated is not None
        rows = ["", *(name for name, _ in self.rows)]
        labels = np.array([0 if name in names else 1 for name in rows])
        return self.deltas.estimated.by(labels, 2)[0]

    def told(self) -> bool:
        found = self.deltas.estimated
        return found is not None and bool(found.told)


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def known() -> Process:
    """One whose windows have all been alike but for a little."""
    found = Process()
    for window in range(MOST_WINDOWS):
        found.recorded("gemm", 100 + window % 5, 10)
        found.recorded("node", 50 + window % 3, 4, NODE)
        found.window()
    return found


def test_a_single_window_says_nothing_of_its_spread(process: Process) -> None:
    for window in range(1, 2 * LEAST_WINDOWS):
        process.recorded("gemm", 90 + window, 10)
        process.window()
        known = process.of("gemm")
        assert (known.error_ns is None) == (window < LEAST_WINDOWS)
        assert known.value_ns == pytest.approx(10 * (90 + window) * 10, rel=0.1)


def test_launches_that_no_window_met_are_at_first_nobody_s_time(process: Process) -> None:
    """A hum that all windows met, and bursts that none did: as many as there were, not as long."""
    for _ in range(LEAST_WINDOWS - 1):
        process.recorded("hum", 4, 1_000)
        process.window(numbered=16_000)
        (work,) = process.works
        assert work.records * 1e6 / work.rate == pytest.approx(16_000)
        assert process.of("hum") == EstimatedTime(40_000.0, None, 0, SPAN)


def test_work_that_few_windows_met_has_no_interval(known: Process) -> None:
    known.recorded("gemm", 100, 10)
    known.recorded("checkpoint", 3, 1000)
    known.window()
    assert known.of("checkpoint").error_ns is None
    assert known.of("gemm").error_ns is not None
    assert known.of("gemm", "checkpoint").error_ns is not None


@pytest.mark.parametrize(
    "loss", ["records_lost_cupti", "buffers_refused", "bad_times", "without_context"]
)
def test_a_window_that_lost_something_has_no_interval(known: Process, loss: str) -> None:
    known.recorded("gemm", 100, 10)
    known.window(**{loss: 1})
    assert known.of("gemm").error_ns is None
    known.recorded("gemm", 100, 10)
    known.window()
    assert known.of("gemm").error_ns is not None


def test_a_device_that_numbers_anew_has_no_interval_and_is_scaled_by_time(known: Process) -> None:
    known.recorded("gemm", 100, 10)
    known.window(numbered=0)
    assert known.of("gemm").error_ns is None
    assert known.of("gemm").value_ns == pytest.approx(10_000)


def test_what_is_all_recorded_is_exact(process: Process) -> None:
    for _ in range(3):
        process.recorded("gemm", 7, 10)
        process.window(numbered=7, on=SPAN)
        assert process.of("gemm") == EstimatedTime(70.0, 0.0, 0, SPAN)


def test_launches_of_a_gap_before_all_was_recorded_have_no_interval(process: Process) -> None:
    process.recorded("gemm", 7, 10)
    process.window(numbered=1000, on=SPAN)
    assert process.of("gemm").error_ns is None


def test_a_burst_like_none_before_counts_exactly_and_has_no_interval(known: Process) -> None:
    """8 million launches between two windows: of which kernels, nobody saw."""
    known.recorded("gemm", 100, 10)
    known.window(numbered=8_000_000)
    launches = sum(w.records * 1e6 / w.rate for w in known.works if w.kind is KERNEL)
    assert launches == pytest.approx(8_000_000, rel=1e-3)
    assert known.of("gemm").error_ns is None


def test_a_burst_that_no_window_met_takes_what_bursts_took(process: Process) -> None:
    """Windows have met both: quiet times of one kernel, bursts of another."""
    for window in range(MOST_WINDOWS):
        process.recorded("quiet", 4, 1_000)
        process.recorded("burst", window % 4 // 3 * 5_000, 10)
        process.window()
    process.recorded("quiet", 4, 1_000)
    process.window(numbered=50_040)
    burst, quiet = process.of("burst"), process.of("quiet")
    assert (burst.value_ns, quiet.value_ns) == pytest.approx((500_000, 40_000), rel=0.02)
    assert abs(burst.value_ns - 500_000) <= (burst.error_ns or 0) < 50_000


def test_windows_without_a_launch_wait_for_one_that_met_some(known: Process) -> None:
    for _ in range(3):
        known.recorded("node", 50, 4, NODE)
        known.window()
        assert not known.told()
        assert {work.name for work in known.works} == {"node"}  # the fleet's windows do not wait
    known.recorded("gemm", 100, 10)
    known.recorded("node", 50, 4, NODE)
    known.window(numbered=4000)
    assert known.of("gemm").span_ns == 4 * SPAN
    assert known.of("gemm").value_ns == pytest.approx(40_000, rel=0.05)
    assert known.of("node").value_ns == pytest.approx(4 * 2_000, rel=0.05)


def test_a_process_that_launches_no_more_is_told_in_the_end(known: Process) -> None:
    for _ in range(20):
        known.window()
        if known.told():
            break
    told = known.of("gemm")
    assert (told.value_ns, told.span_ns > 10 * SPAN) == (0.0, True)
    known.window()
    assert not known.told()
    list(known.deltas.follow(known.state(written_ns=known.header["written_ns"] + SPAN,
                                         on_ns=known.header["on_ns"] + ON), last=True))  # fmt: skip
    assert known.told()


def test_a_window_is_told_when_it_is_over(process: Process) -> None:
    process.recorded("gemm", 5, 10)
    process.window(numbered=0, state=int(RecordingState.ON), windows=1, generation=2)
    assert (process.works, process.deltas.estimated) == ([], None)
    process.recorded("gemm", 5, 10)
    process.window(numbered=0, state=int(RecordingState.OFF), closed_ns=1, generation=4)
    assert process.works == []  # CUPTI has not left, and something was written
    process.recorded("gemm", 5, 10)
    process.window(numbered=225, on=0, generation=6, detaches=1)
    assert process.deltas.estimated is not None
    assert process.deltas.estimated.span_ns == 3 * SPAN
    assert process.of("gemm").value_ns == pytest.approx(150 * SPAN * 3 / (2 * ON))


def test_a_window_in_which_a_process_ends_is_told(process: Process) -> None:
    process.recorded("gemm", 5, 10)
    process.window(state=int(RecordingState.ON), windows=1)
    assert process.deltas.estimated is None
    (work,) = process.deltas.follow(process.state(), last=True)
    assert (work.name, work.records) == ("gemm", 5)


def test_a_window_without_end_is_told_as_it_goes(process: Process) -> None:
    told = 0.0
    for _ in range(20):
        process.recorded("gemm", 5, 10)
        process.window(numbered=5, on=SPAN * 9 // 10, state=int(RecordingState.ON))
        told += sum(work.records * 1e6 / work.rate for work in process.works)
    assert told >= 75


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9_000)),
                min_size=1, max_size=60))  # fmt: skip
def test_launches_are_as_many_as_were_numbered(windows: list[tuple[int, int, int]]) -> None:
    process, total = Process(), 0.0
    for short, long, unseen in windows:
        if short:
            process.recorded("short", short, 10)
        if long:
            process.recorded("long", long, 10_000)
        process.window(numbered=short + long + (unseen if short + long else 0))
        total += sum(work.records * 1e6 / work.rate for work in process.works)
    assert total == pytest.approx(process.header["numbered"], rel=2e-2, abs=2 * len(windows))


@pytest.fixture(scope="module")
def made_up() -> dict[str, list[Outcome]]:
    return simulated(8, 1, ["bursts", "steps", "phases", "wide"])


def test_time_is_right_where_kernels_run_at_different_rates_of_launches(
    made_up: dict[str, list[Outcome]],
) -> None:
    """A ratio to the launches of the same window makes the long kernels' time three times too
    long."""
    for name, of in made_up.items():
        singles = [outcome for outcome in of if outcome.windows == 1]
        truth = sum(outcome.truth_ns for outcome in singles)
        assert sum(o.value_ns for o in singles) == pytest.approx(truth, rel=0.05), name


def test_intervals_hold_the_truth_as_often_as_they_say(
    made_up: dict[str, list[Outcome]],
) -> None:
    pooled = [outcome for of in made_up.values() for outcome in of]
    assert sum(outcome.error_ns is not None for outcome in pooled) > 5_000
    assert 94 <= coverage_percent(pooled) <= 97
    assert min(coverage_percent(of) for of in made_up.values()) > 85


def test_intervals_of_bursts_are_narrow_for_launches_and_wide_for_graphs(
    made_up: dict[str, list[Outcome]],
) -> None:
    """The number of launches is exact: which of the bursts the windows met does not matter."""
    width = {
        name: np.median([o.error_ns / o.truth_ns for o in made_up[name]
                         if o.windows == 12 and o.error_ns is not None])
        for name in ("bursts", "bursts_graphs")
    }  # fmt: skip
    assert width["bursts"] < 0.02 < width["bursts_graphs"] < 0.4
