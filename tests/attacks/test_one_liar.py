"""One replaced agent, whose masked vector nobody can hold to a bound: it is named all the same."""

from __future__ import annotations

from itertools import count
from random import Random

from simulator.adversaries.cohort import START_S, WINDOW_S, Cohort, CohortPlan, honest_rows

LIAR = 3
WINDOWS, OUT = 26, 7
FAR_STEPS = 10**6
"""Beyond what all hosts together could send: the window is suppressed."""


def chance(cohort: Cohort) -> Random:
    """Draws by which the liar is left out early of windows enough: else the test takes minutes."""
    hosts = sorted(bytes(host.host_id) for host in cohort.hosts)
    liar = bytes(cohort.hosts[LIAR].host_id)
    for seed in count():
        draws = Random(seed)
        if sum(liar in draws.sample(hosts, 4) for _ in range(WINDOWS - 4)) >= OUT:
            return Random(seed)
    raise AssertionError


def liar_of(cohort: Cohort, moved_steps: int) -> tuple[set[bytes], int]:
    """Play windows in which a host adds to a word; who was named, and how many were released."""
    left_out = getattr(cohort.parties.leader, "left_out", None)
    if left_out is not None:
        left_out.share, left_out.draws = 0.1, chance(cohort)
    rows = honest_rows(cohort, cohort.plan.hosts, seed=7)
    start = next(iter(cohort.task.slices().values())).start
    released = 0
    for window in range(WINDOWS):
        window_s = START_S + window * WINDOW_S
        vectors = cohort.encode(rows) + cohort.noise(cohort.plan.hosts)
        vectors[LIAR, start] += moved_steps
        cohort.send(cohort.seal(vectors, window_s))
        released += cohort.settle(window_s).released is not None
    return set(getattr(left_out, "named", {})), released


def test_host_that_stops_every_window_is_named_and_left_out() -> None:
    with Cohort(CohortPlan(windows=WINDOWS)) as cohort:
        named, released = liar_of(cohort, FAR_STEPS)
        assert named == {bytes(cohort.hosts[LIAR].host_id)}
        assert released >= OUT
