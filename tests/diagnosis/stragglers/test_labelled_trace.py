"""The recorded 64-GPU job of which it is known that worker 0 is slow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diagnosis.stragglers.judge import JobJudgement, Slowness, job_of, judge
from diagnosis.stragglers.peers import MAD_TO_SIGMA
from diagnosis.stragglers.trace import RankTrace
from diagnosis.stragglers.trace_file import read_trace
from pointillist.cli.stragglers import app
from tests.shared_data import shared_data


@pytest.fixture(scope="module")
def path() -> Path:
    return shared_data("straggler/trace-AR.parquet")


@pytest.fixture(scope="module")
def trace(path: Path) -> RankTrace:
    return read_trace(path)


@pytest.fixture(scope="module")
def judged(trace: RankTrace) -> JobJudgement:
    return judge(job_of(trace))


def test_labelled_trace_shows_its_slow_worker_and_no_other(judged: JobJudgement) -> None:
    (slow,) = judged.slow
    assert (slow.rank, slow.stage, slow.slowness) == (0, 0, Slowness.COMPUTE)
    assert slow.compared.persistence == 1.0
    assert slow.compared.excess_s == pytest.approx(26.0, abs=0.5)
    others = [one.compared.z for one in judged.ranks if one.rank != 0]
    assert max(z for z in others if z is not None) < 1
    assert judged.links == ()
    assert not any(one.uneven or one.uneven_input for one in judged.stages)
    assert judged.stages[3].over_others == pytest.approx(1.045, abs=0.005)


def test_labelled_trace_has_the_published_distance_without_stages(trace: RankTrace) -> None:
    """z about 64, the next 4.5: median of all forward and backward operations, one group of peers.

    This is the anchor, not what the product uses: the median falls between two kinds of operation,
    and the next ones are the last stage's, whose work is 5 % more.
    """
    compute = np.isin(trace.name, [n for n, name in enumerate(trace.names) if "-compute" in name])
    medians = [np.median(trace.duration_s[compute & (trace.rank == r)]) for r in trace.ranks]
    off = np.array(medians) - np.median(medians)
    distances = np.sort(off / (MAD_TO_SIGMA * np.median(np.abs(off))))
    assert distances[-1] == pytest.approx(64, abs=1)
    assert distances[-2] == pytest.approx(4.5, abs=0.3)


def test_labelled_trace_says_for_whom_all_waited(judged: JobJudgement) -> None:
    waits = judged.waits
    assert waits.calls > 30_000
    assert waits.impossible == 0
    caused = waits.followed.sum(axis=0) - np.diag(waits.followed)
    assert int(np.argmax(caused)) == 0
    # Directly the ranks of stage 1 wait for rank 16, which itself waits for rank 0.
    assert waits.direct[5, 4] > 1_000
    assert waits.followed[5, 4] < 10
    assert waits.followed[5, 0] > 1_000
    assert np.all(waits.followed[0] < 20)


def test_labelled_trace_on_the_command_line(path: Path, tmp_path: Path) -> None:
    picture = tmp_path / "job.png"
    ran = CliRunner().invoke(app, [str(path), "--plot", str(picture), "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["slow_ranks"] == [0]
    assert told["ranks"][0]["cause"] == "compute"
    assert told["waited_ms_per_step"][0] == {
        "rank": 16, "for": 0, "ms": pytest.approx(48_140, rel=0.01),
    }  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")
