"""`pointillist simulate`: what it says, what it keeps, how it goes on."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pointillist.cli import main
from pointillist.play.scenario_play import Player
from pointillist.play.setup import Changes, NoSuchRun, Setup
from pointillist.play.stage import Progress, screen
from simulator.scenario import ScenarioError, names

pytestmark = pytest.mark.release

SMALL = ["steady", "--hosts", "60", "--hours", "0.05", "--fidelity", "noise"]


@pytest.fixture(autouse=True)
def _signals() -> Any:
    """The command takes signals over; the tests' own must stay."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["pointillist", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_simulate_without_a_scenario_lists_the_shipped_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "simulate")
    assert code == 0
    assert all(any(line.startswith(name) for line in out.splitlines()) for name in names())
    code, out, _ = run(monkeypatch, capsys, "simulate", "--json")
    assert [row["name"] for row in json.loads(out)] == list(names())


def test_simulate_keeps_its_files_and_says_what_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, out, err = run(monkeypatch, capsys, "simulate", *SMALL, "--out", str(folder))
    assert code == 0, err
    for name in ("cells.parquet", "outcomes.sqlite", "summary.json", "mix.png"):
        assert (folder / name).is_file()
        assert name in out
    assert "Try next" in out
    assert "variants by rule" in out.replace("\n", " ")
    table = pq.read_table(folder / "cells.parquet").to_pandas()
    assert set(table.window_start_s) == {1_770_854_400 + 60 * n for n in range(3)}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["windows_released"] == 3
    assert 0.85 < summary["intervals_held"] / summary["intervals"] < 1


def test_simulate_goes_on_where_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def cut(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    changes = Changes(hosts=60, hours=0.05, fidelity="noise")
    setup = Setup.make("steady", None, changes)
    for folder in (tmp_path / "cut", tmp_path / "whole"):
        folder.mkdir()
        setup.keep(folder)
    with pytest.raises(KeyboardInterrupt):
        Player(setup, tmp_path / "cut", 1, "kernel_mix").play(cut)
    whole = Player(setup, tmp_path / "whole", 1, "kernel_mix").play(lambda _: None)
    code, out, err = run(
        monkeypatch, capsys, "simulate", "--resume", str(tmp_path / "cut"), "--json"
    )
    assert code == 0, err
    summary = json.loads(out)
    same = ("error_points", "reports_released", "intervals_held", "cells", "windows")
    assert {name: summary[name] for name in same} == {name: whole.summary[name] for name in same}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["stedy"], "did you mean 'steady'"),
        (["steady", "--fidelity", "real"], "expected one of auto, exact, masked, noise"),
        (["steady", "--plan", "none"], "expected a file or one of default, operator_500"),
        (["steady", "--hours", "0.005"], "at least one step of 60 s"),
        ([*SMALL, "--section", "incidents"], "section: expected one that ends within"),
        (["--resume", "/nowhere"], "expected the folder of a simulation"),
        (["steady", "--resume", "/nowhere"], "got SCENARIO"),
        (["steady", "--export", "smoke"], "expected kafka or log"),
        (["steady", "--export", "kafka"], "expected --config FILE"),
        (["steady", "--enrol"], "go with --export"),
    ],
)
def test_simulate_refuses_with_what_it_expected(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, "simulate", *arguments)
    assert (code, out) == (2, "")
    assert told in err.replace("\n", " ")


def test_simulate_never_writes_into_a_folder_that_holds_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("dear")
    code, _, err = run(monkeypatch, capsys, "simulate", *SMALL, "--out", str(tmp_path))
    assert code == 2
    assert "expected a new or empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_simulate_that_releases_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scenario = tmp_path / "silent.toml"
    scenario.write_text(
        'format = 1\nname = "silent"\nhosts = 60\nduration_s = 120\nstart = 2026-02-12T00:00:00Z\n'
        '[[shape]]\ngpu_model = "H100"\n[dropout]\nshare = 0.5\n'
    )
    folder = tmp_path / "run"
    code, out, err = run(
        monkeypatch, capsys, "simulate", str(scenario), "--fidelity", "noise", "--out", str(folder)
    )
    assert code == 1
    assert "nothing was released: n_min 2" in err
    assert "Nothing was released." in out


def test_setup_remembers_what_the_command_line_changed(tmp_path: Path) -> None:
    setup = Setup.make("operator_500", None, Changes(hosts=40, seed=9))
    setup.keep(tmp_path)
    again = Setup.resume(tmp_path)
    assert (again.scenario, again.plan) == (setup.scenario, setup.plan)
    assert (again.scenario.hosts, again.scenario.seed) == (40, 9)
    (tmp_path / "run.json").write_text('{"changes": {"color": 1}}')
    with pytest.raises(NoSuchRun):
        Setup.resume(tmp_path)
    with pytest.raises(ScenarioError, match="did you mean"):
        Setup.make("flash_croud", None, Changes())


@pytest.mark.parametrize("width", [60, 120])
def test_screen_fits_its_terminal(tmp_path: Path, width: int) -> None:
    setup = Setup.make("steady", None, Changes(hosts=60, hours=0.05, fidelity="noise"))
    seen: list[Progress] = []
    player = Player(setup, tmp_path, 1, "kernel_mix")
    player.play(seen.append)
    player.scores.kept_back["n_min"] = 1
    console = Console(width=width, height=50, force_terminal=False)
    step = next(player.simulation.steps())
    for progress in (seen[-1], player._progress(step, due=10, settled=2)):
        with console.capture() as captured:
            console.print(screen(progress, console))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).replace("│", " ").split())
        assert " x real time" in text
        assert "60 hosts in the sum" in text
        assert "of the 95 % intervals hold the truth" in text
    assert "2 of 10 · " in text
    assert "n_min 1" in text


def test_simulate_enrols_hosts_and_says_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "export.toml"
    config.write_text(
        f'[fleet]\nidentities = "{tmp_path / "fleet"}"\n'
        f'[transport]\nfolder = "{tmp_path / "log"}"\n'
        f'[trust]\nleaders = ["{"aa" * 32}"]\nhelpers = ["{"bb" * 32}"]\n'
    )
    asked = ["simulate", "steady", "--hosts", "5", "--export", "log", "--config", str(config)]
    code, out, err = run(monkeypatch, capsys, *asked, "--enrol")
    assert code == 0, err
    assert "5 hosts" in out
    assert "pointillist leader roster build" in out
    assert "SIGNED_DIR" in out
    assert len(list((tmp_path / "fleet" / "joins").glob("*.join"))) == 5
    code, _, err = run(monkeypatch, capsys, *asked, "--enrol")
    assert code == 2
    assert "name another folder" in err
