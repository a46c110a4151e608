"""Comparison with peers: no innocent rank accused, true stragglers found, small groups honest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diagnosis.stragglers.judge import Slowness, judge
from diagnosis.stragglers.peers import Comparison, PeerRules, PeerVerdict, compare
from tests.diagnosis.stragglers.jobs import Made, job, made

SEEDS = st.integers(0, 2**32 - 1)


def slow_ranks(one: Made) -> set[int]:
    found = compare(one.times, one.stages, PeerRules())
    return {rank for rank, row in enumerate(found) if row.verdict is PeerVerdict.SLOW}


@given(
    SEEDS,
    st.lists(st.floats(0.05, 5.0), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(1, 120),
    st.floats(0.0, 0.2),
)
def test_peers_accuse_nobody_where_only_stages_differ(
    seed: int, work: list[float], per_stage: int, steps: int, noise: float
) -> None:
    innocent = made(seed, dict(enumerate(work)), per_stage, steps, noise)
    assert slow_ranks(innocent) == set()


def test_peers_without_stages_would_accuse_the_heaviest_stage() -> None:
    """What the comparison within a stage is for: the same job, its stages not told apart."""
    job_ = made(7, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.6}, per_stage=4)
    assert slow_ranks(job_) == set()
    assert slow_ranks(Made(job_.times, np.zeros_like(job_.stages))) == {12, 13, 14, 15}


@given(SEEDS, st.integers(2, 8), st.floats(1.4, 4.0), st.floats(0.0, 0.05), st.data())
def test_peers_find_the_slow_rank_and_only_it(
    seed: int, per_stage: int, factor: float, noise: float, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, 3 * per_stage - 1))
    struck = made(seed, {0: 1.0, 1: 0.4, 2: 1.8}, per_stage, noise=noise, slow={rank: factor})
    assert slow_ranks(struck) == {rank}


@pytest.mark.parametrize(
    ("factor", "least", "most"), [(1.05, 0, 0), (1.15, 20, 39), (1.25, 40, 40), (1.34, 40, 40)]
)
def test_peers_power_grows_with_the_slowdown(factor: float, least: int, most: int) -> None:
    """1.34 is the mean delay of published fail-slow cases; 5 % is below the margin."""
    runs = [made(seed, {0: 1.0}, 8, noise=0.05, slow={3: factor}) for seed in range(40)]
    found = [slow_ranks(one) for one in runs]
    assert least <= found.count({3}) <= most
    assert all(one <= {3} for one in found)


@given(SEEDS, st.integers(4, 8), st.floats(0.3, 0.6))
def test_peers_take_uneven_sequences_for_no_slow_worker(
    seed: int, per_stage: int, noise: float
) -> None:
    uneven = made(seed, {0: 1.0, 1: 1.0}, per_stage, steps=60, noise=noise)
    judged = judge(job(uneven))
    assert judged.slow == ()
    assert [one.stage for one in judged.stages if one.uneven_input] == [0, 1]
    assert not any(one.uneven for one in judged.stages)


def test_stages_name_the_one_with_more_work() -> None:
    judged = judge(job(made(7, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.63}, per_stage=4)))
    assert [one.stage for one in judged.stages if one.uneven] == [3]
    assert judged.stages[3].over_others == pytest.approx(1.63, abs=0.05)
    assert judged.slow == ()


def test_stages_of_two_compare_with_each_other_and_one_with_none() -> None:
    two = judge(job(made(7, {0: 2.0, 1: 1.0}, per_stage=2)))
    assert [one.stage for one in two.stages if one.uneven] == [0]
    (alone,) = judge(job(made(7, {0: 2.0}, per_stage=4))).stages
    assert (alone.over_others, alone.uneven) == (None, False)


@example(784_776, 1, 7, 0.25)  # seven steps that happen to agree
@given(SEEDS, st.integers(1, 8), st.integers(1, 120), st.floats(0.0, 0.3))
def test_stages_of_equal_work_are_even(seed: int, per_stage: int, steps: int, noise: float) -> None:
    equal = made(seed, {0: 1.0, 1: 1.0, 2: 1.0}, per_stage, steps, noise, machines=0.005)
    assert not any(one.uneven for one in judge(job(equal)).stages)


def test_stages_are_not_judged_by_their_slow_rank() -> None:
    struck = made(7, {0: 1.0, 1: 1.0}, per_stage=2, slow={0: 4.0})
    judged = judge(job(struck))
    assert [one.rank for one in judged.slow] == [0]
    assert not any(one.uneven for one in judged.stages)


def test_peers_of_two_need_a_margin_and_have_no_z() -> None:
    for factor, verdict in ((1.15, PeerVerdict.NORMAL), (1.3, PeerVerdict.SLOW)):
        pair = made(1, {0: 1.0}, 2, slow={1: factor})
        first, second = compare(pair.times, pair.stages, PeerRules())
        assert (first.verdict, second.verdict) == (PeerVerdict.NORMAL, verdict)
        assert second.test is Comparison.RATIO
        assert second.z is None


def test_peers_of_three_with_one_fast_accuse_nobody() -> None:
    assert slow_ranks(made(2, {0: 1.0}, 3, slow={0: 0.5})) == set()
    assert slow_ranks(made(2, {0: 1.0}, 3, slow={0: 1.5})) == {0}


def test_peers_of_which_half_are_slow_accuse_nobody() -> None:
    assert slow_ranks(made(3, {0: 1.0}, 4, slow={0: 2.0, 1: 2.0})) == set()


def test_peers_say_what_cannot_be_said() -> None:
    alone = made(4, {0: 1.0, 1: 3.0}, 1)
    rows = compare(alone.times, alone.stages, PeerRules())
    assert {row.verdict for row in rows} == {PeerVerdict.NO_PEERS}
    short = made(4, {0: 1.0}, 4, steps=4, slow={0: 3.0})
    rows = compare(short.times, short.stages, PeerRules())
    assert {row.verdict for row in rows} == {PeerVerdict.TOO_FEW_STEPS}


def test_peers_pass_over_a_burst_and_find_what_begins_late() -> None:
    calm = made(5, {0: 1.0}, 4, steps=200)
    burst = calm.times.copy()
    burst[2, 10:30] *= 3
    assert judge(job(Made(burst, calm.stages))).slow == ()
    late = calm.times.copy()
    late[2, 130:] *= 2
    (found,) = judge(job(Made(late, calm.stages))).slow
    assert (found.rank, found.stretch) == (2, (130, 199))


@pytest.mark.parametrize(("begin", "end"), [(11, 60), (0, 49), (0, 60), (24, 51)])
def test_peers_tell_the_first_and_the_last_slow_step(begin: int, end: int) -> None:
    """Windows of 30 steps accuse; the told steps are those that are slow, not the windows'."""
    struck = made(12, {0: 1.0}, 4, steps=60)
    struck.times[2, begin:end] *= 1.4
    (found,) = judge(job(struck)).slow
    assert found.stretch == (begin, end - 1)
    assert (found.slow_steps, found.steps) == (end - begin, 60)
    assert found.window in {(0, 29), (30, 59)}


def test_peers_take_no_lone_slow_step_for_the_beginning() -> None:
    struck = made(12, {0: 1.0}, 4, steps=120)
    struck.times[2, [3, 15]] *= 2
    struck.times[2, 50:] *= 1.5
    (found,) = judge(job(struck)).slow
    assert found.stretch == (50, 119)
    assert found.slow_steps == 72


def test_peers_show_the_excess_of_too_few_steps_and_accuse_nobody() -> None:
    few = made(13, {0: 1.0}, 4, steps=4, slow={3: 1.3})
    row = judge(job(few)).ranks[3]
    assert row.verdict is PeerVerdict.TOO_FEW_STEPS
    assert row.compared.excess == pytest.approx(0.3, abs=0.1)


def test_peers_of_two_are_drawn_as_they_are_judged() -> None:
    """The excess of the picture is that of the table: beside the other rank, not the middle."""
    judged = judge(job(made(1, {0: 1.0}, 2, slow={1: 1.5})))
    drawn = np.median(judged.excess(), axis=1)
    assert drawn.tolist() == pytest.approx([one.compared.excess for one in judged.ranks])
    alone = judge(job(made(1, {0: 1.0}, 1)))
    assert np.isnan(alone.excess()).all()


def test_peers_ask_for_persistence() -> None:
    """Slow in six of ten steps: the median is far off, and yet it comes and goes."""
    calm = made(9, {0: 1.0}, 4)
    for share, slow in ((6, set()), (8, {2})):
        times = calm.times.copy()
        times[2, np.arange(40) % 10 < share] *= 1.5
        assert slow_ranks(Made(times, calm.stages)) == slow


def test_peers_bear_ranks_and_steps_that_are_missing() -> None:
    struck = made(6, {0: 1.0}, 6, slow={4: 1.8})
    struck.times[0, :] = np.nan
    struck.times[3, ::3] = np.nan
    struck.times[:, 7] = np.nan
    rows = compare(struck.times, struck.stages, PeerRules())
    assert [row.verdict is PeerVerdict.SLOW for row in rows] == [False] * 4 + [True, False]
    assert rows[0].verdict is PeerVerdict.TOO_FEW_STEPS


def test_slowness_is_the_kind_of_work_that_is_in_excess() -> None:
    calm = made(8, {0: 1.0}, 4)
    loading = 0.1 * calm.times
    loading[1] += 0.6
    (found,) = judge(job(calm, data_loading=loading)).slow
    assert (found.rank, found.slowness) == (1, Slowness.DATA_LOADING)
    busy = calm.times.copy()
    busy[1] *= 1.6
    (found,) = judge(job(Made(busy, calm.stages), data_loading=0.1 * calm.times)).slow
    assert (found.rank, found.slowness) == (1, Slowness.COMPUTE)
