"""The mapping of clocks: the stated error encloses the truth, whatever the wall clock did."""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.boot_clock import ClockMap, ClockPoint, read_point
from edge_agent.local.history_tables import pack, unpack
from tests.local_kit import S

MINUTE = 60 * S


@given(
    steps=st.lists(st.integers(-30_000_000, 30_000_000), min_size=1, max_size=8),
    place=st.floats(0.0, 1.0),
    when=st.floats(0.0, 1.0),
)
def test_clock_map_encloses_a_correction_at_any_moment(
    steps: list[int], place: float, when: float
) -> None:
    """The wall clock is stepped once between each two points, at a moment that nobody saw."""
    offsets = [1_000 * S]
    for step in steps:
        offsets.append(offsets[-1] + step)
    points = [ClockPoint(i * MINUTE, i * MINUTE + o, 500) for i, o in enumerate(offsets)]
    mapped = ClockMap(points)
    at = int(place * (len(points) - 1) * MINUTE)
    number = min(at // MINUTE, len(steps) - 1)
    corrected = at - number * MINUTE >= int(when * MINUTE)
    truth = at + (offsets[number + 1] if corrected else offsets[number])
    unix_ns, error_ns = mapped.unix_ns(at)
    assert abs(unix_ns - truth) <= error_ns


def test_clock_map_error_grows_outside_its_points() -> None:
    mapped = ClockMap([ClockPoint(0, 1_000 * S, 200)])
    assert mapped.unix_ns(0) == (1_000 * S, 200)
    assert mapped.unix_ns(10 * S) == (1_010 * S, 200 + 5_000_000)
    assert mapped.unix_ns(-10 * S)[1] == 200 + 5_000_000


def test_clock_map_of_no_point_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        ClockMap([])


def test_read_point_states_half_the_bracket_and_takes_the_closest() -> None:
    boot = iter([100, 160, 200, 210, 300, 390, 400, 490, 500, 590])
    unix = iter([1_000, 2_000, 3_000, 4_000, 5_000])
    point = read_point(lambda: next(boot), lambda: next(unix))
    assert point == ClockPoint(205, 2_000, 5)


def test_read_point_of_this_machine_is_close_and_moves_forward() -> None:
    points = [read_point() for _ in range(5)]
    for before, after in pairwise(points):
        assert after.boottime_ns > before.boottime_ns
        # Two readings of one clock must agree within what they state, and any slew meanwhile.
        assert abs(after.offset_ns - before.offset_ns) <= (
            before.error_ns + after.error_ns + S // 100
        )


@given(
    st.lists(
        st.lists(st.integers(-(1 << 62), 1 << 62), min_size=3, max_size=3), min_size=1, max_size=20
    )
)
def test_packing_gives_snapshots_back(rows: list[list[int]]) -> None:
    values = np.array(rows, dtype=np.int64)
    assert (unpack(pack(values), len(rows), 3) == values).all()


def test_packing_writes_each_column_in_the_bytes_that_it_needs() -> None:
    steps = [0, -1, 127, -128, 128, -(1 << 15), 1 << 15, 1 << 31, -(1 << 31)]
    values = np.cumsum([[7] * len(steps), steps, steps], axis=0)
    assert (unpack(pack(values), 3, len(steps)) == values).all()
    widths = zlib.decompress(pack(values)[1:])[: len(steps)]
    assert list(widths) == [0, 1, 1, 1, 2, 2, 4, 8, 4]
    falling = np.array([[5, 5], [4, 5], [4, 5]])  # its largest step is 0, its least is not
    assert (unpack(pack(falling), 3, 2) == falling).all()


def test_packs_of_earlier_versions_are_read() -> None:
    steps = np.array([[100, 1, -3], [1 << 40, 0, 5]], "<i8")
    found = unpack(zlib.compress(steps.tobytes()), 3, 2)
    assert found.tolist() == [[100, 1 << 40], [101, 1 << 40], [98, (1 << 40) + 5]]


@pytest.mark.parametrize(
    ("packed", "count", "cells"),
    [
        (b"junk", 1, 1),
        (b"\2junk", 1, 1),
        (b"\2" + zlib.compress(bytes([3]) + bytes(8 + 3)), 2, 1),  # no width of a number
        (b"\2" + zlib.compress(bytes([255]) + bytes(8)), 2, 1),
        (zlib.compress(bytes(9)), 1, 1),
        (pack(np.arange(100_000, dtype=np.int64)), 10, 1),  # more than it says
        (pack(np.arange(3, dtype=np.int64)), 4, 1),  # less than it says
        (pack(np.arange(3, dtype=np.int64)), 1 << 40, 1),
        (pack(np.arange(3, dtype=np.int64)), 3, 0),
    ],
)
def test_unpacking_bounds_what_a_damaged_file_can_ask(
    packed: bytes, count: int, cells: int
) -> None:
    with pytest.raises(ValueError, match="expected"):
        unpack(packed, count, cells)
