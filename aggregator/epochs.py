"""The epochs a party has verified: one book for the Leader and the Helper, each with its seal.

Twins: two epochs of one (host, epoch_id) that both carry the host's signature and differ in their
hash are dead from then on. A redelivery is no twin, and a forged one does not verify.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from privacy.masks import derive_box_key, derive_helper_keys
from privacy.sealing import HpkeKeyPair, SealError
from privacy.signing import verify
from wire import labels
from wire.bounds import MAX_EPOCH_S
from wire.epoch import Epoch, EpochHeader
from wire.rejection import Reason, ReportRejected

from .directory import Directory

EPOCHS_PER_HOUR: Final = 12
HOUR_S: Final = 3600
AHEAD_S: Final = HOUR_S
"""An epoch may begin this long after the party's clock: hosts' clocks are not the party's."""

CLOCK_STEP_S: Final = 60
"""A host's clock may be set back this far between two epochs."""

Mark = tuple[int, int]
"""(ledger_ctr, not_before) of an epoch: of one host both rise together."""


class Seal(Enum):
    """Which of an epoch's two seals a party opens."""

    HELPER = labels.SEAL_H
    LEADER = labels.SEAL_L


@dataclass(slots=True)
class KnownEpoch:
    """A verified epoch; `key` is K_H or K_L, derived keys are kept per task."""

    host_id: bytes
    epoch_id: bytes
    epoch_hash: bytes
    not_before: int
    not_after: int
    ledger_ctr: int
    dead: bool
    key: bytes | None = field(default=None, repr=False)
    helper_keys: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    box_keys: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def covers(self, window_end: int, lateness_s: int) -> bool:
        """Whether a report of a window may be sealed under this epoch."""
        return self.not_before <= window_end + lateness_s and self.not_after > window_end

    def keys_of_helper(self, task_id: bytes) -> tuple[bytes, bytes]:
        """(k_mask, k_id) of this epoch and task."""
        keys = self.helper_keys.get(task_id)
        if keys is None:
            keys = derive_helper_keys(self._key(), self.epoch_hash, task_id)
            self.helper_keys[task_id] = keys
        return keys

    def box_key(self, task_id: bytes) -> bytes:
        """k_box of this epoch and task."""
        key = self.box_keys.get(task_id)
        if key is None:
            key = self.box_keys[task_id] = derive_box_key(self._key(), self.epoch_hash, task_id)
        return key

    def _key(self) -> bytes:
        if self.key is None:
            raise ValueError("epoch key: expected an opened seal, got none")
        return self.key


@dataclass(frozen=True, slots=True)
class AdmittedEpoch:
    """What a new epoch, or a twin, asks the party to remember durably."""

    known: KnownEpoch
    header: EpochHeader
    raw: bytes
    twin: bool


class EpochBook:
    """Verified epochs by (host, epoch_id), with the rules that hold over all of them."""

    def __init__(
        self,
        directory: Directory,
        seal: Seal,
        keys: Callable[[bytes], HpkeKeyPair | None],
        counters: Mapping[bytes, Mark] | None = None,
    ) -> None:
        """Start a book.

        keys       key id (8 B) -> this party's pair, None when it is not or no longer held
        counters   host_id -> largest ledger_ctr seen before a restart, and its not_before
        """
        self._directory, self._seal, self._keys = directory, seal, keys
        self._epochs: dict[bytes, KnownEpoch] = {}
        self._marks: dict[bytes, list[Mark]] = {h: [mark] for h, mark in (counters or {}).items()}

    def __len__(self) -> int:
        return len(self._epochs)

    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        """A verified epoch, dead ones included; its key may be gone after a restart."""
        return self._epochs.get(host_id + epoch_id)

    def remember(self, known: KnownEpoch) -> None:
        """Take over an epoch from the durable state."""
        self._epochs[known.host_id + known.epoch_id] = known
        marks = self._marks.setdefault(known.host_id, [])
        mark = (known.ledger_ctr, known.not_before)
        if mark not in marks:
            insort(marks, mark)

    def counter(self, host_id: bytes) -> Mark:
        """The largest ledger counter seen of a host and its not_before; (-1, 0) without one."""
        marks = self._marks.get(host_id)
        return marks[-1] if marks else (-1, 0)

    def admit(self, raw: bytes, now_s: float) -> AdmittedEpoch | None:
        """Verify one epoch; None for a redelivery of one already open.

        now_s       the party's own clock
        Raises      ReportRejected: length, version, field or one of epoch_*
        """
        epoch = Epoch.decode(raw)
        self._verify_signature(epoch, raw)
        eh = epoch.hash()
        known = self._epochs.get(epoch.header.host_id + epoch.header.epoch_id)
        if known is not None:
            return self._again(known, epoch, eh, raw)
        self._check_rules(epoch.header, now_s)
        known = KnownEpoch(
            epoch.header.host_id,
            epoch.header.epoch_id,
            eh,
            epoch.header.not_before,
            epoch.header.not_after,
            epoch.header.ledger_ctr,
            dead=False,
            key=self._open(epoch),
        )
        self.remember(known)
        return AdmittedEpoch(known, epoch.header, raw, twin=False)

    def restore(self, raw: bytes, *, dead: bool) -> None:
        """Take over an epoch that was verified before a restart; its rules are not judged again.

        Raises      ReportRejected when its key is destroyed or the bytes are damaged
        """
        epoch = Epoch.decode(raw)
        header = epoch.header
        self.remember(
            KnownEpoch(
                header.host_id,
                header.epoch_id,
                epoch.hash(),
                header.not_before,
                header.not_after,
                header.ledger_ctr,
                dead=dead,
                key=None if dead else self._open(epoch),
            )
        )

    def _again(
        self, known: KnownEpoch, epoch: Epoch, eh: bytes, raw: bytes
    ) -> AdmittedEpoch | None:
        if eh != known.epoch_hash:
            first = not known.dead
            self.kill(known)
            if first:
                return AdmittedEpoch(known, epoch.header, raw, twin=True)
            raise ReportRejected(Reason.EPOCH_TWIN, "one epoch per epoch_id", "another")
        if known.key is None:  # after a restart: verified before, opened again
            known.key = self._open(epoch)
        return None

    def kill(self, known: KnownEpoch) -> None:
        """Make an epoch dead from now on; committed answers stand."""
        known.dead = True

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
        past_s = header.not_after + self._directory.longest_retention_s()
        if past_s <= now_s or header.not_before > now_s + AHEAD_S:
            raise ReportRejected(
                Reason.EPOCH_INTERVAL, f"an epoch of use about {int(now_s)}", header.not_before
            )
        marks = self._marks.get(header.host_id, [])
        mark = (header.ledger_ctr, header.not_before)
        at = bisect_left(marks, mark)
        self._check_order(marks, at, mark)
        times = sorted([header.not_before, *(begun_s for _, begun_s in marks)])
        for first_s, last_s in zip(times, times[EPOCHS_PER_HOUR:], strict=False):
            if last_s - first_s < HOUR_S and first_s <= header.not_before <= last_s:
                raise ReportRejected(
                    Reason.EPOCH_RATE, f"at most {EPOCHS_PER_HOUR} begun in an hour", "more"
                )

    def _check_order(self, marks: list[Mark], at: int, mark: Mark) -> None:
        """Counters are used once, and rise with time: a ledger rolled back shows here."""
        counter, not_before = mark
        for other, begun_s in marks[max(0, at - 1) : at + 1]:
            earlier, later = sorted([(other, begun_s), (counter, not_before)])
            if other == counter or earlier[1] > later[1] + CLOCK_STEP_S:
                raise ReportRejected(
                    Reason.EPOCH_COUNTER, f"a counter that agrees with {other}", counter
                )

    def _open(self, epoch: Epoch) -> bytes:
        helper = self._seal is Seal.HELPER
        kid = epoch.header.helper_kid if helper else epoch.header.leader_kid
        pair = self._keys(kid)
        if pair is None:
            raise ReportRejected(Reason.EPOCH_KEY_ID, "a key of this party", kid.hex())
        sealed = epoch.seal_h if helper else epoch.seal_l
        try:
            return pair.open(sealed, self._seal.value + epoch.header.encode())
        except SealError as error:
            raise ReportRejected(Reason.EPOCH_SEAL, "a seal of this epoch", "another") from error

    def prune(self, now_s: float, retention_s: int) -> int:
        """Forget epochs that no report can name any more; returns how many."""
        past = [k for k, e in self._epochs.items() if e.not_after + retention_s <= now_s]
        for key in past:
            del self._epochs[key]
        begun_s = now_s - retention_s - MAX_EPOCH_S
        for marks in self._marks.values():
            # The largest stays for ever: a counter below it must have begun before it.
            kept = [mark for mark in marks[:-1] if mark[1] > begun_s]
            marks[:-1] = kept
        return len(past)
