"""Workers against who may write to the log, or keeps it: nobody stops the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol_kit import T0, WINDOW_S, World, build_world, honest_reports, open_epochs
from tests.workers.test_workers_release import fleet_of, give_epochs, send
from tests.workers_kit import PARTITIONS
from transport.port import partition_of

HOSTS = 14


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def test_offsets_that_are_no_records_hold_up_no_window(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    for report in honest_reports(world, window=T0):
        raw = report.encode()
        send(fleet, [raw], T0 + WINDOW_S + 1)
        fleet.group.mark(partition_of(raw[:16], PARTITIONS))
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)


def test_worker_that_others_stood_in_for_goes_on_behind_what_they_settled(
    world: World, tmp_path: Path
) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    first, second = fleet.workers
    windows = (T0, T0 + WINDOW_S, T0 + 2 * WINDOW_S)
    for number, window in enumerate(windows):
        at_s = window + WINDOW_S + 1
        if number == 1:  # the first hangs; the other reads all, settles and commits
            fleet.divide(dict.fromkeys(range(PARTITIONS), second))
        send(fleet, [r.encode() for r in honest_reports(world, window=window)], at_s)
        if number == 2:
            fleet.divide_evenly()
            fleet.workers[first]._transport.close()  # its place in the log is the group's
        for _ in range(2):
            for name in [second] * 6 if number == 1 else [first, second] * 6:
                fleet.turn(name)
            fleet.tick(window + WINDOW_S + 30)
    assert [(w.window_start_s, w.n) for w in fleet.store.written] == [
        (window, HOSTS) for window in windows
    ]
