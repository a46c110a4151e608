"""The log of what happened where: asked by window, in any order of what was added."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.fleet.hosts import HostLog, gather_bits, unpack
from simulator.fleet.jobs import overlap_share


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.fixture
def log() -> HostLog:
    made = HostLog()
    made.add(ints(1, 2), ints(10, 20), floats(0, 50), floats(60, 110), 120)
    made.add_events(ints(3), ints(30), floats(119.5))
    made.add_events(ints(4), ints(40), floats(100))  # a fault noted after a later incident
    made.add_events(ints(5, 6), ints(50, 60), floats(180, 170))
    return made


@pytest.mark.parametrize(
    ("start_s", "end_s", "hosts"),
    [
        (0, 60, {1, 2}),
        (60, 120, {2, 3, 4}),
        (110, 120, {3}),
        (99, 101, {2, 4}),
        (120, 180, {6}),
        (180, 240, {5}),
        (0, 240, {1, 2, 3, 4, 5, 6}),
        (240, 300, set()),
    ],
)
def test_host_log_finds_what_touches_a_window(
    log: HostLog, start_s: float, end_s: float, hosts: set[int]
) -> None:
    found, codes = log.between(start_s, end_s)
    assert set(found.tolist()) == hosts
    assert (codes == 10 * found).all()


def test_host_log_forgets_what_is_old(log: HostLog) -> None:
    log.forget_before(150)
    assert set(log.between(0, 240)[0].tolist()) == {5, 6}


def test_bits_are_gathered_and_unpacked_again() -> None:
    words = gather_bits(3, 4, ints(0, 0, 2, 2), ints(5, 255, 64, 64))
    assert np.flatnonzero(unpack(words, 256)).tolist() == [5, 255, 2 * 256 + 64]


def test_overlap_share_is_the_part_of_the_window() -> None:
    begins, ends = floats(0, 30, -10, 90, np.inf), floats(60, 90, 10, 95, 0)
    assert overlap_share(begins, ends, 0, 60).tolist() == [1.0, 0.5, 1 / 6, 0.0, 0.0]
