"""The Leader falls at every step of a batch and comes back: same bytes, one release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aggregator.helper.helper_runtime import HelperRunner
from aggregator.leader.leader_events import ReportsArrived
from aggregator.leader.window_closing import RESEND_S
from aggregator.protocol.interfaces import BatchReply, HelperUnavailable, ReleaseReply
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    open_epochs,
    true_sum,
)

STEPS = [
    *(
        f"{when} {name}"
        for name in (
            "KeepEpochs",
            "StoreFrozen",
            "CallHelper",
            "StoreRelease",
            "CallCountersign",
            "StoreCountersigned",
            "CommitOffsets",
        )
        for when in ("before", "after")
    ),
    "between store and transcript",
]


class Crash(BaseException):
    """The process is gone."""


class CrashAt:
    """Ends the process the first time that a step is reached."""

    def __init__(self, step: str) -> None:
        self.step, self.done = step, False

    def __call__(self, step: str) -> None:
        if step == self.step and not self.done:
            self.done = True
            raise Crash


class RecordingHelper:
    """A Helper that remembers every answer it gave."""

    def __init__(self, inner: HelperRunner) -> None:
        self._inner = inner
        self.shares: list[bytes] = []
        self.batches: set[bytes] = set()

    def submit_epochs(self, epochs: list[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        self.batches.add(signed_batch)
        reply = self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)
        if reply.share:
            self.shares.append(reply.share)
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)


@pytest.mark.parametrize("step", STEPS)
def test_leader_killed_at_a_step_counts_no_window_twice(step: str, tmp_path: Path) -> None:
    world = build_world(9)
    crash = CrashAt(step)
    fleet = Fleet(world, tmp_path)
    recorder = RecordingHelper(fleet.port)  # type: ignore[arg-type]
    fleet.port = recorder  # type: ignore[assignment]
    fleet.runner._checkpoint = crash
    epochs = open_epochs(world)
    steps: list[Callable[[], None]] = [
        lambda: fleet.send_epochs(epochs),
        lambda: fleet.send(honest_reports(world)),
        fleet.close_window,
        lambda: fleet.tick(T0 + WINDOW_S + 60),
        lambda: fleet.tick(T0 + WINDOW_S + 120),
    ]
    for act in steps:
        try:
            act()
        except Crash:
            fleet.restart_leader()
            fleet.send_epochs(epochs)
    fleet.tick(T0 + WINDOW_S + 180)
    fleet.tick(T0 + WINDOW_S + 240)
    assert crash.done
    (release,) = fleet.store.written
    assert np.array_equal(release.vector, true_sum(world, world.hosts))
    assert len(recorder.batches) == 1
    assert len(set(recorder.shares)) == 1
    ((_, entry),) = fleet.helper_state.chain(world.task.series, 0)
    assert [one.entry for one in fleet.state.releases()] == [entry]
    assert fleet.log.uncommitted() == []


class AbsentHelper:
    """A Helper that is down until somebody starts it."""

    def __init__(self, inner: HelperRunner) -> None:
        self._inner, self.up, self.batches = inner, False, set[bytes]()

    def submit_epochs(self, epochs: list[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        self.batches.add(signed_batch)
        if not self.up:
            raise HelperUnavailable("down")
        return self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)


def start(world: World, folder: Path) -> tuple[Fleet, AbsentHelper]:
    fleet = Fleet(world, folder)
    absent = AbsentHelper(fleet.port)  # type: ignore[arg-type]
    fleet.port = absent  # type: ignore[assignment]
    fleet.send_epochs(open_epochs(world))
    return fleet, absent


def test_helper_that_was_away_gets_the_same_bytes_until_retention(tmp_path: Path) -> None:
    world = build_world(9)
    fleet, absent = start(world, tmp_path)
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.tick(T0 + 3600)
    fleet.restart_leader()
    fleet.tick(T0 + 2 * 3600)
    assert fleet.store.written == []
    absent.up = True
    fleet.tick(T0 + 3 * 3600)
    assert len(absent.batches) == 1
    assert np.array_equal(fleet.store.written[0].vector, true_sum(world, world.hosts))


def test_window_is_suppressed_when_the_helper_stays_away(tmp_path: Path) -> None:
    world = build_world(9)
    fleet, absent = start(world, tmp_path)
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.tick(T0 + WINDOW_S + 6 * 3600 + 1)
    assert fleet.leader.suppressed["retention"] == 1
    absent.up = True
    fleet.tick(T0 + WINDOW_S + 7 * 3600)
    assert fleet.store.written == []
    assert fleet.log.uncommitted() == []


def test_leader_that_was_away_takes_late_reports_while_it_catches_up(tmp_path: Path) -> None:
    world = build_world(9)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    records = [fleet.append(report) for report in honest_reports(world, world.hosts[:8])]
    fleet.clock.now_s = T0 + 3600
    fleet.feed(ReportsArrived(records, T0 + 3600))
    fleet.tick(T0 + 3600 + RESEND_S - 1)
    assert fleet.store.written == []
    fleet.tick(T0 + 3600 + RESEND_S)
    assert fleet.store.written[0].n == 8


def test_windows_of_a_chain_leave_in_order(tmp_path: Path) -> None:
    world = build_world(9)
    fleet, absent = start(world, tmp_path)
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.send(honest_reports(world, window=T0 + WINDOW_S), T0 + 2 * WINDOW_S + 1)
    fleet.tick(T0 + 2 * WINDOW_S + 40)
    absent.up = True
    fleet.tick(T0 + 3 * WINDOW_S + 60)
    fleet.tick(T0 + 3 * WINDOW_S + 61)
    assert [one.window_start_s for one in fleet.store.written] == [T0, T0 + WINDOW_S]
    assert [w for w, _ in fleet.helper_state.chain(world.task.series, 0)] == [T0, T0 + WINDOW_S]
