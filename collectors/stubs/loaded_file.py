"""A program or library as its loader makes it: code, pointers that are filled, names it asks for.

Nothing is run or mapped; files are untrusted, and every table is bounded.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from collectors.binaries.elf import (
    ElfBytes,
    ElfError,
    Machine,
    Segment,
    defined_functions,
    named,
    read_layout,
    string_section,
)
from collectors.binaries.elf_file import ElfFile

MOST_NAME: Final = 16_384
_MOST_CODE: Final = 1 << 30
_MOST_RELOCATIONS: Final = 2_000_000
_MOST_SYMBOLS: Final = 2_000_000
_MOST_DYNAMIC: Final = 65_536
_MOST_WRAPPERS: Final = 100_000
_MOST_SECTIONS_OF_CODE: Final = 1024
_PIECE: Final = 1 << 20
_OVERLAP: Final = 16
"""Bytes of a piece that the next one begins with: no instruction is cut in two."""
_BLOCK: Final = 1 << 16
_BLOCKS: Final = 128
USER_SPACE: Final = 1 << 62

_LOAD, _DYNAMIC = 1, 2
_EXECUTE, _WRITE = 1, 2
_PROGRAM_BITS, _ALLOCATED_CODE = 1, 6
_STRINGS, _SYMBOLS, _RELA, _RELA_BYTES, _PLT_BYTES, _PLT = 5, 6, 7, 8, 2, 23
_FILLED: Final = {Machine.X86_64: ((6, 7, 1), 8), Machine.ARM64: ((1025, 1026, 257), 1027)}
"""Relocations that fill a pointer: by symbol (GLOB_DAT, JUMP_SLOT, 64), and relative."""
_WRAPPER: Final = bytes.fromhex("b1436246")

_RELOCATION: Final = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_SYMBOL: Final = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


def ascending(addresses: Collection[int]) -> Numbers:
    return np.array(sorted(one for one in addresses if 0 <= one < USER_SPACE), np.int64)


def among(numbers: Numbers, wanted: Numbers) -> NDArray[np.bool_]:
    """Tell which numbers are wanted; `wanted` ascends. NumPy's isin imports parts of it late."""
    if not len(wanted):
        return np.zeros(len(numbers), bool)
    places = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.asarray(wanted[places] == numbers)


class LoadedFile:
    def __init__(self, file: BinaryIO) -> None:
        """Read headers and relocations. Raises ElfError."""
        self._content = ElfBytes(file)
        self.layout = read_layout(self._content)
        self.machine = self.layout.machine
        self._file = file
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._loaded = sorted(
            (part for part in self.layout.segments if part.kind == _LOAD),
            key=lambda part: part.address,
        )
        self._begins = [part.address for part in self._loaded]
        self._dynamic = dict(reversed(list(self._dynamic_entries())))
        rows = self._relocations()
        kinds, relative = _FILLED[self.machine]
        kind = (rows["info"] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self._by_symbol = rows[among(kind, ascending(kinds))]
        self._symbol_of = (self._by_symbol["info"] >> np.uint64(32)).astype(np.int64)
        moved = rows[kind == relative]
        moved = moved[np.argsort(moved["offset"], kind="stable")]
        self._moved_at, self._moved_to = moved["offset"].copy(), moved["addend"].copy()
        self._symbols = self._symbol_table()
        self._filled = self._filled_by_symbol()

    @property
    def fixed(self) -> bool:
        """Whether it is loaded where it says: its code may hold addresses as numbers."""
        return bool(self._begins) and self._begins[0] > 0

    def holds(self, address: int) -> bool:
        return self._part(address) is not None

    def begin(self, address: int) -> int:
        """Give where the bytes begin that are loaded with those at an address."""
        part = self._part(address)
        return address if part is None else part.address

    def executable(self, address: int) -> bool:
        part = self._part(address)
        return part is not None and bool(part.flags & _EXECUTE)

    def read(self, address: int, size: int) -> bytes:
        """Give what is loaded at an address: fewer bytes where the segment ends."""
        part = self._part(address)
        if part is None:
            return b""
        size = min(size, part.address + part.file_size - address)
        begin = address - part.address + part.offset
        if size > 4 * _BLOCK:
            return self._content.read_up_to(begin, size)
        last = (begin + size - 1) // _BLOCK
        whole = b"".join(map(self._block, range(begin // _BLOCK, last + 1)))
        return whole[begin % _BLOCK : begin % _BLOCK + size]

    def text(self, address: int) -> str | None:
        """Give the C string of printable ASCII at an address, or None."""
        head = self.read(address, 256)
        raw, end, _ = (head if b"\0" in head else self.read(address, MOST_NAME)).partition(b"\0")
        if not end or not raw or not raw.isascii():
            return None
        text = raw.decode("ascii")
        return text if text.isprintable() else None

    def pointer(self, place: int) -> int | None:
        """Give what the pointer at an address holds after loading, as an address of this file.

        What this file defines may be taken from another one at run time: the other one's own
        registration gives the same name.
        """
        known = self._filled.get(place)
        if known is not None:
            return known
        if not 0 <= place < USER_SPACE:
            return None
        at = int(np.searchsorted(self._moved_at, np.uint64(place)))
        if at < len(self._moved_at) and int(self._moved_at[at]) == place:
            return int(self._moved_to[at])
        raw = self.read(place, 8)  # packed relocations, or a program at a fixed address
        return (int.from_bytes(raw, "little") or None) if len(raw) == 8 else None

    def slots(self, wanted: Collection[str]) -> dict[int, str]:
        """Give where the loader writes the addresses of functions that are asked for by name."""
        strings = self._dynamic.get(_STRINGS)
        if strings is None or not len(self._symbols):
            return {}
        longest = max(map(len, wanted)) + 1
        names: dict[int, str] = {}
        for row in np.flatnonzero(self._symbols["section"] == 0).tolist():
            raw = self.read(strings + int(self._symbols["name"][row]), longest)
            text = raw.partition(b"\0")[0].decode("ascii", "replace")
            if text in wanted:
                names[row] = text
        rows, places = self._symbol_of, self._by_symbol["offset"]
        named_rows = among(rows, ascending(names)) & (places < np.uint64(USER_SPACE))
        return {int(places[at]): names[int(rows[at])] for at in np.flatnonzero(named_rows).tolist()}

    def defined(self, wanted: Collection[str]) -> dict[int, str]:
        """Give the addresses of functions of these names, in either symbol table."""
        found: dict[int, str] = {}
        keys = tuple(name.encode() for name in wanted)
        for section in ElfFile(self._content, self.layout).symbol_tables():
            rows = defined_functions(self._content, section, section.name, self.layout)
            strings = string_section(self.layout, section)
            for row, name in named(self._content, strings, rows, keys):
                if name in keys:
                    found[int(rows[row]["value"])] = name.decode()
        return found

    def code(self) -> list[tuple[int, int, int]]:
        """Give (address, size, offset) of what is code: sections, else executable segments whole.

        A linker may put strings and 300 MB of fat binaries into the executable segment, too.
        """
        found: list[tuple[int, int, int]] = []
        for part in self._loaded:
            if not part.flags & _EXECUTE:
                continue
            inside = sorted(
                (s.address, s.size, s.offset)
                for s in self.layout.sections
                if s.kind == _PROGRAM_BITS
                and s.flags & _ALLOCATED_CODE == _ALLOCATED_CODE
                and s.size
                and part.address <= s.address
                and s.address + s.size <= part.address + part.file_size
                and s.offset - part.offset == s.address - part.address
            )[:_MOST_SECTIONS_OF_CODE]
            ends = [address + size for address, size, _ in inside]
            apart = all(end <= one[0] for end, one in zip(ends, inside[1:], strict=False))
            whole = (part.address, part.file_size, part.offset)
            found += inside if inside and apart else [whole]
        return found

    def pieces(self) -> Iterator[tuple[int, Bytes, int]]:
        """Yield (address, bytes, how many are this piece's own) of all code."""
        left = _MOST_CODE
        for address, whole, offset in self.code():
            size = min(whole, left)
            left -= size
            for begin in range(0, size, _PIECE):
                wanted = min(_PIECE + _OVERLAP, size - begin)
                raw = self._content.read_up_to(offset + begin, wanted)
                if len(raw) > _OVERLAP // 2:
                    yield address + begin, np.frombuffer(raw, np.uint8), min(_PIECE, len(raw))

    def wrappers(self) -> list[int]:
        """Give addresses of fat binary wrappers: in writable bytes, where there are any."""
        found: list[int] = []
        for part in sorted(self._loaded, key=lambda one: not one.flags & _WRITE):
            if part.flags & _EXECUTE or (found and not part.flags & _WRITE):
                continue
            end = min(part.offset + part.file_size, self._content.size)
            for begin in range(part.offset, end, _PIECE):
                piece = self._content.read_up_to(begin, min(_PIECE + 8, end - begin))
                at = piece.find(_WRAPPER)
                while at >= 0 and at < _PIECE and len(found) < _MOST_WRAPPERS:
                    address = begin + at - part.offset + part.address
                    if address % 8 == 0 and piece[at + 4 : at + 8] in {b"\1\0\0\0", b"\2\0\0\0"}:
                        found.append(address)
                    at = piece.find(_WRAPPER, at + 4)
        return found

    def _part(self, address: int) -> Segment | None:
        at = bisect_right(self._begins, address) - 1
        if at >= 0:
            part = self._loaded[at]
            if address < part.address + part.file_size:
                return part
        return None

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            block = self._content.read_up_to(number * _BLOCK, _BLOCK)
            self._blocks[number] = block
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return block

    def _dynamic_entries(self) -> Iterator[tuple[int, int]]:
        for part in self.layout.segments:
            if part.kind == _DYNAMIC:
                size = min(part.file_size, _MOST_DYNAMIC)
                raw = self._content.read_up_to(part.offset, size)
                for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) & ~15]):
                    if not tag:
                        break
                    yield tag, value

    def _table(self, address: int, size: int, form: np.dtype[np.void]) -> NDArray[np.void]:
        offset = self.layout.file_offset(address, code=False)
        if offset is None:
            raise ElfError(f"expected a table in the file, got address {address:#x}")
        size -= size % form.itemsize
        return np.frombuffer(self._content.read(offset, size, "a dynamic table"), form)

    def _relocations(self) -> NDArray[np.void]:
        parts = [np.zeros(0, _RELOCATION)]
        for table, length in ((_RELA, _RELA_BYTES), (_PLT, _PLT_BYTES)):
            size = self._dynamic.get(length, 0)
            if table in self._dynamic and size:
                count = size // _RELOCATION.itemsize
                if count > _MOST_RELOCATIONS:
                    most = f"at most {_MOST_RELOCATIONS} relocations"
                    raise ElfError(f"expected {most}, got {count}")
                parts.append(self._table(self._dynamic[table], size, _RELOCATION))
        return np.concatenate(parts)

    def _symbol_table(self) -> NDArray[np.void]:
        """Give the dynamic symbols that relocations name: their number stands nowhere else."""
        if not len(self._by_symbol) or _SYMBOLS not in self._dynamic:
            return np.zeros(0, _SYMBOL)
        count = int(self._symbol_of.max()) + 1
        if count > _MOST_SYMBOLS:
            raise ElfError(f"expected at most {_MOST_SYMBOLS} symbols, got {count}")
        return self._table(self._dynamic[_SYMBOLS], count * _SYMBOL.itemsize, _SYMBOL)

    def _filled_by_symbol(self) -> dict[int, int]:
        if not len(self._symbols):
            return {}
        values = self._symbols["value"][self._symbol_of]
        kept = (values != 0) & (values < np.uint64(USER_SPACE))
        there = self._by_symbol["offset"][kept].tolist()
        added = values[kept].astype(np.int64) + self._by_symbol["addend"][kept]
        return dict(zip(there, added.tolist(), strict=True))
