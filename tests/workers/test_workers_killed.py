"""kill -9 of workers and of their coordinator, as processes on a real log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from tests.fault_cases import COORDINATOR_STEPS, WORKER_STEPS
from tests.ledger_hosts import LedgerHosts
from tests.process_kit import wait_for
from tests.protocol_kit import T0, WINDOW_S
from tests.worker_processes_kit import WorkerProcessFleet

pytestmark = pytest.mark.slow

STEPS = [
    *(f"worker {step}" for step in WORKER_STEPS),
    *(f"leader {step}" for step in COORDINATOR_STEPS),
]


@pytest.mark.timeout(300)
@pytest.mark.fault_case("worker-killed")
@pytest.mark.fault_case("coordinator-killed")
def test_killed_workers_and_coordinators_lose_and_double_nothing(tmp_path: Path) -> None:
    """One window per step, the kill armed before its reports, each of which comes twice."""
    hosts = LedgerHosts(tmp_path / "hosts")
    fleet = WorkerProcessFleet(hosts.world, tmp_path)
    try:
        for number, step in enumerate(STEPS):
            play_window(fleet, hosts, number, step)
        wait_for(lambda: fleet.killed() and passes(fleet) and countersigned(fleet, len(STEPS)))
        assert fleet.stop() == [0] * 4
    finally:
        fleet.stop()
        hosts.close()
    check(fleet, hosts, len(STEPS))


def play_window(fleet: WorkerProcessFleet, hosts: LedgerHosts, number: int, step: str) -> None:
    window = T0 + number * WINDOW_S
    fleet.clock.set(window + 1)
    fleet.kill_at(step)
    if "claim" in step:  # who comes in its place claims
        fleet.processes["worker-0"].kill()
    epochs, reports = hosts.report(window)
    fleet.publish(epochs, [*reports, *reports])
    fleet.clock.set(window + WINDOW_S + 1)
    wait_for(lambda: fleet.killed() and passes(fleet) and released(fleet, number + 1))
    fleet.recovered()


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


def check(fleet: WorkerProcessFleet, hosts: LedgerHosts, windows: int) -> None:
    verdict = hosts.judge(fleet.folder)
    assert verdict.problems == []
    assert (verdict.windows, verdict.released) == (windows, len(hosts.sealed))
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert all(len(seen) == 1 for seen in shares.values())
