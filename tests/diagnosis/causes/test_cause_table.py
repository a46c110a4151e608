"""The root-cause table: numbers, noise, trends; why it is not corrected; stored and read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from aggregator import read_causes, read_releases
from aggregator.releases.cause_files import CausesUnreadable, cause_columns, tables_of, tables_read
from aggregator.releases.releases import query
from aggregator.releases.store import Store
from aggregator.releases.window_files import COARSE
from aggregator.statistics.causes import CauseRow, CauseTable, Trend, cause_table
from aggregator.statistics.correction import Detector, Reported, _poisson_bounds
from aggregator.statistics.ratios import CONFIDENCE
from pointillist.cli.causes_command import remarks
from pointillist.cli.output import CommandError
from pointillist.cli.root import command
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise, true_steps, window
from tests.diagnosis.causes.causes_kit import (
    HOSTS,
    MODEL,
    NOISE,
    WEEK_S,
    K,
    detector,
    drawn_reports,
    struck,
    week,
)

TRUTH = struck(disk_io=900, cpu_contention=300, memory_pressure=120)


def told(**hosts: float) -> Reported:
    """Reports without noise, at the usual standard error."""
    return Reported(HOSTS, struck(**hosts), np.full(K, NOISE))


def row_of(table: CauseTable, cause: str) -> CauseRow:
    return next(row for row in table.rows if row.cause == cause)


def test_table_without_rates_shows_what_was_reported_and_says_so() -> None:
    table = cause_table(week(told(disk_io=900, cpu_contention=39)))
    assert not table.corrected
    assert table.correction == "not corrected: no measured rates of the agents' detector"
    assert [row.cause for row in table.shown] == ["disk_io"]
    (row,) = table.shown
    assert (row.hosts, row.standard_error, row.component) == (900, NOISE, "storage")
    assert (row.low, row.high) == pytest.approx((900 - 39.2, 900 + 39.2), abs=0.01)
    assert row.share == pytest.approx(0.09)
    assert row.false_high == 0
    assert (row.trend, row.change) == (Trend.UNKNOWN, None)
    assert table.by_chance == pytest.approx(0.02275 * K, rel=1e-3)


def test_corrected_table_finds_the_hosts_that_the_detector_missed() -> None:
    one = detector()
    reports = drawn_reports(TRUTH, one, np.random.default_rng(2), noise=5.0)
    plain = cause_table(week(reports))
    table = cause_table(week(reports), None, one, MODEL)
    assert table.corrected
    assert table.correction == (
        f"corrected by 1300 runs and 10000000.0 worker-hours of model {MODEL}"
    )
    disk = row_of(table, "disk_io")
    assert disk.low <= 900 <= disk.high
    assert row_of(plain, "disk_io").high < 900
    # 20 false alarms of each cause pass for hosts where nothing is corrected.
    assert row_of(table, "gpu_shared").below_noise
    assert sum(row.hosts for row in plain.rows if row.hosts < 100) > 150
    assert disk.part is not None
    assert disk.part == pytest.approx(900 / TRUTH.sum(), abs=0.1)
    assert [row.hosts for row in table.shown] == sorted(
        (row.hosts for row in table.shown), reverse=True
    )


def refusals() -> Iterator[tuple[Detector | None, str | None, str]]:
    one = detector()
    yield None, MODEL, "no measured rates"
    yield one, None, "nobody said"
    yield one, "causes 4 feed", f"of model {MODEL}, the agents run causes 4 feed"
    yield replace(one, classes=tuple(reversed(one.classes))), MODEL, "other causes"
    blind = np.full((K, K), 5, dtype=np.int64)
    yield replace(one, counts=blind), MODEL, "too badly"


@pytest.mark.parametrize(("one", "model", "why"), list(refusals()))
def test_table_is_not_corrected_by_rates_that_do_not_fit_and_says_why(
    one: Detector | None, model: str | None, why: str
) -> None:
    reports = told(disk_io=900)
    table = cause_table(week(reports), None, one, model)
    assert not table.corrected
    assert why in table.correction
    assert row_of(table, "disk_io").hosts == 900
    assert all(row.as_reported is None for row in table.rows)


def changed(one: Detector, cause: str, row: dict[str, int], trials: int) -> Detector:
    """The same detector, but one cause's runs ended like this."""
    at = list(map(str, one.classes)).index(cause)
    all_trials, counts = one.trials.copy(), one.counts.copy()
    all_trials[at], counts[at] = trials, 0
    for told_as, count in row.items():
        counts[at, list(map(str, one.classes)).index(told_as)] = count
    return replace(one, trials=all_trials, counts=counts)


def test_cause_that_cannot_be_corrected_stays_as_reported_with_its_reason_by_name() -> None:
    one = changed(detector(), "pcie_pressure", {}, 0)
    one = changed(one, "communication_wait", {"nic_limit_or_loss": 4}, 5)
    one = changed(one, "gpu_shared", {"gpu_shared": 2}, 2)
    table = cause_table(
        week(told(disk_io=900, communication_wait=400, pcie_pressure=500)), None, one, MODEL
    )
    assert table.corrected
    assert {row.cause: row.as_reported for row in table.rows if row.as_reported} == {
        "pcie_pressure": "no bench made it",
        "communication_wait": "never told rightly in 5 runs; taken for nic_limit_or_loss in 4: "
        "that number may hold its hosts",
        "gpu_shared": "2 runs of it in the bench, 3 are needed",
    }
    assert row_of(table, "communication_wait").hosts == 400
    assert row_of(table, "pcie_pressure").standard_error == NOISE
    assert row_of(table, "disk_io").hosts > 950


def test_table_that_rates_of_single_runs_cannot_correct_says_so() -> None:
    table = cause_table(week(told(disk_io=900)), None, detector(runs=1, right=1.0), MODEL)
    assert not table.corrected
    assert table.correction.startswith("not corrected: of no cause does the bench have 3 runs")


def test_shipped_rates_name_causes_and_no_class_number() -> None:
    shipped = Detector.shipped()
    assert shipped is not None
    table = cause_table(week(told(disk_io=900)), None, shipped, shipped.model)
    said = [table.correction, *(row.as_reported or "" for row in table.rows)]
    assert not any("class " in text or "false alarms drown" in text for text in said)


def test_table_says_what_its_intervals_are_about_and_how_low_it_is() -> None:
    quiet = cause_table(week(told(disk_io=200)))
    bound = cause_table(replace(week(told(disk_io=200)), bias_bound=31.5))
    assert quiet.scope == "95 %: for the number of hosts that reported the cause"
    assert (quiet.bias_bound, bound.bias_bound) == (None, 31.5)
    assert "may be low by 32 hosts on average, at most (95 %)" in " ".join(remarks(bound))
    assert "was not released" in " ".join(remarks(quiet))
    corrected = cause_table(week(told(disk_io=200)), None, detector(), MODEL)
    assert corrected.scope.startswith("95 %: for the number of hosts that had the cause, if")


def test_faults_are_never_corrected() -> None:
    faults = replace(week(told(disk_io=900)), section="hardware_faults")
    table = cause_table(faults, None, detector(), MODEL)
    assert (table.corrected, table.correction) == (
        False, "not corrected: faults are read from logs and counters, not detected",
    )  # fmt: skip


def test_trend_is_named_only_beyond_noise() -> None:
    before = week(told(disk_io=900, cpu_contention=300, unknown=300), 1)
    now = week(told(disk_io=960, cpu_contention=420, unknown=150), 2)
    table = cause_table(now, before, detector(), MODEL)
    trends = {row.cause: row.trend for row in table.rows}
    assert trends["disk_io"] is Trend.STEADY
    assert trends["cpu_contention"] is Trend.RISING
    assert trends["unknown"] is Trend.FALLING
    rising = row_of(table, "cpu_contention")
    assert rising.change is not None
    assert rising.change_low is not None
    assert 0 < rising.change_low < rising.change
    assert rising.change == pytest.approx(120 / 0.9, rel=0.15)


def test_trend_follows_the_share_when_fewer_hosts_report() -> None:
    before, half = told(disk_io=900), told(disk_io=450)
    fewer = Reported(HOSTS // 2, half.value, half.standard_error)
    row = row_of(cause_table(week(fewer, 2), week(before, 1)), "disk_io")
    assert row.trend is Trend.STEADY
    assert row.change == pytest.approx(0)


def test_trend_needs_the_window_right_before() -> None:
    with pytest.raises(ValueError, match="the window of incidents before"):
        cause_table(week(told(), 3), week(told(), 1))


def test_trends_of_a_quiet_fleet_are_seldom_named() -> None:
    one, rng = detector(runs=20), np.random.default_rng(9)
    named = [
        row.trend is not Trend.STEADY
        for _ in range(60)
        for row in cause_table(
            week(drawn_reports(TRUTH, one, rng), 2), week(drawn_reports(TRUTH, one, rng), 1), one,
            MODEL,
        ).rows
    ]  # fmt: skip
    assert 0.02 < np.mean(named) < 0.08


TASK = make_task(start=WEEK_S)


def released(number: int, hosts: float) -> object:
    rng = np.random.default_rng(number)
    vector = true_steps(TASK, 12_000, {("incidents", "disk_io"): hosts * 64})
    return window(
        TASK, vector + with_checks(noise(TASK, 12_000, rng)), 12_000, WEEK_S + 60 * number
    )


def with_checks(drawn: np.ndarray) -> np.ndarray:
    drawn[:2] = 0
    return drawn


def fill(root: Path, one: Detector | None = None, model: str | None = None) -> Path:
    with Store(
        root / "leader" / "store.duckdb", root / "releases", CATALOGUE, detector=one,
        agents_model=model,
    ) as store:  # fmt: skip
        for number, hosts in enumerate((900, 6_000)):
            store.write(released(number, hosts))  # type: ignore[arg-type]
    return root / "releases"


def test_store_writes_the_table_beside_each_release_and_readers_find_it(tmp_path: Path) -> None:
    one = detector()
    folder = fill(tmp_path, one, MODEL)
    stored = tables_read(read_causes(folder).to_dict("records"))
    assert [table.window_start_s for table in stored] == [WEEK_S + 60, WEEK_S]
    again = tables_of(read_releases(folder).to_dict("records"), one, MODEL)
    assert stored == again
    newest = row_of(stored[0], "disk_io")
    assert stored[0].corrected
    assert newest.trend is Trend.RISING
    assert row_of(stored[1], "disk_io").trend is Trend.UNKNOWN
    rows = query(
        "SELECT cause, trend FROM causes WHERE NOT below_noise ORDER BY hosts DESC", folder
    )
    assert rows.iloc[0].tolist() == ["disk_io", "rising"]
    # The tables are no releases: nothing of them comes up among the cells.
    assert set(read_releases(folder).columns).isdisjoint({"cause", "trend"})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("trend", "sideways"),
        ("hosts", float("nan")),
        ("cause", None),
        ("window_start", pd.Timestamp(np.datetime64(1 << 62, "us"))),
    ],
)
def test_rows_that_no_leader_stored_are_refused(column: str, value: object, tmp_path: Path) -> None:
    rows = read_causes(fill(tmp_path)).to_dict("records")
    with pytest.raises(CausesUnreadable, match="expected root causes as a Leader stores them"):
        tables_read([{**row, column: value} for row in rows])


def test_command_refuses_a_damaged_table_and_escapes_its_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path)
    for path in (folder / "causes").rglob("*.parquet"):
        table = pq.read_table(path)
        causes = pa.array([f"{name}\x1b]0;title\x07" for name in table["cause"].to_pylist()])
        at = table.schema.get_field_index("cause")
        pq.write_table(table.set_column(at, "cause", causes), path)
    asked = ["causes", "--store", str(folder)]
    command()(asked, standalone_mode=False)
    said = capsys.readouterr()
    assert r"\x1b]0;title\x07" in said.out
    assert "\x1b" not in said.out + said.err
    path.write_bytes(b"PAR1")
    with pytest.raises(CommandError, match="Invalid Input"):
        command()(asked, standalone_mode=False)


def test_store_writes_tables_that_a_crash_left_out(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    (newest, *_) = sorted((folder / "causes").rglob("*.parquet"))[::-1]
    whole = newest.read_bytes()
    newest.unlink()
    with Store(tmp_path / "leader" / "store.duckdb", folder, CATALOGUE) as store:
        store.repair()
        assert newest.exists()
        assert store.repair() == 0
    assert len(whole) == newest.stat().st_size


def test_release_without_causes_has_no_table(tmp_path: Path) -> None:
    assert cause_columns(tables_of([], None, None)).num_rows == 0
    (tmp_path / COARSE).touch()  # a new store
    empty = read_causes(tmp_path)
    assert empty.empty
    assert "cause" in empty.columns


def test_bounds_of_counts_are_scipys_exact_ones() -> None:
    events, tail = np.array([0, 1, 7, 400]), (1 - CONFIDENCE) / 2
    low, high = _poisson_bounds(events)
    assert low[0] == 0
    assert low[1:] == pytest.approx(stats.gamma.ppf(tail, events[1:]))
    assert high == pytest.approx(stats.gamma.ppf(1 - tail, events + 1))
