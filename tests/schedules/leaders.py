"""The Leader's processes of a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import (
    CallCountersign,
    CallHelper,
    EpochsArrived,
    LeaderEvent,
    ReportsArrived,
    Settled,
    StoreRelease,
    Tick,
)
from aggregator.leader.leader_runner import LeaderRunner, call_helper, restore_leader
from aggregator.leader.leader_state import LeaderState
from aggregator.protocol.directory import Directory
from aggregator.protocol.interfaces import BatchKey, RosterSeen, TaskSeen
from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from aggregator.state.state_file import StateUnusable, StorageUnavailable
from simulator.engine.interface import MemoryStore
from tests.agent_world import T0
from tests.schedules.helpers import Channel
from tests.schedules.machine import Crash, Machine, Process, copy_database
from tests.schedules.signed_world import parties, signed_roster, signed_task, world
from tests.schedules.simulated_log import LogClient, SimulatedConsumer, SimulatedLog
from transport.interface import TopicPartition, TransportUnavailable
from wire.fields import KeyId, key_id
from wire.topics import EPOCHS, REPORTS

_EXCHANGES: Final = 8
"""Calls that a Leader may have answered within one turn."""


class DurableStore(MemoryStore):
    """Outlives its Leader; a disk may be full, and a crash strikes before or after a write."""

    def __init__(self, owner: Process) -> None:
        super().__init__()
        self._owner = owner
        self.differ: list[str] = []

    def _take(self) -> None:
        self._owner.point("before store")
        if self._owner.disk_full:
            raise StorageUnavailable(self._owner.name, "No space left on device")

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; a second of the same window must be the same."""
        self._take()
        for before in self.written:
            if key_of(before) == key_of(release):
                if not np.array_equal(before.vector, release.vector):
                    self.differ.append(f"window {release.window_start_s}: two releases differ")
                return
        super().write(release)

    def suppress(self, window: SuppressedWindow) -> None:
        self._take()
        if window not in self.suppressed:
            super().suppress(window)


def key_of(release: ReleasedWindow) -> BatchKey:
    return BatchKey(release.task_id, release.cohort, release.window_start_s)


class LeaderProcess(Process):
    """One process of a Leader and the folder of its state.

    helper_delay_s  answers of the Helper take so long
    """

    def __init__(
        self,
        name: str,
        log: SimulatedLog,
        now: Callable[[], float],
        folder: Path,
        channel: Channel,
    ) -> None:
        super().__init__(name, now)
        self.client, self.folder, self.channel = LogClient(log, self), folder, channel
        self.folder.mkdir(parents=True, exist_ok=True)
        self.group = "leader" if name == "leader" else name
        self.store = DurableStore(self)
        self.tasks = [1]
        self.stopped = False
        self.helper_delay_s = 0.0
        self.settled: list[tuple[BatchKey, str]] = []
        self.restored = False
        self.in_flight: deque[tuple[float, CallHelper | CallCountersign, list[bytes]]] = deque()
        self.state: LeaderState | None = None
        self.leader: Leader | None = None
        self._forget_memory()

    def _forget_memory(self) -> None:
        self._calls: list[CallHelper | CallCountersign] = []
        self._inbox: deque[LeaderEvent] = deque()
        self._consumer: SimulatedConsumer | None = None
        self._offsets: dict[TopicPartition, int] = {}
        self._lag: int | None = None

    @property
    def path(self) -> Path:
        return self.folder / "leader.sqlite"

    # Its life

    def turn(self, machine: Machine) -> None:
        """Start if it is down, else go round the loop once."""
        if self.stopped or self._now() < self.down_until_s:
            return
        try:
            with machine.running(self):
                if not self.alive:
                    self._start()
                self._round()
        except Crash:
            self.kill()
        except StorageUnavailable:
            if not self._ready:
                self.kill(5.0)
        except StateUnusable:
            self.kill()
            self.stopped = True  # another Leader holds the state

    def _start(self) -> None:
        self.lives += 1
        self.alive, self._ready = True, False
        state = self.state = LeaderState(self.path)
        own = world().leader
        pairs = {key_id(own.hpke.public_bytes): own.hpke}
        self.leader = leader = Leader(
            Directory(parties(), state.accepted_s()),
            own.signing,
            lambda kid: pairs.get(KeyId(kid)),
            ledger_counters=state.counters(),
            resumed=state.resumed,
            raw_epoch=state.raw_epoch,
        )
        self.runner = LeaderRunner(
            leader, state, self.store,
            commit=self._note_offsets, call=self._calls.append,
            checkpoint=self.point, tell=self._note_settled,
        )  # fmt: skip
        leader.handle(RosterSeen(signed_roster()))
        for version in self.tasks:
            self.runner.carry_out(leader.handle(TaskSeen(signed_task(version), T0, at_start=True)))
        owed = restore_leader(leader, state, self.clock())
        self._ready = True
        self.runner.carry_out(owed)

    def learn(self, version: int) -> None:
        if version not in self.tasks:
            self.tasks.append(version)
            if self.leader is not None:
                self._inbox.append(TaskSeen(signed_task(version), self.clock()))

    def let_go(self) -> None:
        """Close the state; calls that are under way still arrive."""
        if self.state is not None:
            self.state.close()
        self.state = self.leader = None
        self._forget_memory()

    # The loop

    def _round(self) -> None:
        self.runner.carry_out()
        self._poll()
        self._take_inbox()
        self.runner.feed(Tick(self.clock(), self._lag))
        for _ in range(_EXCHANGES):
            if not self._exchange():
                break

    def _take_inbox(self) -> None:
        while self._inbox:
            self.runner.feed(self._inbox.popleft())

    def _poll(self) -> None:
        try:
            if self._consumer is None:
                self._consumer = self.client.consumer(self.group, [EPOCHS, REPORTS])
            records = self._consumer.poll(1000, 0.0)
            for topic, event in ((EPOCHS, EpochsArrived), (REPORTS, ReportsArrived)):
                some = [record for record in records if record.topic == topic]
                if some:
                    self._inbox.append(event(some, self.clock()))
            self._lag = self._consumer.lag()
            if self._offsets:
                self._consumer.commit(self._offsets)
                self._offsets = {}
        except TransportUnavailable:
            self._lag = None

    def has_read_all(self) -> bool:
        """Whether the log has nothing more for this process itself."""
        return self._consumer is not None and self._consumer.lag() == 0

    def deliver_again(self) -> None:
        """A rebalance: what is not committed is read again."""
        if self._consumer is not None:
            self._consumer.rebalance()

    def _note_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets.update(offsets)

    def _note_settled(self, settled: Settled) -> None:
        how = "released" if isinstance(settled, StoreRelease) else settled.reason
        self.settled.append((settled.key, how))

    # The Helper

    def _exchange(self) -> bool:
        """Begin the calls that are asked for, and take the answers that are due."""
        state = self.state
        if state is None:
            return False
        for effect in self._calls:
            wanted = effect.wanted if isinstance(effect, CallHelper) else None
            epochs = [] if wanted is None else list(state.epoch_bytes(list(wanted)))
            self.in_flight.append((self._now() + self.helper_delay_s, effect, epochs))
        self._calls.clear()
        due = [call for call in self.in_flight if call[0] <= self._now()]
        for call in due:
            self.in_flight.remove(call)
            self.runner.feed(call_helper(self.channel, *call[1:], self.clock))
        return bool(due)

    def deliver_stray_calls(self) -> None:
        """What a dead Leader had sent reaches the Helper all the same; nobody hears the answer."""
        if not self.alive:
            while self.in_flight:
                _, effect, epochs = self.in_flight.popleft()
                call_helper(self.channel, effect, epochs, self.clock)

    # Backups

    def back_up(self) -> None:
        if self.path.exists():
            copy_database(self.path, self.folder / "backup.sqlite")

    def restore(self) -> bool:
        """Put the copy back; says whether there was one."""
        backup = self.folder / "backup.sqlite"
        if not backup.exists():
            return False
        self.kill(10.0)
        copy_database(backup, self.path)
        return True
