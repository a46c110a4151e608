"""kill -9 of real Leader and Helper processes at every step of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from tests.fault_cases import STEPS
from tests.ledger_hosts import LedgerHosts
from tests.process_kit import ProcessFleet
from tests.protocol_kit import SERIES, T0, WINDOW_S
from tests.wait_kit import until
from transport.embedded.embedded import EmbeddedLog
from wire.envelope import unwrap
from wire.topics import RELEASES, release_key

pytestmark = pytest.mark.release

LEADER_KILLED = [f"leader {step}" for step in STEPS["leader"]]
HELPER_KILLED = [f"helper {step}" for step in STEPS["helper"]]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[LedgerHosts]:
    made = LedgerHosts(tmp_path / "hosts")
    yield made
    made.close()


@pytest.fixture
def fleet(hosts: LedgerHosts, tmp_path: Path) -> Iterator[ProcessFleet]:
    made = ProcessFleet(hosts.world, tmp_path)
    made.start("helper")
    made.start("leader")
    yield made
    made.stop()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(LEADER_KILLED, marks=pytest.mark.fault_case("leader-killed"), id="leader"),
        pytest.param(HELPER_KILLED, marks=pytest.mark.fault_case("helper-killed"), id="helper"),
    ],
)
def test_killed_aggregators_count_no_window_twice(
    fleet: ProcessFleet, hosts: LedgerHosts, steps: list[str]
) -> None:
    """One window per step, the kill armed before it; every window is released, once."""
    for number, step in enumerate(steps):
        play_window(fleet, hosts, number, step)
    until_s = T0 + (len(steps) + 2) * WINDOW_S
    # The last to fall takes its name from the file first: it may still have been alive when asked.
    until(lambda: fleet.killed() and passes(fleet, until_s) and countersigned(fleet, len(steps)))
    until(lambda: len(dict.fromkeys(on_the_log(fleet))) == len(steps))
    assert fleet.stop() == [0, 0]
    check(fleet, hosts, len(steps))


def play_window(fleet: ProcessFleet, hosts: LedgerHosts, number: int, step: str) -> None:
    """One window in which one party falls; hosts open new epochs where that step needs some."""
    window = T0 + number * WINDOW_S
    if number and "Epochs" in step:
        hosts.restart(window)
    fleet.clock.set(window + 1)
    fleet.kill_at(step)
    fleet.publish(*hosts.report(window))
    if "KeepEpochs" in step:
        until(fleet.killed)
    until(lambda: read_all(fleet, len(hosts.sealed)))
    fleet.clock.set(window + WINDOW_S + 1)
    until_s = window + 3 * WINDOW_S
    until(lambda: passes(fleet, until_s) and fleet.killed() and released(fleet, number + 1))


def read_all(fleet: ProcessFleet, reports: int) -> bool:
    """Whether the Leader has read every report; a party that fell meanwhile is started again."""
    fleet.killed()
    return fleet.reports_read() >= reports


def passes(fleet: ProcessFleet, until_s: float) -> bool:
    """Time goes on for both parties: a call that failed is tried again by their clock.

    until_s     when the next window would be given up for want of reports; a party that fell must
                be back long before, and on a busy machine that takes seconds
    """
    fleet.clock.set(min(fleet.clock() + 0.06, until_s))
    return True


def released(fleet: ProcessFleet, wanted: int) -> bool:
    return len({line["window"] for line in fleet.lines("store.jsonl")}) >= wanted  # type: ignore[index]


def countersigned(fleet: ProcessFleet, wanted: int) -> bool:
    both = [read_transcript(fleet.folder / name) for name in ("leader.sqlite", "helper.sqlite")]
    verdict = verify_transcripts(both[0], both[1], fleet.world.parties)
    return verdict.releases == wanted and verdict.unsigned == 0


def on_the_log(fleet: ProcessFleet) -> list[bytes]:
    """The releases that a reader of the log is given; one may come twice."""
    with EmbeddedLog(fleet.folder / "log") as log:
        consumer = log.consumer(f"reader-{os.urandom(4).hex()}", [RELEASES])
        records = consumer.poll(1000, 0.1)
        consumer.close()
    assert {record.key for record in records} <= {release_key(SERIES, 0)}
    return [unwrap(record.value, len(record.value))[1] for record in records]


def check(fleet: ProcessFleet, hosts: LedgerHosts, windows: int) -> None:
    verdict = hosts.judge(fleet.folder)
    assert verdict.problems == []
    assert (verdict.windows, verdict.released) == (windows, len(hosts.sealed))
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert len(shares) == windows
    assert all(len(seen) == 1 for seen in shares.values())
    seen_on_log = [*dict.fromkeys(on_the_log(fleet))]
    links = read_transcript(fleet.folder / "leader.sqlite").links
    assert seen_on_log == [link.release.encode() for link in links]
