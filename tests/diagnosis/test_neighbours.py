"""What busy cgroups usually use, and who of them grew."""

from __future__ import annotations

import numpy as np

from diagnosis.detect.baseline import CgroupNeighbours, Readings
from diagnosis.frames.frame import HostSample

S = 1_000_000_000
NO_BINS = np.zeros((0, 0), np.float32)


def readings(second: int, **cpu: float) -> Readings:
    cgroups = {f"/{name}": {"cpu_ms_per_s": value} for name, value in cpu.items()}
    return Readings.of(HostSample(second * S, S, {}, NO_BINS, {}, cgroups, {}))


def grown(known: CgroupNeighbours, second: int, **cpu: float) -> str:
    return known.grown(readings(second, **cpu), "/mine", "cpu_ms_per_s")


def test_neighbour_that_grew_is_named_and_a_busy_one_is_not() -> None:
    known = CgroupNeighbours(4, 60.0)
    for second in range(100):
        known.learn(readings(second, busy=900.0, quiet=10.0, mine=50.0))
    assert grown(known, 101, busy=900.0, quiet=300.0, mine=900.0) == "/quiet"
    assert grown(known, 101, busy=910.0, quiet=10.0) == ""
    assert grown(known, 101, busy=900.0, come=400.0) == "/come"


def test_usual_use_fades_in_by_a_thirtieth_whatever_comes_and_goes_beside_it() -> None:
    known = CgroupNeighbours(4, 60.0)
    known.learn(readings(0, a=100.0))
    known.learn(readings(1, b=7.0, a=400.0))
    known.learn(readings(2, b=7.0))
    known.learn(readings(3, a=100.0, b=7.0))
    usual = 100.0 + 300.0 / 30
    usual += (100.0 - usual) / 30
    # Named from 50 ms/s on, and where it is 0.3 of what all others grew by.
    assert grown(known, 4, a=usual + 50.01) == "/a"
    assert grown(known, 4, a=usual + 49.99) == ""


def test_neighbours_are_bounded_and_forgotten_when_idle_for_long() -> None:
    known = CgroupNeighbours(2, 1.0)
    known.learn(readings(0, a=100.0, b=100.0, c=100.0))
    assert grown(known, 1, a=100.0, b=100.0, c=100.0) == "/c"  # no room to know it
    for second in range(2, 14):
        known.learn(readings(second, b=100.0))
    known.learn(readings(14, b=100.0, c=100.0))
    assert grown(known, 15, b=100.0, c=100.0) == ""
    assert grown(known, 15, a=100.0) == "/a"
