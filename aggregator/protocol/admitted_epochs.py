"""The epochs a party has verified: one book for the Leader and the Helper, each with its seal.

Twins: two epochs of one (host, epoch_id) that both carry the host's signature and differ in their
hash are dead from then on. A redelivery is no twin, and a forged one does not verify.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from privacy.sealing import HpkeKeyPair, SealError
from privacy.signing import verify
from wire import labels
from wire.epoch import HEADER_BYTES, Epoch, EpochHeader, epoch_hash
from wire.rejection import Reason, ReportRejected

from .directory import Directory
from .known_epochs import KnownEpoch, KnownEpochs, Mark

EPOCHS_PER_HOUR: Final = 12
HOUR_S: Final = 3600
AHEAD_S: Final = HOUR_S
"""An epoch may begin this long after the party's clock: hosts' clocks are not the party's."""

CLOCK_STEP_S: Final = 60
"""A host's clock may be set back this far between two epochs."""


class Seal(Enum):
    """Which of an epoch's two seals a party opens."""

    HELPER = labels.SEAL_H
    LEADER = labels.SEAL_L


@dataclass(frozen=True, slots=True)
class AdmittedEpoch:
    """What a new epoch, or a twin, asks the party to remember durably."""

    known: KnownEpoch
    header: EpochHeader
    raw: bytes = field(repr=False)
    twin: bool


class AdmittedEpochs:
    """Verified epochs by (host, epoch_id), with the rules that hold over all of them."""

    def __init__(
        self,
        directory: Directory,
        seal: Seal,
        keys: Callable[[bytes], HpkeKeyPair | None],
        counters: Mapping[bytes, Mark] | None = None,
        raw_of: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """Start a book.

        keys       key id (8 B) -> this party's pair, None when it is not or no longer held
        counters   host_id -> largest ledger_ctr seen before a restart, and its not_before
        raw_of     host_id || epoch_id -> an epoch as it came, to open it again after a restart
        """
        self._directory, self._keys, self._raw_of = directory, keys, raw_of
        self.seal = seal
        self._known = KnownEpochs()
        self._largest: dict[bytes, Mark] = dict(counters or {})

    def __len__(self) -> int:
        return len(self._known)

    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        """A verified epoch, dead ones included; its key may be gone after a restart."""
        known = self._known.find(host_id, epoch_id)
        if known is not None and known.key is None and not known.dead:
            self._open_again(known)
        return known

    def _open_again(self, known: KnownEpoch) -> None:
        raw = self._raw_of(known.host_id + known.epoch_id) if self._raw_of else None
        if raw is not None:
            with suppress(ReportRejected):  # its sealing key is destroyed
                known.key = self._open(Epoch.decode(raw), raw)
                self._known.put(known)

    def remember(self, known: KnownEpoch) -> None:
        """Take over an epoch from the durable state."""
        self._known.put(known)
        mark = (known.ledger_ctr, known.not_before)
        self._largest[known.host_id] = max(mark, self.counter(known.host_id))

    def counter(self, host_id: bytes) -> Mark:
        """The largest ledger counter seen of a host and its not_before; (-1, 0) without one."""
        return self._largest.get(host_id, (-1, 0))

    def admit(self, raw: bytes, now_s: float) -> AdmittedEpoch | None:
        """Verify one epoch; None for a redelivery of one already open.

        now_s       the party's own clock
        Raises      ReportRejected: length, version, field or one of epoch_*
        """
        epoch = Epoch.decode(raw)
        self._verify_signature(epoch, raw)
        known = self.find(epoch.header.host_id, epoch.header.epoch_id)
        if known is not None:
            return self._again(known, epoch, raw)
        self._check_rules(epoch.header, now_s)
        known = _known(epoch, raw, dead=False)
        known.key = self._open(epoch, raw)
        self.remember(known)
        return AdmittedEpoch(known, epoch.header, raw, twin=False)

    def restore(self, raw: bytes, *, dead: bool) -> None:
        """Take over an epoch that was verified before a restart; it is opened when it is asked for.

        Raises      ReportRejected when the bytes are damaged
        """
        self.remember(_known(Epoch.decode(raw), raw, dead=dead))

    def _again(self, known: KnownEpoch, epoch: Epoch, raw: bytes) -> AdmittedEpoch | None:
        if epoch_hash(raw) != known.epoch_hash:
            first = not known.dead
            self.kill(known)
            if first:
                return AdmittedEpoch(known, epoch.header, raw, twin=True)
            raise ReportRejected(Reason.EPOCH_TWIN, "one epoch per epoch_id", "another")
        if known.key is None:  # after a restart: verified before, opened again
            known.key = self._open(epoch, raw)
            self._known.put(known)
        return None

    def kill(self, known: KnownEpoch) -> None:
        """Make an epoch dead from now on; committed answers stand."""
        known.dead = True
        self._known.put(known)

    def _verify_signature(self, epoch: Epoch, raw: bytes) -> None:
        header = epoch.header
        roster = self._directory.rosters.get(header.roster_ver)
        entry = None if roster is None else roster.entries.get(header.host_id)
        if entry is None:
            raise ReportRejected(
                Reason.EPOCH_ROSTER, f"a host of roster {header.roster_ver}", "another"
            )
        if not verify(entry.ed25519_pk, raw[:-64], epoch.signature):
            raise ReportRejected(Reason.EPOCH_SIGNATURE, "the host's signature", "another")

    def _check_rules(self, header: EpochHeader, now_s: float) -> None:
        """The order in which epochs come says nothing: partitions and batches mix it."""
        if header.not_before > now_s + AHEAD_S or self._is_past(header, now_s):
            raise ReportRejected(
                Reason.EPOCH_INTERVAL, f"an epoch of use about {int(now_s)}", header.not_before
            )
        marks = self._marks(header.host_id)
        if not marks:
            return
        mark = (header.ledger_ctr, header.not_before)
        self._check_order(marks, bisect_left(marks, mark), mark, now_s)
        _check_rate(header.not_before, [begun_s for _, begun_s in marks])

    def _is_past(self, header: EpochHeader, now_s: float) -> bool:
        """Whether no report can name the epoch any more."""
        end_s = header.not_after
        return end_s <= now_s and end_s + self._directory.longest_retention_s() <= now_s

    def _check_order(self, marks: list[Mark], at: int, mark: Mark, now_s: float) -> None:
        """Counters are used once, and rise with time: a ledger rolled back shows here.

        An epoch that begins ahead of this party's clock was opened by a clock that was ahead: what
        was opened after it, once that clock was put right, begins earlier.
        """
        counter, not_before = mark
        for other, begun_s in marks[max(0, at - 1) : at + 1]:
            earlier, later = sorted([(other, begun_s), (counter, not_before)])
            ahead = other < counter and begun_s > now_s + CLOCK_STEP_S
            backward = earlier[1] > later[1] + CLOCK_STEP_S
            if other == counter or (backward and not ahead):
                raise ReportRejected(
                    Reason.EPOCH_COUNTER, f"a counter that agrees with {other}", counter
                )

    def _open(self, epoch: Epoch, raw: bytes) -> bytes:
        helper = self.seal is Seal.HELPER
        kid = epoch.header.helper_kid if helper else epoch.header.leader_kid
        pair = self._keys(kid)
        if pair is None:
            raise ReportRejected(Reason.EPOCH_KEY_ID, "a key of this party", kid.hex())
        sealed = epoch.seal_h if helper else epoch.seal_l
        try:
            return pair.open(sealed, self.seal.value + raw[:HEADER_BYTES])
        except SealError as error:
            raise ReportRejected(Reason.EPOCH_SEAL, "a seal of this epoch", "another") from error

    def _marks(self, host_id: bytes) -> list[Mark]:
        """Of the epochs of a host that are kept, and its largest for ever, in their order."""
        marks = self._known.marks(host_id)
        largest = self._largest.get(host_id)
        return marks if largest is None or largest in marks[-1:] else [*marks, largest]

    def prune(self, now_s: float, retention_s: int) -> int:
        """Forget epochs that no report can name any more; returns how many."""
        return self._known.forget(now_s - retention_s, now_s)


def _check_rate(begun_s: int, others_s: list[int]) -> None:
    """Refuse an epoch with which more than EPOCHS_PER_HOUR would begin within some hour."""
    near = [other for other in others_s if abs(other - begun_s) < HOUR_S]
    if len(near) < EPOCHS_PER_HOUR:
        return
    times = sorted([begun_s, *near])
    for first_s, last_s in zip(times, times[EPOCHS_PER_HOUR:], strict=False):
        if last_s - first_s < HOUR_S and first_s <= begun_s <= last_s:
            raise ReportRejected(
                Reason.EPOCH_RATE, f"at most {EPOCHS_PER_HOUR} begun in an hour", "more"
            )


def _known(epoch: Epoch, raw: bytes, *, dead: bool) -> KnownEpoch:
    header = epoch.header
    times = header.not_before, header.not_after, header.ledger_ctr
    return KnownEpoch(header.host_id, header.epoch_id, epoch_hash(raw), *times, dead)
