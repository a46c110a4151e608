"""Carries the Leader's effects out, strictly in their order, and calls its Helper."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, assert_never

from aggregator.protocol import interfaces
from aggregator.protocol.interfaces import BatchReply, HelperPort, ReleaseReply
from aggregator.protocol.released import ReleaseStore
from aggregator.state.state_file import StateUnusable, StorageUnavailable
from transport.interface import TopicPartition
from wire.batch import SignedBatch
from wire.rejection import Reason, ReportRejected

from . import leader_events as events
from .leader import Leader
from .leader_events import CallCountersign, CallHelper, HelperAnswer, LeaderEffect, Settled
from .leader_state import LeaderState


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
        try:
            leader.book.restore(raw, dead=dead)
        except ReportRejected as refusal:  # damaged: it is left out
            leader.rejected[refusal.reason.value] += 1
    chains = leader.chains
    for chain, head in state.heads().items():
        chains.chain(chain).head = head
    for unsigned in state.unsigned():
        chains.chain(unsigned.chain).unsigned.append(unsigned)
    for key in state.settled(now_s - leader.directory.longest_reach_s() - 86_400):
        if known := leader.directory.tasks.get(key.task_id):
            chains.settled[key] = known.window_end(key.window) + known.task.retention_s
    leader.schedule.resume(state.last_ended())
    for chain, signed_batch in state.last_batches().items():
        batch = SignedBatch.decode(signed_batch).batch
        # The next window is complete with its hosts.
        chains.chain(chain).last_hosts = (
            batch.window,
            frozenset(batch.entries["host_id"].tolist()),
        )
    leader.reader.restored()
    return [
        suppressed
        for stored in state.closed()
        if (suppressed := chains.resume_closed(stored, now_s)) is not None
    ]


class LeaderRunner:
    def __init__(
        self,
        leader: Leader,
        state: LeaderState,
        store: ReleaseStore,
        *,
        commit: Callable[[Mapping[TopicPartition, int]], None],
        call: Callable[[CallHelper | CallCountersign], None],
        checkpoint: interfaces.Checkpoint = interfaces.no_checkpoint,
        tell: Callable[[Settled], object] = lambda settled: settled,
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

    def feed(self, event: events.LeaderEvent) -> None:
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
        until_s = self._leader.chains.settled.get(settled.key, 0)
        self._leader.reader.ended(settled.key, until_s)
        self._tell(settled)

    def _carry_out(self, effect: LeaderEffect) -> None:
        match effect:
            case events.KeepEpochs():
                self._state.keep_epochs(effect)
            case events.StoreFrozen():
                self._state.store_frozen(effect)
            case CallHelper() | CallCountersign():
                self._call(effect)
            case events.StoreRelease():
                # The store first: it takes the same window twice, the settled mark ends retries.
                self._store.write(effect.released)
                self._checkpoint("between store and transcript")
                self._state.store_release(effect)
                self._ended(effect)
            case events.StoreTask():
                self._state.store_task(effect)
            case events.StoreSuppressed():
                self._store.suppress(effect.public())
                self._state.store_suppressed(effect)
                self._ended(effect)
            case events.StoreCountersigned():
                self._state.store_countersigned(effect)
            case events.StoreUnsigned():
                self._state.store_unsigned(effect)
            case events.CommitOffsets():
                self._commit(effect.offsets)
            case _:
                assert_never(effect)


EPOCHS_PER_CALL: Final = 2_000
"""Epochs of one message: 5 MB, so that no party ever holds 100,000 of them in one buffer."""


def call_helper(
    port: HelperPort | None,
    effect: CallHelper | CallCountersign,
    epochs: Iterable[bytes],
    clock: Callable[[], float],
) -> HelperAnswer:
    """Hand over what the Helper asked for, then the batch or the release; say what came back.

    port        None where there is no Helper, who is away then
    epochs      raw, those that the effect names, as far as the Leader keeps them
    """
    reply = None if port is None else _reply(port, effect, epochs)
    return HelperAnswer(effect.key, reply, clock())


def _reply(
    port: HelperPort, effect: CallHelper | CallCountersign, epochs: Iterable[bytes]
) -> BatchReply | ReleaseReply | None:
    """The Helper's reply, as far as it says something that a Helper may say here."""
    try:
        if isinstance(effect, CallCountersign):
            signed = port.submit_release(effect.entry, effect.vector)
            return signed if signed.entry or signed.refusal in _REASONS else None
        if effect.wanted is not None:
            rest = iter(epochs)
            while part := list(islice(rest, EPOCHS_PER_CALL)):
                port.submit_epochs(part)
        reply = port.submit_batch(effect.signed_batch, epochs_complete=effect.wanted is not None)
    except interfaces.HelperUnavailable:
        return None
    if reply.share:
        # Nothing signs these words, and every reader of the release gets them.
        cleared = {reason: n for reason, n in reply.cleared.items() if reason in _REASONS}
        return BatchReply(share=reply.share, cleared=cleared)
    if reply.need_epochs and effect.wanted is None:  # it was told that there are no more
        return BatchReply(need_epochs=reply.need_epochs)
    return BatchReply(refusal=reply.refusal) if reply.refusal in _REASONS else None


_REASONS = frozenset(reason.value for reason in Reason)


class HelperCalls:
    """A thread of its own that calls the Helper; the Leader's loop takes what came back."""

    def __init__(self, helper: HelperPort | None, clock: Callable[[], float]) -> None:
        self._helper, self._clock = helper, clock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="helper-call")
        self._answers = queue.SimpleQueue[HelperAnswer]()
        self._statuses = queue.SimpleQueue[tuple[bytes, ...] | None]()
        self.takes_salt: bool | None = None
        """Whether the Helper takes salt behind a release's vector; None: asked before it answers.

        Known before the first answer is: a release without salt tells its count.
        """
        self.under_way = 0
        """Calls whose answer was not yet taken."""

    def begin(self, effect: CallHelper | CallCountersign, epochs: list[bytes]) -> None:
        self.under_way += 1
        self._pool.submit(self._call, effect, epochs)

    def ask_status(self) -> None:
        if self._helper is not None:
            self._pool.submit(self._ask, self._helper)

    def answers(self) -> Iterator[HelperAnswer]:
        while not self._answers.empty():
            event = self._answers.get_nowait()
            self.under_way -= 1
            yield event

    def announced(self) -> Iterator[tuple[bytes, ...] | None]:
        """Take key announcements; None for each time that the Helper did not answer."""
        while not self._statuses.empty():
            yield self._statuses.get_nowait()

    def wait(self) -> None:
        self._pool.submit(lambda: None).result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _call(self, effect: CallHelper | CallCountersign, epochs: list[bytes]) -> None:
        if self.takes_salt is None and self._helper is not None:
            self._ask(self._helper)
        if self.takes_salt is None:
            self._answers.put(HelperAnswer(effect.key, None, self._clock()))
            return
        self._answers.put(call_helper(self._helper, effect, epochs, self._clock))

    def _ask(self, helper: HelperPort) -> None:
        try:
            status = helper.status()
            self.takes_salt = status.takes_salt
            self._statuses.put(tuple(status.key_announcements))
        except interfaces.HelperUnavailable:
            self._statuses.put(None)
