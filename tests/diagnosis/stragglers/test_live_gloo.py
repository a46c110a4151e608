"""Real gloo jobs on CPU, each rank in its own cgroup, watched from outside.

One process of the agent's own sources keeps the ranks apart by cgroup. The jobs are told nothing of
it: marks come from the library's own functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from diagnosis.stragglers.job_watch import JobWatch, Watched, find_ranks
from diagnosis.stragglers.judge import JobJudgement
from diagnosis.stragglers.marked_calls import TimeSpent
from pointillist.cli.stragglers import app
from tests.diagnosis.stragglers.gloo_kit import GlooJob, Launcher, gloo_job, torch_missing

MISSING = torch_missing()
pytestmark = [
    pytest.mark.root,
    pytest.mark.live,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

WATCH_S = 7.0
"""A dozen steps of four capped ranks on a machine that is busy besides."""
QUICK_S = 3.0
"""As many of two ranks that nothing holds back."""
SHORTEST_S = 6.0
"""What the command takes."""
MOST_WATCHES = 6
"""Seven busy seconds may scatter too far to accuse anybody; the spread falls with their number."""
SETTLE_S = 0.6


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    one = Launcher(tmp_path_factory.mktemp("gloo") / "errors")
    yield one
    one.close()


def watched(watch: JobWatch, most: int = 1, seconds: float = WATCH_S) -> Watched:
    """Let what was steered take hold, then watch; on, with all of it, until both ways accuse.

    most      times that are watched
    seconds   each time
    """
    watch.watch(SETTLE_S)
    since_ns = watch.now_ns()
    for _ in range(most):
        watch.watch(seconds)
        found = watch.found(since_ns)
        if slow(found.by_busy) and slow(found.by_calls):
            break
    assert watch.live.absent == []
    assert watch.live.failing == {}
    return found


def slow(judged: JobJudgement | None) -> set[int]:
    assert judged is not None
    return {one.rank for one in judged.slow}


def told_live(job: GlooJob, seconds: float) -> dict[str, Any]:
    """Give what the command says of a running job."""
    ran = CliRunner().invoke(app, ["--live", job.pattern, "--seconds", str(seconds), "--json"])
    assert ran.exit_code == 0, ran.output
    return dict(json.loads(ran.stdout))


def open_watch(job: GlooJob) -> JobWatch:
    """Find the ranks as the command does: by the names of their cgroups."""
    watch = JobWatch(find_ranks(job.pattern))
    assert watch.probes
    return watch


def test_four_capped_gloo_ranks_show_the_slow_one_and_only_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    with gloo_job(launcher, tmp_path, ranks=4, cores=0.4) as job, open_watch(job) as watch:
        calm = watched(watch)
        assert slow(calm.by_calls) == set(), "a job of equal ranks accuses nobody"
        assert slow(calm.by_busy) == set()
        job.steer(work={"2": 3.0})
        struck = watched(watch, MOST_WATCHES)
    assert slow(struck.by_calls) == {2}
    assert slow(struck.by_busy) == {2}, "seen from CPU accounting alone, without any mark"
    assert struck.reasons == {2: TimeSpent.COMPUTE}
    assert struck.by_calls is not None
    direct = struck.by_calls.waits.direct
    assert struck.by_calls.waits.impossible == 0
    others = [0, 1, 3]
    assert np.all(direct[others, 2] > 10 * direct[2].sum()), "the others waited for it, not it"
    assert np.all(direct[others, 2] > 0.8 * direct[others].sum(axis=1))


def test_two_gloo_ranks_show_a_small_quota_as_what_makes_one_slow(
    launcher: Launcher, tmp_path: Path
) -> None:
    with gloo_job(launcher, tmp_path, ranks=2, cores=None) as job:
        with open_watch(job) as watch:
            calm = watched(watch, seconds=QUICK_S)
        assert slow(calm.by_calls) == set()
        assert slow(calm.by_busy) == set()
        job.groups[1].cap(0.25)
        for seconds in (SHORTEST_S, 2 * SHORTEST_S, 4 * SHORTEST_S):
            told = told_live(job, seconds)
            if told["slow_ranks"]:
                break
        job.groups[1].cap(None)
    assert told["slow_ranks"] == [1]
    assert told["ranks"][1]["cause"] == TimeSpent.THROTTLED
    assert told["ranks"][1]["name"] == job.groups[1].name
    longest = told["waited_ms_per_step"][0]
    assert (longest["rank"], longest["for"]) == (0, 1)
