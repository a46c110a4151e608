"""What a file registers, packed. A stranger's file made it, in a child: it is read with bounds."""

from __future__ import annotations

import json
import mmap
import zlib
from typing import Any, Final

import numpy as np

from collectors.binaries.proc_maps import Module

from .host_stubs import CodePart, HostStubs
from .loaded_file import Numbers

MOST_PACKED: Final = 16 << 20
_MOST_BYTES: Final = 48 << 20
"""In this process, which has 512 MiB with its children; a table of PyTorch's library takes 6."""
_MOST_HEAD: Final = 1 << 16
_MOST_ENTRIES: Final = 500_000
_MOST_PARTS: Final = 64
_PAGE: Final = mmap.PAGESIZE
_HOW: Final = ("", "import", "symbol", "structure")


def pack(stubs: HostStubs) -> bytes:
    hosts = sorted(stubs.names)
    texts = [stubs.names[host].encode("ascii") for host in hosts]
    ends = np.cumsum([0, *map(len, texts)])
    number = {host: place for place, host in enumerate(hosts)}
    returns = sorted(stubs.returns)
    head = {
        "how": stubs.how, "missed": stubs.missed, "stubs": len(hosts), "returns": len(returns),
        "launches": stubs.launches, "code": stubs.code,
    }  # fmt: skip
    columns = (hosts, ends, returns, [number[stubs.returns[place]] for place in returns])
    body = b"".join(np.array(column, "<i8").tobytes() for column in columns)
    return zlib.compress(json.dumps(head).encode() + b"\n" + body + b"".join(texts))


def _place(ascending: Numbers, wanted: int) -> int | None:
    at = int(np.searchsorted(ascending, wanted))
    return at if at < len(ascending) and int(ascending[at]) == wanted else None


class StubTable:
    """Names by virtual address. `size` is what it takes in memory; see HostStubs for the rest."""

    def __init__(self, packed: bytes) -> None:
        """Unpack. Raises ValueError for anything but what `pack` makes."""
        try:
            inflate = zlib.decompressobj()
            raw = inflate.decompress(packed, _MOST_BYTES)
            head = json.loads(raw[: raw.index(b"\n", 0, _MOST_HEAD)])
            self._read(raw, head)
        except (zlib.error, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError(f"expected a packed table of stubs: {error}") from None
        self.size = len(raw)

    def _read(self, raw: bytes, head: Any) -> None:
        stubs, returns = head["stubs"], head["returns"]
        self.how, self.missed = head["how"], head["missed"]
        self.launches = [int(place) for place in head["launches"]]
        self.code = [CodePart(*map(int, part)) for part in head["code"]]
        if self.how not in _HOW or not isinstance(self.missed, int):
            raise ValueError("expected how stubs were found")
        if len(self.code) > _MOST_PARTS:
            raise ValueError(f"expected at most {_MOST_PARTS} parts of code")
        if not 0 <= stubs <= _MOST_ENTRIES or not 0 <= returns <= _MOST_ENTRIES:
            raise ValueError(f"expected at most {_MOST_ENTRIES} stubs")
        at = raw.index(b"\n") + 1
        columns = []
        for count in (stubs, stubs + 1, returns, returns):
            columns.append(np.frombuffer(raw, "<i8", count, at))
            at += 8 * count
        self._hosts, self._ends, self._returns, self._stubs_of = columns
        self._raw, self._texts_at = raw, at
        if not raw[at:].isascii():
            raise ValueError("expected names of ASCII")
        outside = returns and not 0 <= self._stubs_of.min() <= self._stubs_of.max() < stubs
        whole = not self._ends[0] and self._ends[-1] == len(raw) - at
        if outside or not whole or (np.diff(self._ends) < 0).any():
            raise ValueError("expected names within the text")

    def __len__(self) -> int:
        return len(self._hosts)

    def name(self, address: int) -> str | None:
        """Give the kernel of a host stub."""
        at = _place(self._hosts, address)
        return None if at is None else self._text(at)

    def launched(self, returns_to: int) -> str | None:
        """Give the kernel whose stub's launch returns to an address."""
        at = _place(self._returns, returns_to)
        return None if at is None else self._text(int(self._stubs_of[at]))

    def bias(self, module: Module) -> int | None:
        """Give how far above its own addresses the file of a module was loaded."""
        for part in self.code:
            if part.offset - _PAGE < module.offset < part.offset + part.size:
                return module.start - (part.address + module.offset - part.offset)
        return None

    def _text(self, at: int) -> str:
        begin, end = (self._texts_at + int(self._ends[at + more]) for more in (0, 1))
        return self._raw[begin:end].decode("ascii")
