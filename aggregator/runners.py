"""Carry the effects of both state machines out, strictly in their order.

Shells, the demo and tests run these; `checkpoint` names each step before and after it happens, so
that a test can end the process there. Production passes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from transport.port import TopicPartition

from .events import (
    CallCountersign,
    CallHelper,
    CommitOffsets,
    KeepEpochs,
    LeaderEffect,
    LeaderEvent,
    StoreCountersigned,
    StoreFrozen,
    StoreRelease,
    StoreSuppressed,
    StoreTask,
    StoreUnsigned,
)
from .helper import Helper
from .helper_events import (
    AnswerCommitted,
    BatchGiven,
    CommitAnswer,
    EpochsGiven,
    HelperEffect,
    HelperEvent,
    ReleaseGiven,
    RememberEpochs,
    ReplyCountersigned,
    ReplyNeedEpochs,
    ReplyRefused,
    ReplyShare,
    StoreChainEntry,
    StoreReply,
)
from .helper_port import BatchReply, HelperStatus, ReleaseReply
from .helper_state import HelperState
from .leader import Leader
from .leader_state import LeaderState
from .released import ReleaseStore
from .state_file import StateUnusable, StorageUnavailable

Checkpoint = Callable[[str], None]
Settled = StoreRelease | StoreSuppressed
"""How a window ended."""
PROTOCOL_VERSION = "plst1"


def no_checkpoint(step: str) -> None:
    """Go on."""


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
        chains.resume_unsigned(unsigned.key, unsigned.chain, unsigned.entry, unsigned.vector)
    tasks = leader.directory.tasks
    reach_s = leader.directory.longest_reach_s()
    for key in state.settled(now_s - reach_s - 86_400):
        if key.task_id in tasks:
            known = tasks[key.task_id]
            chains.settled[key] = known.window_end(key.window) + known.task.retention_s
    leader.schedule.resume(state.last_ended())
    for chain, batch in state.last_batches().items():
        chains.resume_hosts(chain, batch)
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
                self._tell(effect)
            case StoreTask():
                self._state.store_task(effect)
            case StoreSuppressed():
                self._store.suppress(effect.public())
                self._state.store_suppressed(effect)
                self._tell(effect)
            case StoreCountersigned():
                self._state.store_countersigned(effect)
            case StoreUnsigned():
                self._state.store_unsigned(effect)
            case CommitOffsets():
                self._commit(effect.offsets)
            case _:
                assert_never(effect)


def _nothing_to_settle() -> None:
    """Go on: no witness is configured."""


class HelperRunner:
    """A Helper with its durable state: the other end of `HelperPort`, in this process."""

    def __init__(
        self,
        helper: Helper,
        state: HelperState,
        clock: Callable[[], float],
        *,
        helper_pk: bytes,
        announcements: Callable[[], Sequence[bytes]] = tuple,
        settle: Callable[[], None] = _nothing_to_settle,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        """Serve one Helper.

        clock       its own, unix seconds
        settle      has the witness hold all that was committed; raises where it does not
        """
        self._helper, self._state, self._clock = helper, state, clock
        self._settle = settle
        self._helper_pk, self._announcements = helper_pk, announcements
        self._checkpoint = checkpoint
        self._owed: RememberEpochs | None = None
        self.batches_answered = 0
        self.asked_s = 0.0

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        """Verify and keep epochs that the Leader hands over."""
        self._run(EpochsGiven(epochs, self._clock()))

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        """Answer a batch; FencedOut, StateUnusable and RollbackSeen must end the process.

        Raises      WitnessUnavailable: nothing left; the same batch is answered later
        """
        self._settle()
        reply = self._run(BatchGiven(signed_batch, epochs_complete, self._clock()))
        match reply:
            case ReplyShare():
                self.batches_answered += 1
                return BatchReply(share=reply.share_bytes, cleared=reply.cleared)
            case ReplyNeedEpochs():
                return BatchReply(need_epochs=reply.epochs)
            case ReplyRefused():
                return BatchReply(refusal=reply.reason, cleared=reply.cleared)
            case _:
                name = type(reply).__name__
                raise AssertionError(f"expected an answer to a batch, got {name}")

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        """Countersign a release, or refuse it; raises as `submit_batch` does."""
        self._settle()
        reply = self._run(ReleaseGiven(entry, vector))
        match reply:
            case ReplyCountersigned():
                return ReleaseReply(entry=reply.entry)
            case ReplyRefused():
                return ReleaseReply(refusal=reply.reason)
            case _:
                name = type(reply).__name__
                raise AssertionError(f"expected an answer to a release, got {name}")

    def status(self) -> HelperStatus:
        """What the Leader may know."""
        rosters = self._helper.directory.rosters
        return HelperStatus(
            version=PROTOCOL_VERSION,
            helper_pk=self._helper_pk,
            clock_s=int(self._clock()),
            roster_version=max(rosters, default=0),
            batches_answered=self.batches_answered,
            refused=dict(self._helper.refused),
            key_announcements=list(self._announcements()),
        )

    def carry_out_owed(self) -> None:
        """Store what a full disk held up.

        Raises      StorageUnavailable
        """
        if self._owed is not None:
            self._state.keep_epochs(self._owed.epochs, dict(self._owed.counters))
            self._owed = None

    def _run(self, event: HelperEvent) -> HelperEffect | None:
        """Carry effects out until a reply; a reply is always the last effect."""
        self.asked_s = self._clock()
        self.carry_out_owed()
        reply: HelperEffect | None = None
        for effect in self._helper.handle(event):
            name = type(effect).__name__
            self._checkpoint(f"before {name}")
            reply = self._carry_out(effect)
            self._checkpoint(f"after {name}")
        return reply

    def _carry_out(self, effect: HelperEffect) -> HelperEffect | None:
        match effect:
            case RememberEpochs():
                # In memory they are known: they must be durable before anything else is answered.
                self._owed = effect
                self.carry_out_owed()
            case CommitAnswer():
                self._state.commit(effect.answer, effect.closed_s)
                self._checkpoint("between commit and sum")
                return self._run(AnswerCommitted(effect.answer.key))
            case StoreReply():
                self._state.keep_reply(effect.key, effect.share_bytes, effect.share_hash)
            case StoreChainEntry():
                self._state.keep_release(effect.series, effect.cohort, effect.window, effect.entry)
            case ReplyShare() | ReplyCountersigned():
                self._checkpoint("between commit and witness")
                self._settle()
                return effect
            case ReplyNeedEpochs() | ReplyRefused():
                return effect
            case _:
                assert_never(effect)
        return None
