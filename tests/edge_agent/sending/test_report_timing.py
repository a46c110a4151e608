"""What a host measured moves no record: an idle and a busy agent, on a clock that work moves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectors.records.activity import Observation, Record
from edge_agent.ledger.ledger_records import SealedRecord
from edge_agent.sending.outbox import BEAT_MS, Outbox
from edge_agent.windows.window_accumulator import ClosedWindow, TaskWindows
from tests.agent_live import (
    SteppedClock,
    Surroundings,
    announce,
    demo_task,
    run_until,
    surroundings,
)
from tests.agent_world import T0, counting_bytes
from wire.topics import EPOCHS, REPORTS


@dataclass(frozen=True)
class Work:
    """How long a host's work takes, milliseconds: a drain, closing windows, housekeeping."""

    drain_ms: int = 0
    close_ms: int = 0
    housekeeping_ms: int = 0


class Load:
    """A source whose drains take their time, and tell much where they do."""

    name = "load"

    def __init__(self, clock: SteppedClock, work: Work) -> None:
        self._clock, self._work = clock, work
        self.drains: list[int] = []

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        return

    def drain(self, now_boottime_ns: int) -> Sequence[Record]:
        self.drains.append(self._clock.now_ms)
        self._clock.now_ms += self._work.drain_ms
        busy = Observation("host_cpu", "user", 10**6, now_boottime_ns)
        return [busy] * (50 if self._work.drain_ms else 0)

    def stop(self) -> None:
        return


Traffic = list[tuple[str, int, int]]
"""Topic, length and time of leaving of each record."""


def traffic(
    made: Surroundings, work: Work, monkeypatch: pytest.MonkeyPatch
) -> tuple[Traffic, list[int]]:
    """Run an agent for 130 s; what left it, and when it drained its source.

    Both hosts draw the same offsets and open epochs every 40 s: an hour would take long.
    """
    clock = SteppedClock(T0)
    sent: Traffic = []
    send, close, persist = Outbox._send, TaskWindows.close_ended, TaskWindows.persist

    def noted(self: Outbox, records: Sequence[SealedRecord]) -> set[int]:
        sent.extend((r.topic, len(r.value), clock.now_ms - T0 * 1000) for r in records)
        return send(self, records)

    def closed(self: TaskWindows, now_s: int) -> Iterator[ClosedWindow]:
        for one in close(self, now_s):
            clock.now_ms += work.close_ms
            yield one

    def persisted(self: TaskWindows) -> None:
        clock.now_ms += work.housekeeping_ms
        persist(self)

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "_send", noted)
        patch.setattr(TaskWindows, "close_ended", closed)
        patch.setattr(TaskWindows, "persist", persisted)
        patch.setattr("edge_agent.protocol.epochs.EPOCH_PERIOD_S", 40)
        patch.setattr("edge_agent.open_agent.secrets.token_bytes", counting_bytes(5))
        runtime = made.agent(clock)
        load = Load(clock, work)
        runtime.replace_sources((load,))
        run_until(runtime, clock, T0 + 130)
        runtime.close()
    return sent, load.drains


def host(folder: Path) -> Surroundings:
    """A host of two tasks whose windows end together now and then."""
    folder.mkdir()
    made = surroundings(folder, window_s=40)
    other = demo_task(made.world, window_s=20, windows=1000, series="other", weight=120_000)
    announce(made, [made.task, other], roster_version=2)
    return made


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    with pytest.MonkeyPatch.context() as patch:
        return traffic(host(tmp_path_factory.mktemp("hosts") / "idle"), Work(), patch)[0]


@pytest.mark.parametrize(
    "work",
    [Work(60), Work(400), Work(60, 300, 0), Work(200, 100, 400), Work(450, 0, 50)],
    ids=lambda work: f"{work.drain_ms}-{work.close_ms}-{work.housekeeping_ms}",
)
def test_busy_host_sends_what_an_idle_one_does_at_the_same_times(
    work: Work, idle: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, drains = traffic(host(tmp_path / "busy"), work, monkeypatch)
    assert busy == idle
    assert Counter(topic for topic, _, _ in idle) == {EPOCHS: 4, REPORTS: 9}
    assert len({length for topic, length, _ in idle if topic == REPORTS}) == 1
    assert [at for _, _, at in idle if at % BEAT_MS] == []
    assert longest_gap(drains) <= 2500


def longest_gap(times: list[int]) -> int:
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def test_sends_in_a_row_hold_the_sources_up_for_a_second_at_most(tmp_path: Path) -> None:
    """What sources gather between two drains is bounded, and so must be the time between them."""
    made, clock = host(tmp_path / "host"), SteppedClock(T0)
    runtime, load = made.agent(clock), Load(clock, Work(60))
    runtime.replace_sources((load,))
    for beat in range(80):
        at_ms = T0 * 1000 + 10_000 + beat * BEAT_MS
        record = SealedRecord(REPORTS, bytes(16), b"sealed", at_ms, T0 + 3600)
        runtime._outbox.add([10**6 + beat], [record], T0 * 1000)
    run_until(runtime, clock, T0 + 35)
    runtime.close()
    assert len(made.records(REPORTS)) > 80
    assert longest_gap(load.drains) <= 2500
