"""The ledger's fence: a small file beside the host's key that remembers the ledger's generation.

Two slots are written in turn, so that a torn write leaves the other one readable. A slot is
ledger_id 16 || generation 8 || SHA-256 of both [:8], 32 bytes, below any disk's sector.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from .ledger_errors import LedgerBusy, LedgerCorrupt, LedgerMissing

_SLOT: Final = struct.Struct(">16sQ8s")
# Slots lie a sector apart: a torn sector cannot take both.
_STRIDE: Final = 4096


@dataclass(frozen=True, slots=True)
class FenceMark:
    """The ledger a fence belongs to and the newest generation it has seen."""

    ledger_id: bytes
    generation: int

    def encode(self) -> bytes:
        """Give the 32 bytes of a slot."""
        head = self.ledger_id + self.generation.to_bytes(8, "big")
        return head + hashlib.sha256(head).digest()[:8]


def _decode_slot(slot: bytes) -> FenceMark | None:
    if len(slot) != _SLOT.size:
        return None
    ledger_id, generation, check = _SLOT.unpack(slot)
    mark = FenceMark(ledger_id, generation)
    return mark if mark.encode()[-8:] == check else None


class Fence:
    """An open, exclusively locked fence file."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Self:
        """Open and lock the file.

        Raises      LedgerMissing when it is absent, LedgerBusy when another process holds it
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise LedgerMissing(f"expected the ledger's fence {path}, found no file") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LedgerBusy(f"expected to be the only agent, {path} is locked") from None
        return cls(fd, path)

    def read(self) -> FenceMark:
        """Give the newest readable slot; LedgerCorrupt when neither is."""
        slots = (_decode_slot(os.pread(self._fd, _SLOT.size, k * _STRIDE)) for k in (0, 1))
        marks = [mark for mark in slots if mark is not None]
        if not marks:
            raise LedgerCorrupt(f"expected a fence slot in {self._path}, found none that checks")
        return max(marks, key=lambda mark: mark.generation)

    def write(self, mark: FenceMark) -> None:
        """Write a mark durably, over the slot that does not hold the newest one."""
        os.pwrite(self._fd, mark.encode(), (mark.generation % 2) * _STRIDE)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)
