"""What a demo says of its windows: while they come, and where a machine was too slow for some."""

from __future__ import annotations

import io
import os
import pty
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from scipy import stats

from pointillist.cli import demo as command
from pointillist.cli.output import CommandError
from pointillist.demo import demo_farewell as farewell
from pointillist.demo import summary
from pointillist.demo.demo_fleet import DemoFleet
from pointillist.demo.demo_plan import lateness_s
from pointillist.demo.demo_screen import DemoScreen, DemoStage, render
from pointillist.demo.demo_tally import DemoTally
from pointillist.demo.summary import Summary
from pointillist.run_terminal import ROWS, Struck
from simulator.cell_view import CellView, judged
from tests.window_kit import CATALOGUE

MIX = judged([CellView("idle", 0.41, 0.0033, 0.41), CellView("gpu_time/gemm", 0.19, 0.0033, 0.193)])
WHOLE = Summary(
    hosts=40, gpus=320, windows=3, windows_released=3, epsilon=2.0, delta=1e-9, epsilon_spent=2.0,
    standard_error_percent_window=1.0, rows_told_from_zero=1, rows_told_truly_empty=0,
    cells_checked=10, interval_coverage_percent=95.0, interval_coverage_binomial_low_percent=90.0,
    interval_coverage_binomial_high_percent=100.0, window_end_to_release_p50_s=2.2,
    window_end_to_release_p90_s=2.9, rejections={}, live_reports_sent=0,
    live_reports_in_leader_transcript=0, live_reports_in_helper_transcript=0,
    transcripts_agree=True, leader_pk="", helper_pk="", log="embedded", mix=[], events={},
    event_hosts={},
)  # fmt: skip
FRAME = DemoScreen(
    window=1, windows=3, hosts=1_476, roster=1_501, gpus=12_000, epsilon=2.0, epsilon_spent=0.93,
    rejections={}, latest=MIX, mean=MIX, stage="windows of 5 s",
)  # fmt: skip


def lines_of(frame: DemoScreen) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    with DemoStage(console, quiet=False) as stage:
        stage.show(frame)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_demo_tells_each_address_once_and_before_its_window() -> None:
    pages = {"the fleet": "http://127.0.0.1:1/", "this host": "http://127.0.0.1:2/"}
    console = Console(file=io.StringIO(), width=80)
    with DemoStage(console, quiet=False) as stage:
        stage.show(replace(FRAME, pages={"the fleet": pages["the fleet"]}))
        stage.show(replace(FRAME, pages=pages))
        stage.show(replace(FRAME, pages=pages, window=2))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split(":")[0].split(" ")[0] for line in lines] == [
        "http",
        "window",
        "http",
        "window",
    ]
    assert lines[0] == "http://127.0.0.1:1/   the fleet in a browser"


@pytest.mark.parametrize("rows", [12, 24, 40])
def test_demo_screen_fits_the_terminal_and_shows_the_addresses_first(rows: int) -> None:
    pages = {"the fleet": "http://127.0.0.1:1/", "this host": "http://127.0.0.1:2/"}
    planted = {"duplicate": 163, "host_unknown": 72, "second_report": 72, "window_late": 114}
    mix = judged([replace(MIX[0], cell=f"gpu_time/family_{n}") for n in range(20)])
    frame = replace(FRAME, pages=pages, latest=mix, mean=mix, rejections=planted)
    console = Console(file=io.StringIO(), width=80, height=rows)
    console.print(render(frame, console))
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
    whole = replace(
        WHOLE, windows=24, windows_released=23, cells_checked=33_333, live_reports_sent=28,
        live_reports_in_leader_transcript=27, live_reports_in_helper_transcript=27, files=files,
        event_bias_bounds=dict.fromkeys(names, 123.4),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    farewell.tell(console, whole, mix, events)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) + 2 <= 30  # the addresses of two pages follow


def told(of: Summary, events: dict[str, Struck]) -> str:
    console = Console(file=io.StringIO(), width=100)
    farewell.tell(console, of, MIX, events)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_demo_line_of_a_window_has_a_released_number_and_its_error() -> None:
    assert lines_of(FRAME) == [
        "window 1 of 3: gemm 19.00 ± 0.65 %, 1,476 of 1,501 hosts, epsilon 0.93 of 2"
    ]


def test_demo_line_of_a_window_shows_no_number_that_is_not_told_from_zero() -> None:
    faint = judged([replace(view, standard_error=1.0) for view in MIX])
    (line,) = lines_of(replace(FRAME, latest=faint))
    assert line.startswith("window 1 of 3: 1,476 of 1,501 hosts")


@pytest.mark.parametrize(("started_s", "waits_s"), [(0.4, 2), (2.0, 2), (2.1, 3), (60.0, 8)])
def test_demo_waits_longer_for_reports_where_the_fleet_started_slowly(
    started_s: float, waits_s: int
) -> None:
    assert lateness_s(started_s) == waits_s


def test_demo_says_which_windows_were_lost_and_why() -> None:
    text = told(replace(WHOLE, windows_released=2), {"incidents": Struck(0, [])})
    assert "2 of 3 windows were released: reports of the others came too late" in text
    by_hand = Console(file=io.StringIO(), width=100)
    farewell.tell(by_hand, replace(WHOLE, windows_released=2), MIX, {}, early=True)
    assert isinstance(by_hand.file, io.StringIO)
    assert "2 of 3 windows were released: you ended it" in by_hand.file.getvalue()
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
    nothing = replace(WHOLE, windows_released=0, rejections={"window_late": 5_910})
    monkeypatch.setattr(summary, "summarise", lambda *_: nothing)
    fleet = cast(DemoFleet, SimpleNamespace(folders=SimpleNamespace(logs=logs)))
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(CommandError, match="nothing was released: 5,910 reports") as error:
        command._end(fleet, DemoTally([], CATALOGUE), run, json=False)
    assert (run / "logs" / "leader.log").read_text() == "frozen"
    assert str(run / "logs") in str(error.value.hint)


@pytest.mark.parametrize("checked", [1, 10, 383, 33_333])
def test_expected_coverage_is_scipys_binomial_interval(checked: int) -> None:
    assert summary._binomial_bounds(checked) == stats.binom.interval(0.95, checked, 0.95)


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
