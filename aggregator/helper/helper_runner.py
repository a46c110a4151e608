"""A Helper behind `HelperPort` in this process: its clock, its witness, what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aggregator.protocol.helper_port import PROTOCOL_VERSION, BatchReply, HelperStatus, ReleaseReply

from .helper import Helper


class HelperRunner:
    """Settles with the witness before and after each answer."""

    def __init__(
        self,
        helper: Helper,
        clock: Callable[[], float],
        *,
        helper_pk: bytes,
        announcements: Callable[[], Sequence[bytes]] = tuple,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve one Helper.

        clock       its own, unix seconds
        settle      has the witness hold all that was committed; raises where it does not
        """
        self._helper, self._clock, self._settle = helper, clock, settle
        self._helper_pk, self._announcements = helper_pk, announcements
        self.batches_answered = 0
        self.asked_s = 0.0

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        """Verify and keep epochs that the Leader hands over."""
        self._helper.admit_epochs(epochs, self._begin())

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        """Answer a batch; FencedOut, StateUnusable and RollbackSeen must end the process.

        Raises      WitnessUnavailable: nothing left; the same batch is answered later
        """
        self._settle()
        now_s = self._begin()
        reply = self._helper.answer_batch(signed_batch, complete=epochs_complete, now_s=now_s)
        if reply.share:
            self._let_out()
            self._helper.checkpoint("after CommitAnswer")
            self.batches_answered += 1
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        """Countersign a release, or refuse it; raises as `submit_batch` does."""
        self._settle()
        self._begin()
        reply = self._helper.countersign(entry, vector)
        if reply.entry:
            self._let_out()
        return reply

    def carry_out_owed(self) -> None:
        """Store what a full disk held up. Raises StorageUnavailable."""
        self._helper.store_owed()

    def _let_out(self) -> None:
        self._helper.checkpoint("between commit and witness")
        self._settle()

    def _begin(self) -> float:
        self.asked_s = self._clock()
        self._helper.store_owed()
        return self.asked_s

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
