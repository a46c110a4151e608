"""A Leader that plays tricks on its Helper: what it asks for, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.interfaces import BatchReply, HelperPort, HelperStatus, ReleaseReply
from simulator.engine.exact_parties import ExactParties
from wire.batch import Batch, SignedBatch

from .cohort import SMALL, START_S, Cohort, CohortPlan, honest_rows

TRICKS: Final = (
    "all_colluders", "forged_host", "other_signature", "replay_batch", "split_batch", "drop_hosts",
    "alter_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrickResult:
    """What one trick came to.

    answer      "share", or the reason of the Helper's refusal
    cleared     reason -> hosts that the Helper left out of the trick's sum
    sums        different sums of this window that the Leader got: two would give their difference
    released    the honest window was released
    n           hosts in it
    """

    trick: str
    answer: str
    cleared: Mapping[str, int]
    sums: int
    released: bool
    n: int


def play_trick(trick: str, plan: CohortPlan = SMALL) -> TrickResult:
    """Let the Leader try one trick in a window of an otherwise honest cohort.

    Raises  ValueError for a trick that is not one of TRICKS
    """
    if trick not in TRICKS:
        raise ValueError(f"expected one of {', '.join(TRICKS)}, got {trick}")
    port: list[_Tricky] = []

    def between(parties: ExactParties) -> Callable[[HelperPort], HelperPort]:
        def wrap(inner: HelperPort) -> HelperPort:
            port.append(_Tricky(inner, parties, trick))
            return port[0]

        return wrap

    with Cohort(plan, between) as cohort:
        port[0].colluders = cohort.task.t
        vectors = cohort.encode(honest_rows(cohort, plan.hosts, plan.seed))
        vectors += cohort.noise(plan.hosts)
        cohort.send(cohort.seal(vectors, START_S))
        settled = cohort.settle(START_S)
        tricky = port[0]
        done = settled.released is not None
        sums = len(tricky.shares)
        if trick == "alter_share":
            tricky.answer = ", ".join(settled.refused)
        return TrickResult(trick, tricky.answer, tricky.cleared, sums, done, settled.n)


class _Tricky:
    """The Leader's own port, in the hands of a Leader that also asks for something else.

    answer, cleared     as in TrickResult
    shares              every share that it got
    """

    def __init__(self, inner: HelperPort, parties: ExactParties, trick: str) -> None:
        self._inner, self._parties, self._trick = inner, parties, trick
        self.colluders = 0
        self.answer = "not tried"
        self.cleared: Mapping[str, int] = {}
        self.shares: set[bytes] = set()

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        """Ask for the trick's batch before or after the honest one."""
        honest = SignedBatch.decode(signed_batch).batch
        first = self._trick not in {"replay_batch", "split_batch", "alter_share"}
        if not epochs_complete:
            # The Helper has to know the epochs first: the honest question teaches it.
            return self._inner.submit_batch(signed_batch, epochs_complete=False)
        if first:
            self._try(honest, signed_batch)
        reply = self._inner.submit_batch(signed_batch, epochs_complete=True)
        self._note(reply)
        if self._trick == "alter_share" and reply.share:
            return replace(reply, share=_flipped(reply.share))
        if not first and reply.share:
            self._try(honest, signed_batch)
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._inner.status()

    def _try(self, honest: Batch, signed: bytes) -> None:
        reply = self._inner.submit_batch(self._asked(honest, signed), epochs_complete=True)
        self.answer = "share" if reply.share else reply.refusal or "need_epochs"
        self.cleared = dict(reply.cleared)
        self._note(reply)

    def _note(self, reply: BatchReply) -> None:
        if reply.share:
            self.shares.add(reply.share)

    def _asked(self, honest: Batch, signed: bytes) -> bytes:
        entries = honest.entries
        match self._trick:
            case "replay_batch":
                return signed
            case "all_colluders":
                entries = entries[: self.colluders]
            case "split_batch":
                entries = entries[1:]
            case "drop_hosts":
                entries = entries[: len(entries) - 1]
            case "forged_host":
                entries = _with_forged_host(entries)
            case "other_signature":
                return SignedBatch(honest, bytes(64)).encode()
            case _:
                pass
        return self._sign(replace(honest, entries=entries))

    def _sign(self, batch: Batch) -> bytes:
        return SignedBatch(batch, self._parties.leader_key.sign(batch.unsigned())).encode()


def _flipped(share: bytes) -> bytes:
    """Change the last word of the mask sum, ahead of the Helper's signature."""
    place = len(share) - 65
    return share[:place] + bytes([share[place] ^ 1]) + share[place + 1 :]


def _with_forged_host(entries: NDArray[np.void]) -> NDArray[np.void]:
    """Put two hosts in with a tag that they never made."""
    forged = entries.copy()
    forged["tag_h"][:2] = bytes(16)
    return forged
