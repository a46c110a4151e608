"""Real gloo jobs on CPU, each rank in its own network namespace and cgroup, watched from outside.

One process of the agent's own sources keeps the ranks apart by cgroup. The jobs are told nothing of
it: marks come from the library's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_agent.stragglers.busy_seconds import Spent
from edge_agent.stragglers.judge import Judgement
from edge_agent.stragglers.watch import JobWatch, Watched, find_ranks
from tests.stragglers.gloo_kit import GlooJob, Launcher, gloo_job, torch_missing

MISSING = torch_missing()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

WATCH_S = 5.5
SETTLE_S = 0.6


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    one = Launcher(tmp_path_factory.mktemp("gloo") / "errors")
    yield one
    one.close()


def watched(job: GlooJob, watch: JobWatch) -> Watched:
    """Let what was steered take hold, then watch."""
    watch.watch(SETTLE_S)
    since_ns = watch.now_ns()
    watch.watch(WATCH_S)
    assert watch.live.absent == []
    assert watch.live.failing == {}
    return watch.found(since_ns)


def slow(judged: Judgement | None) -> set[int]:
    assert judged is not None
    return {one.rank for one in judged.slow}


def open_watch(job: GlooJob) -> JobWatch:
    """Find the ranks as the command does: by the names of their cgroups."""
    names = {group.name: rank for rank, group in enumerate(job.groups)}
    ranks = [one for one in find_ranks("/pointillist-*") if one.cgroup in names]
    watch = JobWatch(sorted(ranks, key=lambda one: names[one.cgroup]))
    assert watch.probes
    return watch


def test_four_capped_gloo_ranks_show_the_slow_one_and_only_it(
    launcher: Launcher, tmp_path: Path
) -> None:
    with gloo_job(launcher, tmp_path, ranks=4, cores=0.4) as job, open_watch(job) as watch:
        calm = watched(job, watch)
        assert slow(calm.by_calls) == set(), "a job of equal ranks accuses nobody"
        assert slow(calm.by_busy) == set()
        job.steer(work={"2": 2.0})
        struck = watched(job, watch)
    assert slow(struck.by_calls) == {2}
    assert slow(struck.by_busy) == {2}, "seen from CPU accounting alone, without any mark"
    assert struck.reasons == {2: Spent.COMPUTE}
    assert struck.by_calls is not None
    direct = struck.by_calls.waits.direct
    assert struck.by_calls.waits.impossible == 0
    others = [0, 1, 3]
    assert np.all(direct[others, 2] > 10 * direct[2].sum()), "the others waited for it, not it"
    assert np.all(direct[others, 2] > 0.8 * direct[others].sum(axis=1))


def test_two_gloo_ranks_show_a_small_quota_as_what_makes_one_slow(
    launcher: Launcher, tmp_path: Path
) -> None:
    with gloo_job(launcher, tmp_path, ranks=2, cores=None) as job, open_watch(job) as watch:
        calm = watched(job, watch)
        assert slow(calm.by_calls) == set()
        assert slow(calm.by_busy) == set()
        job.groups[1].set("cpu.cfs_quota_us", 25_000)
        struck = watched(job, watch)
        job.groups[1].set("cpu.cfs_quota_us", -1)
    assert slow(struck.by_calls) == {1}
    assert slow(struck.by_busy) == {1}
    assert struck.reasons == {1: Spent.THROTTLED}
    assert struck.by_calls is not None
    assert struck.by_calls.waits.direct[0, 1] > 10 * struck.by_calls.waits.direct[1, 0]
