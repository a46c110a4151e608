"""Round trips of a watched cgroup's connections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collectors.records.activity import RhythmKind, RhythmMarks
from diagnosis.frames.framer import RoundTrips

BEYOND = (0,) * len(RhythmKind)


def marks(cgroup: str, rows: Sequence[tuple[int, int, int]]) -> RhythmMarks:
    """Sends of one process: (socket, round trip, bytes)."""
    ones = np.ones(len(rows), np.int64)
    kinds = np.full(len(rows), RhythmKind.SEND, np.uint8)
    socket, trips, carried = np.array(rows, np.int64).T
    return RhythmMarks(
        7, 1, cgroup, "loop", ones.cumsum(), kinds, ones, carried, socket, trips, BEYOND
    )


def test_round_trips_give_the_median_of_the_connection_that_carried_most() -> None:
    trips = RoundTrips()
    bulk = [(5, 900, 131_072), (5, 700, 131_072), (5, 800, 131_072)]
    trips.add(marks("/train", [*bulk, *[(9, 40, 64)] * 8]))
    assert trips.take()["/train"]["round_trip_us"] == 800.0


def test_round_trips_give_the_least_where_it_is_longest() -> None:
    trips = RoundTrips()
    far = [(9, 8_000, 10), (9, 7_000, 10), (9, 9_000, 10)]
    trips.add(marks("/train", [*[(5, 40, 1_000_000)] * 3, *far]))
    assert trips.take()["/train"]["round_trip_least_us"] == 7_000.0


def test_round_trips_pass_over_what_is_not_tcp_and_what_was_seen_twice() -> None:
    trips = RoundTrips()
    trips.add(marks("/a", [(5, 0, 10)] * 5))
    trips.add(marks("/b", [(5, 100, 10)] * 2))
    trips.add(marks("/c", [(5, 100, 10)] * 3))
    assert list(trips.take()) == ["/c"]


@pytest.mark.parametrize("parts", [1, 3])
def test_round_trips_join_processes_and_begin_anew_each_second(parts: int) -> None:
    trips = RoundTrips()
    rows = [(5, 300, 10), (5, 100, 10), (5, 200, 10)]
    for number in range(parts):
        trips.add(marks("/train", rows[number::parts]))
    assert trips.take()["/train"] == {"round_trip_us": 200.0, "round_trip_least_us": 100.0}
    assert trips.take() == {}
