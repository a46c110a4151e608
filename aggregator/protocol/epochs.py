"""The epochs a party has verified: objects while they are in use, 99 bytes each for the rest.

Twins, two epochs of one (host, epoch_id) with the host's signature and other hashes, are dead from
then on. At 100,000 hosts and 32 epochs each, objects alone would fill 3 GiB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from typing import Final

from privacy.masks import derive_box_key, derive_helper_keys
from privacy.sealing import HpkeKeyPair, SealError
from privacy.signing import verify
from wire import labels
from wire.epoch import HEADER_BYTES, Epoch, EpochHeader, epoch_hash
from wire.rejection import Reason, ReportRejected

from .directory import Directory

Mark = tuple[int, int]
"""(ledger_ctr, not_before) of an epoch: of one host both rise together."""

_ROW: Final = Struct("<16s32s32sQQHB")
"""epoch_id, epoch_hash, key, ledger_ctr, not_before, length in seconds, flags."""

_MARK: Final = Struct("<80xQQ3x")
"""Of a row, its mark."""

_END: Final = Struct("<QH")
_END_AT: Final = 88
_DEAD: Final = 1
_OPEN: Final = 2


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
        return self.not_before <= window_end + lateness_s and self.not_after > window_end

    def keys_of_helper(self, task_id: bytes) -> tuple[bytes, bytes]:
        """(k_mask, k_id) of this epoch and task."""
        keys = self.helper_keys.get(task_id)
        if keys is None:
            keys = derive_helper_keys(self._key(), self.epoch_hash, task_id)
            self.helper_keys[task_id] = keys
        return keys

    def box_key(self, task_id: bytes) -> bytes:
        key = self.box_keys.get(task_id)
        if key is None:
            key = self.box_keys[task_id] = derive_box_key(self._key(), self.epoch_hash, task_id)
        return key

    def _key(self) -> bytes:
        if self.key is None:
            raise ValueError("epoch key: expected an opened seal, got none")
        return self.key


class KnownEpochs:
    """Epochs by (host, epoch_id); a host's rows lie in one byte string, those that end first first.

    `find` gives an object, which stays with its derived keys until the epoch is past; a change of
    it is kept by `put` alone.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._used: dict[bytes, KnownEpoch] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        name = host_id + epoch_id
        known = self._used.get(name)
        if known is None:
            rows = self._rows.get(host_id, b"")
            at = _place(rows, epoch_id)
            if at >= 0:
                known = self._used[name] = _unpacked(host_id, rows, at)
        return known

    def put(self, known: KnownEpoch) -> None:
        rows, row = self._rows.get(known.host_id, b""), _packed(known)
        at = _place(rows, known.epoch_id)
        if at >= 0:
            self._used[known.host_id + known.epoch_id] = known
            self._rows[known.host_id] = rows[:at] + row + rows[at + _ROW.size :]
            return
        at = len(rows)
        while at and _end(rows, at - _ROW.size) > known.not_after:
            at -= _ROW.size
        self._rows[known.host_id] = rows[:at] + row + rows[at:]
        self._count += 1

    def marks(self, host_id: bytes) -> list[Mark]:
        return sorted(_MARK.iter_unpack(self._rows.get(host_id, b"")))

    def forget(self, ended_s: float, now_s: float) -> int:
        """Forget the epochs that ended by `ended_s`; gives how many.

        now_s       of epochs that ended by then the row alone stays
        """
        for name in [name for name, known in self._used.items() if known.not_after <= now_s]:
            del self._used[name]
        before = self._count
        for host in [host for host, rows in self._rows.items() if _end(rows, 0) <= ended_s]:
            rows, at = self._rows[host], 0
            while at < len(rows) and _end(rows, at) <= ended_s:
                at += _ROW.size
            self._count -= at // _ROW.size
            if at < len(rows):
                self._rows[host] = rows[at:]
            else:
                del self._rows[host]
        return before - self._count


def _place(rows: bytes, epoch_id: bytes) -> int:
    """Where the row of an epoch begins; -1 when there is none."""
    at = rows.find(epoch_id)
    while at >= 0 and at % _ROW.size:
        at = rows.find(epoch_id, at + 1)
    return at


def _end(rows: bytes, at: int) -> int:
    not_before, length_s = _END.unpack_from(rows, at + _END_AT)
    end: int = not_before + length_s
    return end


def _packed(known: KnownEpoch) -> bytes:
    flags = _DEAD * known.dead | _OPEN * (known.key is not None)
    return _ROW.pack(
        known.epoch_id,
        known.epoch_hash,
        known.key or b"",
        known.ledger_ctr,
        known.not_before,
        known.not_after - known.not_before,
        flags,
    )


def _unpacked(host_id: bytes, rows: bytes, at: int) -> KnownEpoch:
    epoch_id, epoch_hash, key, ledger_ctr, not_before, length_s, flags = _ROW.unpack_from(rows, at)
    return KnownEpoch(
        host_id,
        epoch_id,
        epoch_hash,
        not_before,
        not_before + length_s,
        ledger_ctr,
        dead=bool(flags & _DEAD),
        key=key if flags & _OPEN else None,
    )


EPOCHS_PER_HOUR: Final = 12
HOUR_S: Final = 3600
AHEAD_S: Final = HOUR_S
"""An epoch may begin this long after the party's clock: hosts' clocks are not the party's."""

CLOCK_STEP_S: Final = 60
"""A host's clock may be set back this far between two epochs."""


class Seal(Enum):
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
            first, known.dead = not known.dead, True  # from now on: committed answers stand
            self._known.put(known)
            if first:
                return AdmittedEpoch(known, epoch.header, raw, twin=True)
            raise ReportRejected(Reason.EPOCH_TWIN, "one epoch per epoch_id", "another")
        if known.key is None:  # after a restart: verified before, opened again
            known.key = self._open(epoch, raw)
            self._known.put(known)
        return None

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
        # No report can name an epoch whose retention is over.
        past = header.not_after + self._directory.longest_retention_s() <= now_s
        if header.not_before > now_s + AHEAD_S or past:
            raise ReportRejected(
                Reason.EPOCH_INTERVAL, f"an epoch of use about {int(now_s)}", header.not_before
            )
        marks = self._marks(header.host_id)
        if not marks:
            return
        mark = (header.ledger_ctr, header.not_before)
        self._check_order(marks, bisect_left(marks, mark), mark, now_s)
        _check_rate(header.not_before, [begun_s for _, begun_s in marks])

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
        return self._known.forget(now_s - retention_s, now_s)


def _check_rate(begun_s: int, others_s: list[int]) -> None:
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
