"""`pointillist stragglers` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from pointillist.cli.output import CommandError
from pointillist.cli.stragglers import app
from tests.diagnosis.stragglers.jobs import made


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def write(
    path: Path,
    ranks: int,
    slow: dict[int, float],
    steps: int = 30,
    since: int = 0,
    stages: dict[int, float] | None = None,
) -> None:
    stages = stages or {0: 1.0}
    job = made(11, stages, ranks // len(stages), steps)
    for one, factor in slow.items():
        job.times[one, since:] *= factor
    rank, step = np.meshgrid(np.arange(ranks), np.arange(steps), indexing="ij")
    work = job.times.ravel()
    columns = {
        "rank": np.tile(rank.ravel(), 2), "step": np.tile(step.ravel(), 2),
        "stage": np.tile(np.repeat(job.stages, steps), 2),
        "optype": ["compute"] * len(work) + ["grads-all-reduce"] * len(work),
        "start": np.r_[np.zeros_like(work), work],
        "duration": np.r_[work, np.tile(job.times.max(axis=0) + 0.1, ranks) - work],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    write(path, 6, {4: 1.7})
    return path


def test_stragglers_prints_a_table_with_the_slow_rank(trace: Path) -> None:
    ran = run(trace)
    assert ran.exit_code == 0
    (line,) = [line for line in ran.stdout.splitlines() if "slow: compute" in line]
    assert line.split()[0] == "4"
    assert "slow: rank 4 (compute); 30 steps" in ran.stdout


def test_stragglers_gives_json_that_says_who_waited(trace: Path) -> None:
    told = json.loads(run(trace, "--json").stdout)
    assert told["slow_ranks"] == [4]
    assert [row["verdict"] for row in told["ranks"]].count("normal") == 5
    assert {pair["for"] for pair in told["waited_ms_per_step"]} == {4}
    assert told["calls"] == 30


def test_stragglers_tells_of_a_stage_with_more_work_than_the_others(tmp_path: Path) -> None:
    write(tmp_path / "job.parquet", 12, {}, stages={0: 1.0, 1: 1.0, 2: 1.63})
    told = json.loads(run(tmp_path / "job.parquet", "--json").stdout)
    assert (told["slow_ranks"], told["uneven_stages"]) == ([], [2])
    assert told["uneven_input_stages"] == []
    assert told["stages"][2]["work_over_others"] == pytest.approx(1.63, abs=0.05)
    shown = run(tmp_path / "job.parquet").stdout
    assert "times the work of the others: uneven stages" in " ".join(shown.split())


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_stragglers_draws_a_picture(trace: Path, suffix: str) -> None:
    picture = trace.with_suffix(suffix)
    assert run(trace, "--plot", picture).exit_code == 0
    head = picture.read_bytes()[:200]
    assert b"PNG" in head if suffix == ".png" else b"<svg" in head or b"<?xml" in head


def test_stragglers_shows_the_worst_of_a_large_job_unless_asked_for_all(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    write(path, 60, {31: 1.5}, steps=8)
    short, whole = run(path).stdout, run(path, "--all").stdout
    assert "... and 20 more; --all shows them" in short
    assert short.splitlines()[1].split()[0] == "31"
    assert len(whole.splitlines()) == len(short.splitlines()) + 19


def test_stragglers_tells_when_a_rank_was_slow(tmp_path: Path) -> None:
    path = tmp_path / "late.parquet"
    write(path, 4, {2: 1.5}, steps=60, since=11)
    shown, told = run(path).stdout, json.loads(run(path, "--json").stdout)["ranks"][2]
    assert "rank 2: slow from step 11 to 59, in 82 % of the run's steps" in shown
    assert "30 to 59, in 100 %" in shown
    assert (told["from_step"], told["to_step"], told["slow_steps"]) == (11, 59, 49)
    assert (told["window_from_step"], told["slow_steps_percent"]) == (30, 100)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_stragglers_fits_the_terminal(
    trace: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run(trace).stdout
    assert max(map(len, shown.splitlines())) <= columns
    assert "slow: compute" in shown
    assert ("Left out" in shown) == (columns < 100)
    assert " -0.0 " not in shown


def test_stragglers_keeps_the_columns_of_its_table_straight(tmp_path: Path) -> None:
    path = tmp_path / "slow.parquet"
    write(path, 6, {4: 300.0})
    head, *rows = run(path).stdout.splitlines()[:7]
    ends = [head.index(name) + len(name) for name in ("excess", "others waited", "it waited")]
    for row in rows:
        assert all(row[end - 1] != " " and row[end : end + 2] == "  " for end in ends), row


def test_stragglers_says_when_nothing_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "alone.parquet"
    write(path, 1, {})
    assert "nothing can be said (no peers); 30 steps" in run(path).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.parquet"], "there is no such file"),
        (["trace.parquet", "--plot", "job.pdf"], ".png or .svg"),
        (["trace.parquet", "--live", "/job/*"], "exclude each other"),
        (["--live", "/no-such-job-here/*"], "got 0"),
    ],
)
def test_stragglers_says_what_is_wrong(arguments: list[str], said: str) -> None:
    ran = run(*arguments)
    assert isinstance(ran.exception, CommandError)
    assert ran.exception.code == 2
    assert said in str(ran.exception)


def test_stragglers_is_in_the_main_help_and_loads_nothing_for_it() -> None:
    """The main help must not import what the group needs."""
    code = "import sys; from pointillist.cli.root import GROUPS; print('matplotlib' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    ran = subprocess.run(
        [sys.executable, "-m", "pointillist", "--help"], capture_output=True, text=True, check=True
    )
    assert "stragglers" in ran.stdout
