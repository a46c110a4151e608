"""kill -9 of real Leader and Helper processes at every step of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.transcript import read_transcript
from aggregator.transcript_check import verify_transcripts
from tests.process_kit import ProcessFleet, wait_for
from tests.protocol_kit import (
    SERIES,
    T0,
    WINDOW_S,
    build_world,
    honest_reports,
    open_epochs,
    true_sum,
)
from transport.embedded import EmbeddedLog
from wire.envelope import unwrap
from wire.topics import RELEASES, release_key

pytestmark = pytest.mark.slow

STEPS = [
    "leader before KeepEpochs",
    "leader after KeepEpochs",
    "leader before StoreFrozen",
    "leader after StoreFrozen",
    "leader before CallHelper",
    "leader after CallHelper",
    "helper before RememberEpochs",
    "helper after RememberEpochs",
    "helper before CommitAnswer",
    "helper between commit and sum",
    "helper before StoreReply",
    "helper after StoreReply",
    "helper between commit and witness",
    "helper after CommitAnswer",
    "leader before StoreRelease",
    "leader between store and transcript",
    "leader after StoreRelease",
    "leader before CallCountersign",
    "leader after CallCountersign",
    "helper before StoreChainEntry",
    "helper after StoreChainEntry",
    "leader before StoreCountersigned",
    "leader after StoreCountersigned",
    "leader between log and published",
    "leader before CommitOffsets",
    "leader after CommitOffsets",
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessFleet]:
    made = ProcessFleet(build_world(9), tmp_path)
    made.start("helper")
    made.start("leader")
    yield made
    made.stop()


@pytest.mark.timeout(400)
def test_killed_aggregators_count_no_window_twice(fleet: ProcessFleet) -> None:
    """One window per step, the kill armed before it; every window is released, once."""
    for number, step in enumerate(STEPS):
        play_window(fleet, number, step)
    until_s = T0 + (len(STEPS) + 2) * WINDOW_S
    # The last to fall takes its name from the file first: it may still have been alive when asked.
    wait_for(lambda: fleet.killed() and passes(fleet, until_s) and countersigned(fleet, len(STEPS)))
    wait_for(lambda: len(dict.fromkeys(on_the_log(fleet))) == len(STEPS))
    assert fleet.stop() == [0, 0]
    check(fleet)


def play_window(fleet: ProcessFleet, number: int, step: str) -> None:
    """One window in which one party falls; hosts open new epochs where that step needs some."""
    world, window = fleet.world, T0 + number * WINDOW_S
    fresh = number == 0 or "Epochs" in step
    epochs = open_epochs(world, name=number) if fresh else []
    fleet.clock.set(window + 1)
    fleet.kill_at(step)
    fleet.publish(epochs, [one.encode() for one in honest_reports(world, window=window)])
    if "KeepEpochs" in step:
        wait_for(fleet.killed)
    wait_for(lambda: read_all(fleet, number + 1))
    fleet.clock.set(window + WINDOW_S + 1)
    until_s = window + 3 * WINDOW_S
    wait_for(lambda: passes(fleet, until_s) and fleet.killed() and released(fleet, number + 1))


def read_all(fleet: ProcessFleet, windows: int) -> bool:
    """Whether the Leader has read every report; a party that fell meanwhile is started again."""
    fleet.killed()
    return fleet.reports_read() >= len(fleet.world.hosts) * windows


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


def check(fleet: ProcessFleet) -> None:
    world = fleet.world
    vectors: dict[int, set[str]] = {}
    for line in fleet.lines("store.jsonl"):
        assert isinstance(line, dict)
        vectors.setdefault(line["window"], set()).add(str(line["vector"]))
    for window, seen in vectors.items():
        assert seen == {str(true_sum(world, world.hosts, window).tolist())}
    shares: dict[int, set[str]] = {}
    for line in fleet.lines("shares.jsonl"):
        assert isinstance(line, list)
        shares.setdefault(line[0], set()).add(line[1])
    assert len(shares) == len(STEPS)
    assert all(len(seen) == 1 for seen in shares.values())
    both = [read_transcript(fleet.folder / name) for name in ("leader.sqlite", "helper.sqlite")]
    assert verify_transcripts(both[0], both[1], world.parties).problems == []
    seen_on_log = [*dict.fromkeys(on_the_log(fleet))]
    assert seen_on_log == [link.release.encode() for link in both[0].links]
