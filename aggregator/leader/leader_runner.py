"""Carry the effects of the Leader's state machine out, strictly in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.protocol.released import ReleaseStore
from aggregator.state.state_file import StateUnusable, StorageUnavailable
from transport.port import TopicPartition

from .leader import Leader
from .leader_events import (
    CallCountersign,
    CallHelper,
    CommitOffsets,
    KeepEpochs,
    LeaderEffect,
    LeaderEvent,
    Settled,
    StoreCountersigned,
    StoreFrozen,
    StoreRelease,
    StoreSuppressed,
    StoreTask,
    StoreUnsigned,
)
from .leader_state import LeaderState


def _untold(settled: Settled) -> None:
    del settled


def restore_leader(leader: Leader, state: LeaderState, now_s: float) -> list[LeaderEffect]:
    """Bring back what a restart needs; tasks and rosters must be known by now.

    Returns     what must be stored of windows that cannot go on, to be carried out
    Raises      StateUnusable: a part was brought back, and a second try would find it twice
    """
    try:
        return _restored(leader, state, now_s)
    except StorageUnavailable as error:
        raise StateUnusable(str(error)) from error


def _restored(leader: Leader, state: LeaderState, now_s: float) -> list[LeaderEffect]:
    for raw, dead in state.epochs():
        leader.resume_epoch(raw, dead=dead)
    chains = leader.chains
    for chain, head in state.heads().items():
        chains.chain(chain).head = head
    for unsigned in state.unsigned():
        chains.resume_unsigned(unsigned)
    tasks = leader.directory.tasks
    reach_s = leader.directory.longest_reach_s()
    for key in state.settled(now_s - reach_s - 86_400):
        if key.task_id in tasks:
            known = tasks[key.task_id]
            chains.settled[key] = known.window_end(key.window) + known.task.retention_s
    leader.schedule.resume(state.last_ended())
    for chain, batch in state.last_batches().items():
        chains.resume_hosts(chain, batch)
    leader.reader.restored()
    return [
        suppressed
        for stored in state.frozen()
        if (suppressed := chains.resume_frozen(stored, now_s)) is not None
    ]


class LeaderRunner:
    """Feeds a Leader and carries out what it says."""

    def __init__(
        self,
        leader: Leader,
        state: LeaderState,
        store: ReleaseStore,
        *,
        commit: Callable[[Mapping[TopicPartition, int]], None],
        call: Callable[[CallHelper | CallCountersign], None],
        checkpoint: Checkpoint = no_checkpoint,
        tell: Callable[[Settled], None] = _untold,
    ) -> None:
        """Wire the ends up.

        commit      commits offsets of the log
        call        begins a call of the Helper; its answer is fed back as an event
        tell        is told of every window that ended
        """
        self._leader, self._state, self._store = leader, state, store
        self._commit, self._call, self._checkpoint = commit, call, checkpoint
        self._tell = tell
        self._owed: deque[LeaderEffect] = deque()

    def feed(self, event: LeaderEvent) -> None:
        """Handle one event, after what earlier ones still owe.

        Raises      StorageUnavailable: what is left is owed, and carried out by the next call
        """
        self.carry_out()
        self.carry_out(self._leader.handle(event))

    def carry_out(self, effects: Iterable[LeaderEffect] = ()) -> None:
        """Carry out what is owed and then these, strictly in their order.

        Raises      StorageUnavailable, as `feed`
        """
        self._owed.extend(effects)
        while self._owed:
            effect = self._owed[0]
            name = type(effect).__name__
            self._checkpoint(f"before {name}")
            self._carry_out(effect)
            self._checkpoint(f"after {name}")
            self._owed.popleft()

    def _ended(self, settled: Settled) -> None:
        self._leader.note_ended(settled.key)
        self._tell(settled)

    def _carry_out(self, effect: LeaderEffect) -> None:
        match effect:
            case KeepEpochs():
                self._state.keep_epochs(effect)
            case StoreFrozen():
                self._state.store_frozen(effect)
            case CallHelper() | CallCountersign():
                self._call(effect)
            case StoreRelease():
                # The store first: it takes the same window twice, the settled mark ends retries.
                self._store.write(effect.released)
                self._checkpoint("between store and transcript")
                self._state.store_release(effect)
                self._ended(effect)
            case StoreTask():
                self._state.store_task(effect)
            case StoreSuppressed():
                self._store.suppress(effect.public())
                self._state.store_suppressed(effect)
                self._ended(effect)
            case StoreCountersigned():
                self._state.store_countersigned(effect)
            case StoreUnsigned():
                self._state.store_unsigned(effect)
            case CommitOffsets():
                self._commit(effect.offsets)
            case _:
                assert_never(effect)
