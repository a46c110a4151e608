"""kill -9 of workers and of their coordinator, as processes on a real log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psutil
import pytest

from aggregator.transcript import read_transcript
from aggregator.transcript_check import verify_transcripts
from tests.process_kit import wait_for
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    build_world,
    honest_reports,
    open_epochs,
    true_sum,
)
from tests.worker_processes_kit import WorkerProcessFleet

pytestmark = pytest.mark.slow

WORKER_OF_HELPER = "a worker of the Helper"
STEPS = [
    "worker after claim",
    "worker before word",
    "worker after word",
    "worker before commit",
    WORKER_OF_HELPER,
    "leader before StoreFrozen",
    "leader before StoreRelease",
    "leader between store and transcript",
]


@pytest.mark.timeout(300)
def test_killed_workers_and_coordinators_lose_and_double_nothing(tmp_path: Path) -> None:
    """One window per step, the kill armed before its reports, each of which comes twice."""
    fleet = WorkerProcessFleet(build_world(9), tmp_path)
    try:
        for number, step in enumerate(STEPS):
            play_window(fleet, number, step)
        wait_for(lambda: fleet.killed() and passes(fleet) and countersigned(fleet, len(STEPS)))
        assert fleet.stop() == [0] * 4
    finally:
        fleet.stop()
    check(fleet, len(STEPS))


def play_window(fleet: WorkerProcessFleet, number: int, step: str) -> None:
    world, window = fleet.world, T0 + number * WINDOW_S
    epochs = open_epochs(world) if number == 0 else []
    fleet.clock.set(window + 1)
    if step == WORKER_OF_HELPER:
        kill_worker_of_helper(fleet)
    else:
        fleet.kill_at(step)
    if "claim" in step:  # who comes in its place claims
        fleet.processes["worker-0"].kill()
    reports = [report.encode() for report in honest_reports(world, window=window)]
    fleet.publish(epochs, [*reports, *reports])
    fleet.clock.set(window + WINDOW_S + 1)
    wait_for(lambda: fleet.killed() and passes(fleet) and released(fleet, number + 1))


def kill_worker_of_helper(fleet: WorkerProcessFleet) -> None:
    (nursery,) = psutil.Process(fleet.processes["helper"].pid).children()
    nursery.children()[0].kill()


def passes(fleet: WorkerProcessFleet) -> bool:
    fleet.clock.set(fleet.clock() + 0.02)
    return True


def released(fleet: WorkerProcessFleet, wanted: int) -> bool:
    return len({line["window"] for line in fleet.lines("store.jsonl")}) >= wanted  # type: ignore[index]


def countersigned(fleet: WorkerProcessFleet, wanted: int) -> bool:
    try:
        both = [read_transcript(fleet.folder / f"{name}.sqlite") for name in ("leader", "helper")]
    except sqlite3.OperationalError:
        return False
    verdict = verify_transcripts(both[0], both[1], fleet.world.parties)
    return verdict.releases == wanted and verdict.unsigned == 0


def check(fleet: WorkerProcessFleet, windows: int) -> None:
    world = fleet.world
    vectors: dict[int, set[str]] = {}
    for line in fleet.lines("store.jsonl"):
        assert isinstance(line, dict)
        vectors.setdefault(line["window"], set()).add(str(line["vector"]))
    assert len(vectors) == windows
    for window, seen in vectors.items():
        assert seen == {str(true_sum(world, world.hosts, window).tolist())}
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert all(len(seen) == 1 for seen in shares.values())
    both = [read_transcript(fleet.folder / f"{name}.sqlite") for name in ("leader", "helper")]
    assert verify_transcripts(both[0], both[1], world.parties).problems == []
