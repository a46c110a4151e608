"""Verified epochs of many hosts: objects while they are in use, 99 bytes each for the rest.

At 100,000 hosts and 32 epochs each, objects alone would fill 3 GiB; nearly all of them belong to
hours that are over and are asked for by late reports only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from privacy.masks import derive_box_key, derive_helper_keys

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
        """The epoch of this id, dead ones included."""
        name = host_id + epoch_id
        known = self._used.get(name)
        if known is None:
            rows = self._rows.get(host_id, b"")
            at = _place(rows, epoch_id)
            if at >= 0:
                known = self._used[name] = _unpacked(host_id, rows, at)
        return known

    def put(self, known: KnownEpoch) -> None:
        """Add an epoch, or take over what has changed of it."""
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
        """The marks of a host's epochs, the smallest counter first."""
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
    """When the epoch of a row ends."""
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
