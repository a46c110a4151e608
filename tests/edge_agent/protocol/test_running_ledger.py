"""Whatever happens to a host, while it runs it knows as much as its ledger tells afterwards."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import LedgerView
from edge_agent.protocol.eligibility import BudgetBook
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
)
from privacy.budget import Entry, may_spend, peak
from tests.agent_world import (
    T0,
    WEEK_S,
    MemoryRuntime,
    NoNoise,
    World,
    calibrated,
    close_window,
    new_ledger,
)
from wire.fields import task_id
from wire.task import Task

# The deep profile takes long, and so does shrinking what it finds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
CADENCES: Final = (HOUR_S // 2, DAY_S, WEEK_S, 8 * WEEK_S)
WORLD: Final = World(1)
KEYS: Final = WORLD.keys(T0 - 60, 400 * WEEK_S)
MEMORY: Final = Path("/dev/shm")


class HostLife(RuleBasedStateMachine):
    """One host with its ledger on disk; clocks, tasks and restarts as they come."""

    @initialize(cadences=st.lists(st.sampled_from(CADENCES), min_size=1, max_size=3, unique=True))
    def begin(self, cadences: list[int]) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.now_s = T0
        self.published: dict[str, bytes] = {}
        self.weights: dict[str, int] = {}
        self.version = 0
        self.spent: dict[tuple[str, int], Entry] = {}
        self._start(new_ledger(self.folder, WORLD, T0))
        for cadence in cadences:
            self.publish_task(cadence, 300_000)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    def _start(self, ledger: Ledger) -> None:
        """Begin as an agent does: the ledger's view, then what the log's topics hold."""
        self.ledger = ledger
        participant = WORLD.participant(ledger.view(WORLD.host_ids), sampler=NoNoise())
        self.runtime = MemoryRuntime(participant, ledger)
        for signed in self.published.values():
            self.runtime.tell(TaskReceived(signed, self.now_s))
        if self.published:
            self._tell_roster()
        self.runtime.tell(KeysAnnounced(KEYS, self.now_s))

    def _tell_roster(self) -> None:
        roster = WORLD.roster(self.weights, version=self.version)
        self.runtime.tell(RosterReceived(roster, self.now_s))

    # What may happen

    @rule(cadence=st.sampled_from(CADENCES), weight=st.sampled_from([100_000, 300_000, 900_000]))
    def publish_task(self, cadence: int, weight: int) -> None:
        """Sign a version of a series, within what others leave, and a roster that allows it."""
        name = f"every{cadence}"
        weight = min(weight, 1_000_000 - sum(self.weights.values()) + self.weights.get(name, 0))
        if weight == 0:
            return
        self.version += 1
        plain = WORLD.task(name, window_s=cadence, weight=weight, version=self.version)
        task = calibrated(dataclasses.replace(plain, last_window=plain.first_window + 400 * WEEK_S))
        self.published.pop(name, None)  # the topic keeps the last of a key, at its place
        self.published[name] = WORLD.sign_task(task)
        self.weights[name] = weight
        self.runtime.tell(TaskReceived(self.published[name], self.now_s))
        self._tell_roster()

    @rule(windows=st.integers(1, 12))
    def report(self, windows: int) -> None:
        """Run until so many windows have ended, and report each at its end."""
        for _ in range(windows):
            tasks = self.runtime.participant.tasks.values()
            if not tasks:
                return
            self.now_s = min(self.now_s // t.window_s * t.window_s + t.window_s for t in tasks)
            self.runtime.tell(EpochDue(self.now_s))
            for task in list(tasks):
                if self.now_s % task.window_s == 0:
                    self._close(task, self.now_s - task.window_s)

    def _close(self, task: Task, start_s: int) -> None:
        tid = task_id(WORLD.sign_task(task)[:-128])
        close_window(self.runtime, WORLD, task, tid, start_s)
        for entry in self.ledger.view(WORLD.host_ids).hosts[0].entries:
            self.spent[entry.series, entry.start] = entry

    @rule(span_s=st.sampled_from([0, DAY_S, 3 * WEEK_S, 30 * WEEK_S]), to=st.sampled_from(CADENCES))
    def sleep(self, span_s: int, to: int) -> None:
        """Let the host sleep, and wake up an hour before such a window ends."""
        self.now_s = max(self.now_s, -(-(self.now_s + span_s) // to) * to - HOUR_S)

    @rule(span_s=st.sampled_from([1, HOUR_S, 2 * DAY_S]), epoch=st.booleans())
    def report_after_a_clock_set_back(self, span_s: int, epoch: bool) -> None:
        """Step the clock forward and back: what is to be committed before that time fails."""
        self.report(1)
        later_s = self.now_s + span_s
        if epoch:
            self.runtime.tell(EpochDue(later_s))
        key = WORLD.leader.announce(later_s, later_s + 400 * WEEK_S)
        self.runtime.tell(KeysAnnounced((key,), later_s))
        self.report(1)

    @rule()
    def restart(self) -> None:
        """End the process and start it again, once the clock is not behind the ledger's."""
        self.ledger.close()
        path, fence = self.folder / "ledger.sqlite", self.folder / "host.key.fence"
        self.now_s += 2 * DAY_S
        self._start(Ledger.open(path, fence, binding=b"machine"))

    # What must hold

    @invariant()
    def running_view_is_the_reopened_one(self) -> None:
        if not hasattr(self, "folder"):
            return
        view = self.ledger.view(WORLD.host_ids)
        # No epoch is committed before the latest time that the ledger saw.
        next_s = max(self.now_s, self.ledger._clock_s)
        assert known(self.runtime.participant, next_s) == known(_reopened(view), next_s)

    @invariant()
    def ledger_is_the_gate(self) -> None:
        """What the host remembers decides as everything that was ever spent would."""
        if not hasattr(self, "folder"):
            return
        spent = list(self.spent.values())
        book = self.runtime.participant._budget
        for cadence in CADENCES:
            start_s = self.now_s // cadence * cadence - cadence
            wanted = Entry("wanted", start_s, start_s + cadence, 600_000, WEEK_S // cadence + 1)
            if book.remembers(start_s):
                assert book.may_spend([0], wanted) == [may_spend(spent, wanted)]
        assert peak(spent) <= 1


def _reopened(view: LedgerView) -> Participant:
    return WORLD.participant(view, sampler=NoNoise())


def known(participant: Participant, now_s: int) -> dict[str, object]:
    """Everything that a participant has from its ledger, as it counts from now on."""
    book: BudgetBook = participant._budget
    return {
        "entries": sorted(entry_key(e) for kept in book._hosts[0].values() for e in kept),
        "kept_from_s": book.kept_from_s,
        "series": participant._tasks._known,
        "counters": participant._epochs.counters,
        "opened": [t for t in participant._epochs.opened[0] if t > now_s - HOUR_S],
        "rosters": participant._rosters._rosters,
        "resume": participant._resume_after_s,
    }


def entry_key(entry: Entry) -> tuple[str, int, int, int, int]:
    return entry.series, entry.start, entry.end, entry.weight_millionths, entry.T


TestHostLife = HostLife.TestCase
TestHostLife.settings = settings(
    max_examples=settings().max_examples // 2,
    stateful_step_count=min(settings().stateful_step_count, 30),
    suppress_health_check=[HealthCheck.too_slow],
)
