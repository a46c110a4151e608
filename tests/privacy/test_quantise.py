"""Clipping and rounding: the bound holds for every reading, and rounding has no bias at all."""

import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.calibrate import sensitivity_sq_steps
from privacy.errors import ParameterError
from privacy.quantise import (
    choose_indicators,
    clip_rows,
    left_out_chance,
    round_steps,
    uniform_below,
    uniform_words,
)

READINGS = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=12)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int, int]:
    """Coordinate cap, L1 bound and step: both bounds multiples of the step."""
    q = draw(st.integers(1, 2**20))
    cap = draw(st.integers(1, 200))
    total = draw(st.integers(cap, 1000))
    return cap * q, total * q, q


@given(READINGS, bounds(), st.integers(0, 2**63))
def test_encoded_host_never_exceeds_its_bound(
    readings: list[int], bound: tuple[int, int, int], word: int
) -> None:
    cap, total, q = bound
    rows = np.array([readings], dtype=np.int64)
    steps = round_steps(clip_rows(rows, cap, total), q, np.array([word % q]))[0]
    assert steps.min() >= 0
    assert steps.max() <= cap // q
    assert steps.sum() <= total // q
    assert int((steps**2).sum()) <= sensitivity_sq_steps(cap, total, q)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=6), st.integers(1, 60))
def test_rounding_is_unbiased_exactly(readings: list[int], q: int) -> None:
    """Over all u the steps times q sum to q times the reading, coordinate by coordinate."""
    rows = np.tile(np.array(readings, dtype=np.int64), (q, 1))
    steps = round_steps(rows, q, np.arange(q))
    assert steps.sum(axis=0).tolist() == readings
    ceilings = -(-rows // q)
    assert (steps <= ceilings).all()
    assert (steps >= rows // q).all()


@given(READINGS, bounds())
def test_clipping_scales_down_by_exact_floors(
    readings: list[int], bound: tuple[int, int, int]
) -> None:
    cap, total, _ = bound
    got = clip_rows(np.array([readings], dtype=np.int64), cap, total)[0].tolist()
    capped = [min(max(value, 0), cap) for value in readings]
    scale = Fraction(min(total, sum(capped)), sum(capped) or 1)
    assert got == [int(value * scale) for value in capped]


def test_scaling_is_exact_where_products_pass_64_bits() -> None:
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 2**57, (40, 9))
    cap, total = 2**57 - 3, 2**58 + 12_345
    got = clip_rows(rows, cap, total)
    for row, scaled in zip(rows.tolist(), got.tolist(), strict=True):
        capped = [min(value, cap) for value in row]
        whole = sum(capped)
        if whole > total:
            capped = [value * total // whole for value in capped]
        assert scaled == capped


def test_clipping_leaves_its_argument_alone() -> None:
    rows = np.array([[500, -3, 20]])
    assert clip_rows(rows, 100, 100).tolist() == [[83, 0, 16]]
    assert rows.tolist() == [[500, -3, 20]]


def test_each_host_is_rounded_by_its_own_uniform() -> None:
    rows = np.full((10, 1), 5, dtype=np.int64)
    assert round_steps(rows, 10, np.arange(10)).ravel().tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("cap", "total", "width"), [(0, 5, 1), (6, 5, 1), (1, 2**61, 1), (2**60, 2**60, 4)]
)
def test_clipping_refuses_impossible_bounds(cap: int, total: int, width: int) -> None:
    with pytest.raises(ParameterError):
        clip_rows(np.zeros((1, width), dtype=np.int64), cap, total)


@pytest.mark.parametrize(("q", "u"), [(0, [0]), (5, [5]), (5, [-1]), (5, [0, 1])])
def test_rounding_refuses_a_uniform_out_of_range(q: int, u: list[int]) -> None:
    with pytest.raises(ParameterError):
        round_steps(np.zeros((1, 3), dtype=np.int64), q, np.array(u, dtype=np.int64))


@given(
    st.lists(st.lists(st.integers(-1, 3), min_size=7, max_size=7), min_size=1, max_size=8),
    st.integers(1, 8),
)
def test_indicators_keep_at_most_m_of_those_set(rows: list[list[int]], m: int) -> None:
    given_rows = np.array(rows, dtype=np.int64)
    chosen = choose_indicators(given_rows, m, uniform_words(len(rows), 8, os.urandom))
    count = (given_rows > 0).sum(axis=1)
    assert set(np.unique(chosen)) <= {0, 1}
    assert (chosen[:, :-1] <= (given_rows > 0)).all()
    # The section's sensitivity: m cells, whatever was set, "left out" among them.
    assert (chosen.sum(axis=1) == np.minimum(count, m)).all()
    assert not chosen[count <= m, -1].any()


@pytest.mark.parametrize("m", [1, 2, 3])
def test_indicators_leave_each_out_as_often_as_hosts_say_that_they_left_some(m: int) -> None:
    rows = np.tile(np.array([1, 0, 1, 1, 1], dtype=np.int64), (40_000, 1))
    words = uniform_words(40_000, 6, np.random.default_rng(3).bytes)
    kept = choose_indicators(rows, m, words).mean(axis=0)
    chance = float(left_out_chance(np.array([4]), m)[0])
    assert chance == pytest.approx((4 - m) / 3)
    assert kept[1] == 0
    # Five standard errors of a share are 0.0125 at most.
    assert np.abs(kept[[0, 2, 3, 4]] - (1 - chance)).max() < 0.0125
    assert kept[5] == pytest.approx(chance, abs=0.0125)


def test_indicators_survive_the_largest_words() -> None:
    words = np.full((1, 4), 2**64 - 1, dtype=np.uint64)
    assert choose_indicators(np.array([[1, 1, 1]]), 2, words).tolist() == [[1, 1, 0, 0]]
    assert choose_indicators(np.array([[0, 1, 1]]), 1, words).tolist() == [[0, 0, 0, 1]]
    with pytest.raises(ParameterError):
        choose_indicators(np.zeros((1, 3), dtype=np.int64), 0, words)


def test_uniform_below_rejects_the_uneven_rest() -> None:
    """Words of the incomplete last round of `bound` would favour small values."""
    bound = 3 * 2**59
    limit = 2**64 // bound * bound
    stream = [limit, 2**64 - 1, limit - 1, bound, 5]
    data = b"".join(word.to_bytes(8, "little") for word in stream)
    place = 0

    def served(count: int) -> bytes:
        nonlocal place
        place += count
        return data[place - count : place]

    assert uniform_below(bound, 3, served).tolist() == [bound - 1, 0, 5]


def test_uniform_below_covers_its_range() -> None:
    drawn = uniform_below(7, 7000, np.random.default_rng(1).bytes)
    counts = np.bincount(drawn, minlength=7)
    assert counts.size == 7
    assert np.abs(counts - 1000).max() < 150
    assert uniform_below(1, 3, os.urandom).tolist() == [0, 0, 0]
    assert uniform_below(5, 0, os.urandom).size == 0
    with pytest.raises(ParameterError):
        uniform_below(0, 1, os.urandom)
