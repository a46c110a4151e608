"""Marks of processes from a ring and a map of rows, without a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import MARK_FIELDS
from collectors.ebpf import ebpf_tables as layout
from collectors.ebpf.host_ticks import RhythmMaps
from collectors.records.activity import RhythmMarks


class Ring:
    """Hands out what was put in."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, ...]] = []

    def read(self) -> NDArray[np.uint64]:
        taken, self.marks = self.marks, []
        return np.array(taken, np.uint64).reshape(-1, len(MARK_FIELDS))


class Rows:
    """The map of processes: pid to its start and what was only counted."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.deleted: list[int] = []

    def batches(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint64]]]:
        keys = np.array(list(self.rows), "<u4").view(np.uint8).reshape(-1, 4)
        values = np.zeros((len(self.rows), 1, layout.RHYTHM_FIELDS), np.uint64)
        for place, (start_ns, beyond) in enumerate(self.rows.values()):
            values[place, 0, 0] = start_ns
            values[place, 0, -layout.RHYTHM_KINDS :] = beyond
        yield keys, values

    def delete(self, key: bytes) -> None:
        pid = int.from_bytes(key, "little")
        self.deleted.append(pid)
        self.rows.pop(pid)


@pytest.fixture
def kernel() -> tuple[RhythmMaps, Ring, Rows]:
    ring, rows = Ring(), Rows()
    return RhythmMaps(ring, rows, -1, -1), ring, rows  # type: ignore[arg-type]


def mark(at_ns: int, pid: int, start_ns: int = 9, kind: int = 1, value: int = 5) -> tuple[int, ...]:
    return at_ns, value, (pid << 32) | (pid + 1), start_ns, 77, kind, 3


def drained(maps: RhythmMaps) -> list[RhythmMarks]:
    return list(maps.records(lambda cgroup: f"/{cgroup}"))


def test_marks_are_handed_out_by_process_in_order_of_time(
    kernel: tuple[RhythmMaps, Ring, Rows],
) -> None:
    maps, ring, _ = kernel
    # A process that took the number of one that ended is another.
    ring.marks = [mark(3, 8), mark(1, 7), mark(2, 8), mark(5, 7, start_ns=4), mark(4, 8, kind=2)]
    found = drained(maps)
    told = {(one.pid, one.start_ns): one.at_ns.tolist() for one in found}
    assert told == {(7, 4): [5], (7, 9): [1], (8, 9): [2, 3, 4]}
    eight = found[-1]
    assert (eight.kind.tolist(), eight.thread.tolist()) == ([1, 1, 2], [9, 9, 9])
    assert (eight.value.tolist(), eight.socket.tolist()) == ([5, 5, 5], [3, 3, 3])
    assert {one.cgroup for one in found} == {"/77"}
    assert drained(maps) == []


def test_marks_that_were_only_counted_are_told_once(
    kernel: tuple[RhythmMaps, Ring, Rows],
) -> None:
    maps, ring, rows = kernel
    told = []
    for beyond in ((2, 0, 0, 0), (2, 0, 0, 0), (2, 0, 7, 0)):
        rows.rows[8] = (9, beyond)
        ring.marks = [mark(1, 8)]
        told += [one.beyond for one in drained(maps)]
    assert told == [(2, 0, 0, 0), (0, 0, 0, 0), (0, 0, 7, 0)]
    rows.rows[8] = (10, (1, 0, 0, 0))  # another process of the number begins anew
    ring.marks = [mark(1, 8, start_ns=10)]
    assert [one.beyond for one in drained(maps)] == [(1, 0, 0, 0)]


def test_process_silent_for_a_minute_makes_room(kernel: tuple[RhythmMaps, Ring, Rows]) -> None:
    maps, ring, rows = kernel
    rows.rows = {7: (9, (0,) * 4), 8: (9, (0,) * 4)}
    for second in range(61):
        ring.marks = [mark(second, 8)]
        drained(maps)
    assert rows.deleted == [7]
