"""GPU time on its way to `agent top` and `agent history`: rates, intervals, coverage, events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions

from collectors.records.activity import GpuCoverage
from collectors.records.gpu_time import NO_TIME, EstimatedTime, GpuTimes, TimedKernel, TimingState
from edge_agent.local.history import History
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.local_rows import EventRow, ProcessTimeRow
from edge_agent.local.recent import Recent
from edge_agent.local.spans import KEPT_TIMED, REST, SpanRows, keep_timed
from edge_agent.local.view import MOST_STEPS, view_of
from edge_agent.local.view_lines import HostView, document
from edge_agent.local.words import cupti_name, timing_said
from pointillist.cli.gpu_time_screen import (
    coverage_lines,
    gpu_time_line,
    gpu_time_page,
    gpu_time_panels,
)
from pointillist.cli.history_view_text import gpu_time_lines
from tests.calls_kit import GEMM
from tests.gpu_times_kit import MS, NOTEBOOK, T_95, TRAINER, gpu_times
from tests.local_kit import BOOT, POINT, UNIX, S, activity, at, flattener


def shown(*records: object) -> HostView:
    recent = Recent()
    recent.add(flattener().rows("gpu_time", records))
    ends = [one.boottime_ns + one.span_ns for one in records if isinstance(one, GpuTimes)]
    return recent.view(at(max(ends)))


def live_of(*records: object) -> dict[str, Any]:
    found: dict[str, Any] = document(shown(*records))
    return found


def test_rates_are_over_the_time_that_windows_stand_for() -> None:
    """A window every few seconds: lumps of work, and steady rates."""
    lumps = [gpu_times(BOOT + n * S, S, window=False) for n in range(4)]
    view = shown(gpu_times(BOOT - 4 * S, 4 * S), *lumps[:3], gpu_times(BOOT + 3 * S, 4 * S))
    processes = {line.pid: line for line in view.processes}
    trainer, notebook = processes[TRAINER.pid], processes[NOTEBOOK.pid]
    assert trainer.gpu_ms is not None
    assert trainer.timed is not None
    assert notebook.timed is not None
    assert trainer.gpu_ms.value == pytest.approx(1_000)
    assert trainer.timed.recorded_share == pytest.approx(0.1)
    assert (trainer.timed.cupti, trainer.timed.gpus) == ("13.0", (0, 1))
    assert (notebook.gpu_ms, notebook.timed.recorded_share) == (None, None)
    assert [gpu.busy for gpu in view.gpus] == [pytest.approx(0.5)] * 2 + [0.0]
    assert {family.family: family.share for family in view.families} == {
        "gemm": pytest.approx(0.9), "memcpy": pytest.approx(0.1),
    }  # fmt: skip


def test_intervals_are_student_s_and_those_of_sums_are_sums_of_their_own() -> None:
    """Kernels of a process hang together: the whole is not the root of their squares."""
    view = shown(gpu_times(BOOT, S), gpu_times(BOOT + S, S))
    rows = {(kernel.kernel, kernel.gpu): kernel for kernel in view.kernels}
    gemm, copy = rows[GEMM, 0], rows["Memcpy HtoD", 0]
    assert gemm.gpu_ms is not None
    assert copy.gpu_ms is not None
    half = pytest.approx(T_95 * (2 * 3**2) ** 0.5 / 2)
    assert gemm.gpu_ms.error == half
    assert gemm.gpu_ms.high == pytest.approx(gemm.gpu_ms.value + T_95 * (2 * 3**2) ** 0.5 / 2)
    assert (copy.gpu_ms.low, copy.gpu_ms.high, copy.gpu_ms.error) == (None, None, None)
    (trainer,) = (line for line in view.processes if line.pid == TRAINER.pid)
    assert trainer.gpu_ms is not None
    assert trainer.gpu_ms.error == pytest.approx(T_95 * (2 * 7**2) ** 0.5 / 2)
    errors = {line.family: line.gpu_ms and line.gpu_ms.error for line in view.families}
    assert errors == {"gemm": pytest.approx(T_95 * (2 * 6**2) ** 0.5 / 2), "memcpy": None}
    assert gemm.delay_us == pytest.approx(2)
    assert copy.delay_us is None
    assert copy.bytes_per_s == pytest.approx(1 << 30)
    assert gemm.mean_us == pytest.approx(400)


def test_an_estimate_below_zero_is_kept_for_sums_and_shown_as_zero() -> None:
    """What one window had too much comes off the next."""
    times = gpu_times()
    trainer = times.processes[0]
    (first, *others) = trainer.kernels
    below = first._replace(launches=-1.0, time=first.time._replace(value_ns=-5.0 * MS))
    view = live_of(replace(times, processes=(trainer._replace(kernels=(below, *others)),)))
    row = view["kernels"][-1]
    assert (row["gpu_ms"]["value"], row["gpu_ms"]["low"], row["mean_us"]) == (-5, 0, None)
    assert "-0.5" not in "\n".join(page(view, 160, 30))


def test_ten_seconds_of_a_process_are_kept_and_one_that_ended_is_not() -> None:
    long_ago = replace(gpu_times(BOOT - 60 * S, 20 * S))
    idle = [
        replace(
            times, processes=(times.processes[0]._replace(time=NO_TIME, kernels=(), devices=()),)
        )
        for times in (gpu_times(BOOT + n * S) for n in range(10))
    ]
    (trainer,) = shown(long_ago, *idle).processes
    assert trainer.gpu_ms is not None
    assert trainer.gpu_ms.value == 0
    assert trainer.seconds == pytest.approx(10)
    gone = shown(gpu_times(), replace(gpu_times(BOOT + S), processes=()))
    assert (gone.processes, gone.kernels) == ((), ())


def test_what_is_old_is_not_shown() -> None:
    recent = Recent()
    recent.add(flattener().rows("gpu_time", [gpu_times()]))
    assert recent.view(at(BOOT + 11 * S)).refused is not None
    old = recent.view(at(BOOT + 12 * S))
    assert (old.refused, old.processes, old.kernels, old.gpus) == (None, (), (), ())


def test_kernels_of_a_source_that_names_no_process_are_estimates_of_all() -> None:
    """A hundredth was recorded: the panel says what there was."""
    seen = replace(activity(gpu_ns=5 * MS), sampling_rate_millionths=10_000, span_ns=10 * S)
    recent = Recent()
    recent.add(flattener().rows("replay-0", [seen]))
    (kernel,) = recent.view(at(BOOT)).kernels
    assert kernel.gpu_ms is not None
    assert (kernel.gpu_ms.value, kernel.launches.value, kernel.pid) == (50, 30, 0)


def test_coverage_names_who_is_not_timed_and_why() -> None:
    view = live_of(gpu_times())
    first, second = coverage_lines(view)
    assert first == "kernels of 1 of 2 programs are timed, 1 of 2 GPUs in use are measured whole"
    assert second == "GPU 1: jupyter[815]: the library is not loaded"
    assert [gpu["covered"] for gpu in view["gpus"]] == [True, False, False]
    assert "gemm 90 %" in str(gpu_time_line(view))
    blind = live_of(replace(gpu_times(), known=frozenset()))
    assert "no driver says who else uses a GPU" in coverage_lines(blind)[0]
    refused = live_of(replace(gpu_times(), refused=(("full", 3),)))
    assert coverage_lines(refused)[-1] == "3 connections turned away: full"


def test_a_refusal_is_told_with_its_code_and_a_cupti_by_its_toolkit() -> None:
    assert timing_said(TimingState.REFUSED, 35) == "CUPTI refused, code 35"
    names = [cupti_name(version) for version in (0, 17, 24, 130_000, 130_201)]
    assert names == ["", "API 17", "12.6", "13.0", "13.2"]


def page(view: dict[str, Any] | None, columns: int, rows: int) -> list[str]:
    console = Console(width=columns, height=rows, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(gpu_time_page(view, "a note", ConsoleDimensions(columns, rows)), height=rows)
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize("size", [(80, 24), (60, 15), (40, 10), (100, 30), (200, 60), (20, 4)])
def test_gpu_time_fits_in_every_terminal(size: tuple[int, int]) -> None:
    for view in (live_of(gpu_times()), document(HostView()), None):
        lines = page(view, *size)
        assert len(lines) <= size[1]
        assert max(cell_len(line) for line in lines) <= size[0]


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_gpu_time_keeps_titles_and_numbers_whole(columns: int) -> None:
    text = "\n".join(page(live_of(gpu_times()), columns, 30))
    for part in (" busy ", "copies (hidden)", "programs timed", "1 of 2", "no program", "GPU %",
                 "±", "launches/s", "python3", "measured", "gemm 90 %",
                 "10.0 % (50 %)"):  # fmt: skip
        assert part in text, part
    assert ("CUPTI" in text.replace("no room: recorded %, GPUs, CUPTI", "")) == (columns >= 76)


def test_gpu_time_in_a_pipe_is_there_where_a_source_times() -> None:
    assert gpu_time_panels(document(HostView()), 80) == []
    assert len(gpu_time_panels(live_of(gpu_times()), 80)) == 4


def test_a_page_of_nothing_says_what_to_do() -> None:
    assert "sources.gpu_time.enabled" in "\n".join(page(document(HostView()), 80, 24))
    assert "nothing was heard of the sources" in "\n".join(page(None, 80, 24))


# History ------------------------------------------------------------------------------------------


def kept_rows(*records: GpuTimes) -> list[ProcessTimeRow]:
    spans, made = SpanRows(), flattener()
    rows: list[object] = list(spans.rows(made.rows("gpu_time", records)))
    return [row for row in [*rows, *spans.rest()] if isinstance(row, ProcessTimeRow)]


def test_ten_seconds_of_a_process_become_one_row() -> None:
    rows = kept_rows(*(gpu_times(BOOT + n * S) for n in range(25)))
    assert [row.boottime_ns for row in rows] == [BOOT, BOOT + 10 * S, BOOT + 20 * S]
    assert [row.process.span_ns for row in rows] == [10 * S, 10 * S, 5 * S]
    assert {row.process.process for row in rows} == {TRAINER}
    (gemm, *_) = rows[0].process.kernels
    assert (gemm.gpu, gemm.time.value_ns) == (1, 5 * S)
    assert gemm.time.variance == pytest.approx(10 * (4 * MS) ** 2)
    assert rows[0].process.time.variance == pytest.approx(10 * (7 * MS) ** 2)
    assert [gpu.busy for gpu in rows[0].process.devices] == [5 * S, 5 * S]


def test_what_a_process_did_before_it_ended_is_kept_at_once() -> None:
    rows = kept_rows(gpu_times(), replace(gpu_times(BOOT + S), processes=()))
    assert [row.process.span_ns for row in rows] == [S]


def test_kernels_beyond_the_busiest_are_kept_by_family() -> None:
    many = [
        TimedKernel(0, f"k{n}", "gemm" if n % 2 else "norm", 1, EstimatedTime(100 - n, 1, 9, S))
        for n in range(40)
    ]
    kept = keep_timed(many)
    assert len(kept) == KEPT_TIMED + 2
    rest = {kernel.family: kernel for kernel in kept if kernel.kernel == REST}
    assert rest["norm"].launches == rest["gemm"].launches == 14
    assert sum(k.time.value_ns for k in kept) == sum(k.time.value_ns for k in many)
    assert rest["gemm"].time.variance is None  # of the same windows: they do not add up
    assert kept[0].time.variance == 1


def test_a_process_that_cannot_be_timed_is_an_event_once_and_again_when_it_is() -> None:
    made = flattener()

    def events(state: TimingState) -> Iterator[tuple[str, str, str]]:
        times = gpu_times()
        trainer = times.processes[0]._replace(state=state)
        for row in made.rows("gpu_time", [replace(times, processes=(trainer,))]):
            if isinstance(row, EventRow):
                yield row.name, row.key, row.detail

    found = [
        list(events(state))
        for state in (
            TimingState.STARTING, TimingState.MEASURED, TimingState.OCCUPIED,
            TimingState.OCCUPIED, TimingState.MEASURED,
        )
    ]  # fmt: skip
    assert found == [
        [], [], [("gpu_not_timed", "python3[4711]", "another profiler has CUPTI")], [],
        [("gpu_timed", "python3[4711]", "measured")],
    ]  # fmt: skip


def test_history_gives_gpu_time_by_family_over_time_with_what_was_covered(tmp_path: Path) -> None:
    history, made = History(tmp_path / "history.sqlite"), flattener()
    history.note_clock(POINT)
    for second in range(30):
        at_ns = BOOT + second * S
        coverage = GpuCoverage("gpu_time", 0, at_ns, S), GpuCoverage("devices", 1, at_ns, S)
        records: list[object] = [gpu_times(at_ns), *coverage]
        history.add(made.rows("gpu_time", records))
    history.close()
    with HistoryReader(tmp_path / "history.sqlite") as reader:
        rows = list(reader.rows("gpu_time"))
        assert [row["name"] for row in rows] == ["python3"] * 3
        assert (rows[0]["gpu_time_ns"], rows[0]["variance"]) == (10 * S, 10 * (7 * MS) ** 2)
        assert [family["family"] for family in rows[0]["families"]] == ["gemm", "memcpy"]
        assert rows[0]["kernels"][0]["gpu_time_ns"] == 5 * S
        assert rows[0]["kernels"][-1]["variance"] is None
    view = view_of(tmp_path / "history.sqlite", steps=MOST_STEPS, gpus=2)
    assert view.steps[0].unix_ns == UNIX
    assert sum(step.span_ns for step in view.steps) == 30 * S
    for step in view.steps:
        assert step.covered_share == pytest.approx(0.5)
        assert step.busy_share == pytest.approx(0.5)
        assert step.family_shares["gemm"] == pytest.approx(0.45)
    kernels = {(line.kernel, line.gpu): line for line in view.kernels}
    one, two = kernels[GEMM, 0], kernels[GEMM, 1]
    assert one.launches.value * one.seconds == pytest.approx(30_000)
    assert [line.gpu_ms and line.gpu_ms.value for line in (one, two)] == [400, 500]
    for line, each in ((one, 3), (two, 4)):
        assert line.gpu_ms is not None
        assert line.gpu_ms.error == pytest.approx(T_95 * (30 * each**2) ** 0.5 / 30)
    text = "\n".join(gpu_time_lines(view, 2))
    assert " 33.5 ms " in text
    assert " 44.7 ms " in text
    assert NOTEBOOK.pid not in {line.pid for line in view.kernels}


def test_a_day_of_gpu_time_has_few_steps_and_none_beyond_the_rows(tmp_path: Path) -> None:
    history, made = History(tmp_path / "history.sqlite"), flattener()
    history.note_clock(POINT)
    assert view_of(tmp_path / "history.sqlite", steps=MOST_STEPS, gpus=1).steps == ()
    for hour in range(24):
        history.add(made.rows("gpu_time", [gpu_times(BOOT + hour * 3600 * S, 10 * S)]))
    late = GpuCoverage("gpu_time", 0, BOOT + 25 * 3600 * S, S)
    history.add(made.rows("gpu_time", [late]))
    history.close()
    steps = view_of(tmp_path / "history.sqlite", steps=MOST_STEPS, gpus=1).steps
    assert len(steps) <= MOST_STEPS + 2
    assert steps[-1].unix_ns + steps[-1].span_ns == UNIX + (23 * 3600 + 10) * S
