"""Carry the effects of the Helper's state machine out, strictly in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.protocol.helper_port import PROTOCOL_VERSION, BatchReply, HelperStatus, ReleaseReply

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
from .helper_state import HelperState


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
