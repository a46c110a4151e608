"""What a demo says of its windows: while they come, and where a machine was too slow for some."""

from __future__ import annotations

import io
import os
import pty
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from scipy import stats

from pointillist.cli import demo as command
from pointillist.cli.output import CommandError
from pointillist.play import demo_summary
from pointillist.play.demo_fleet import DemoFleet
from pointillist.play.demo_plan import lateness_s
from pointillist.play.demo_tally import DemoTally
from pointillist.play.stage import ROWS, Progress, Stage, Struck, print_summary, screen
from simulator.cell_view import CellView, judged
from tests.play_kit import demo_progress
from tests.window_kit import CATALOGUE

MIX = judged([CellView("idle", 0.41, 0.0033, 0.41), CellView("gpu_time/gemm", 0.19, 0.0033, 0.193)])
WHOLE: dict[str, Any] = {
    "windows": 3, "windows_released": 3, "epsilon": 2.0, "delta": 1e-9, "epsilon_spent": 2.0,
    "cells_checked": 10, "interval_coverage_percent": 95.0, "rejections": {},
    "live_reports_sent": 0, "live_reports_in_leader_transcript": 0,
    "live_reports_in_helper_transcript": 0, "transcripts_agree": True, "event_bias_bounds": {},
    "files": {},
}  # fmt: skip


def lines_of(*shown: Progress) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    with Stage(console, quiet=False) as stage:
        for progress in shown:
            stage.show(progress)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_demo_tells_each_address_once_and_before_its_window(tmp_path: Path) -> None:
    pages = {"the fleet": "http://127.0.0.1:1/", "this host": "http://127.0.0.1:2/"}
    lines = lines_of(
        demo_progress(tmp_path, MIX, pages={"the fleet": pages["the fleet"]}),
        demo_progress(tmp_path, MIX, pages=pages),
        demo_progress(tmp_path, MIX, pages=pages, done=2),
    )
    first = [line.split(":")[0].split(" ")[0] for line in lines]
    assert first == ["http", "window", "http", "window"]
    assert lines[0] == "http://127.0.0.1:1/   the fleet in a browser"


@pytest.mark.parametrize("rows", [12, 24, 40])
def test_demo_screen_fits_the_terminal_and_shows_the_addresses_first(
    tmp_path: Path, rows: int
) -> None:
    pages = {"the fleet": "http://127.0.0.1:1/", "this host": "http://127.0.0.1:2/"}
    planted = {"duplicate": 163, "host_unknown": 72, "second_report": 72, "window_late": 114}
    mix = judged([replace(MIX[0], cell=f"gpu_time/family_{n}") for n in range(20)])
    progress = demo_progress(tmp_path, mix, pages=pages, refused=planted)
    console = Console(file=io.StringIO(), width=80, height=rows)
    console.print(screen(progress, console))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) < rows  # and the cursor has the last
    assert [line.split()[1] for line in lines[1:3]] == list(pages.values())
    assert lines[-2].endswith("╯")
    assert sum("family" in line for line in lines) == min(max(rows - 13, 3), ROWS)


def test_demo_ends_in_thirty_lines_with_all_that_can_be_said() -> None:
    mix = judged([replace(MIX[0], cell=f"gpu_time/quantize_activation_{n}") for n in range(20)])
    names = ("incidents", "hardware_faults", "applications_seen")
    events = {name: Struck(1_461, mix) for name in names}
    files = {name: f"runs/demo-20261127-120000/{name}" for name in ("releases", "summary")}
    whole = WHOLE | {
        "windows": 24, "windows_released": 23, "cells_checked": 33_333, "live_reports_sent": 28,
        "live_reports_in_leader_transcript": 27, "live_reports_in_helper_transcript": 27,
        "files": files, "event_bias_bounds": dict.fromkeys(names, 123.4),
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    print_summary(console, demo_summary.demo_end(whole, mix, events))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) + 2 <= 30  # the addresses of two pages follow


def told(of: dict[str, Any], events: dict[str, Struck], *, early: bool = False) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_summary(console, demo_summary.demo_end(of, MIX, events, early=early))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_demo_line_of_a_window_has_a_released_number_and_its_error(tmp_path: Path) -> None:
    assert lines_of(demo_progress(tmp_path, MIX)) == [
        "window 1 of 3: gemm 19.00 ± 0.65 %, 1,476 of 1,501 hosts, epsilon 0.90 of 2"
    ]


def test_demo_line_of_a_window_shows_no_number_that_is_not_told_from_zero(tmp_path: Path) -> None:
    faint = judged([replace(view, standard_error=1.0) for view in MIX])
    (line,) = lines_of(demo_progress(tmp_path, faint))
    assert line.startswith("window 1 of 3: 1,476 of 1,501 hosts")


def test_demo_before_its_first_window_shows_who_enrolled_and_an_empty_table(tmp_path: Path) -> None:
    before = demo_progress(tmp_path, [], done=0)
    assert lines_of(before) == ["1,501 hosts enrolled, windows of 5 s"]
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(screen(before, console))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1,501 hosts · 12,000 GPUs · epsilon spent 0.00 of 2" in text
    assert "nothing released yet" in text


def test_lines_of_a_long_run_come_as_often_as_a_reader_wants_and_the_last_always(
    tmp_path: Path,
) -> None:
    console = Console(file=io.StringIO(), width=80)
    with Stage(console, quiet=False, line_s=1e9) as stage:
        for done in (1, 2, 3):
            stage.show(demo_progress(tmp_path, MIX, done=done))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line[:11] for line in lines] == ["window 1 of", "window 3 of"]


@pytest.mark.parametrize(("started_s", "waits_s"), [(0.4, 2), (2.0, 2), (2.1, 3), (60.0, 8)])
def test_demo_waits_longer_for_reports_where_the_fleet_started_slowly(
    started_s: float, waits_s: int
) -> None:
    assert lateness_s(started_s) == waits_s


def test_demo_says_which_windows_were_lost_and_why() -> None:
    text = told(WHOLE | {"windows_released": 2}, {"incidents": Struck(0, [])})
    assert "2 of 3 windows were released: reports of the others came too late" in text
    by_hand = told(WHOLE | {"windows_released": 2}, {}, early=True)
    assert "2 of 3 windows were released: you ended it" in by_hand
    assert "Incidents: the window was not released" in text
    assert "of 0 hosts" not in text
    assert "windows were released" not in told(WHOLE, {})


def test_demo_without_files_names_none() -> None:
    assert "summary.json" not in told(WHOLE, {})


def test_demo_that_released_nothing_keeps_its_logs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "leader.log").write_text("frozen")
    nothing = WHOLE | {"windows_released": 0, "rejections": {"window_late": 5_910}}
    monkeypatch.setattr(demo_summary, "summarise", lambda *_: nothing)
    fleet = cast(DemoFleet, SimpleNamespace(folders=SimpleNamespace(logs=logs)))
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(CommandError, match="nothing was released: 5,910 reports") as error:
        command._end(fleet, DemoTally([], CATALOGUE), run, json=False)
    assert (run / "logs" / "leader.log").read_text() == "frozen"
    assert str(run / "logs") in str(error.value.hint)


@pytest.mark.parametrize("checked", [1, 10, 383, 33_333])
def test_expected_coverage_is_scipys_binomial_interval(checked: int) -> None:
    assert demo_summary._binomial_bounds(checked) == stats.binom.interval(0.95, checked, 0.95)


def test_demo_waits_for_ctrl_c_only_where_a_person_looks_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(leader), os.fdopen(follower) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.delenv("CI", raising=False)
        assert command._person_looks_on()
        monkeypatch.setenv("CI", "true")
        assert not command._person_looks_on()
        monkeypatch.delenv("CI")
        monkeypatch.setattr("sys.stdout", io.StringIO())
        assert not command._person_looks_on()
