"""An ELF file by its headers, notes and symbols; nothing is mapped, every read is bounded.

A file cut short under a mapping ends the reader with SIGBUS. Source: System V ABI, chapters 4, 5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

_MOST_AT_ONCE: Final = 64 << 20


class ElfError(Exception):
    """A file is not the ELF file that was expected: says what was expected and what came."""


class ElfBytes:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)

    def read(self, offset: int, size: int, what: str) -> bytes:
        """Read exactly `size` bytes. Raises ElfError."""
        if size > _MOST_AT_ONCE:
            raise ElfError(f"{what}: expected at most {_MOST_AT_ONCE} bytes, the file says {size}")
        if offset < 0 or offset + size > self.size:
            raise ElfError(
                f"{what}: expected {size} bytes at {offset}, the file has {self.size} bytes"
            )
        content = self.read_up_to(offset, size)
        if len(content) != size:
            raise ElfError(f"{what}: expected {size} bytes at {offset}, got {len(content)}")
        return content

    def read_up_to(self, offset: int, size: int) -> bytes:
        """Read fewer than `size` bytes only where the file ends. Raises ElfError."""
        if not 0 <= offset <= self.size:
            return b""
        try:
            self._file.seek(offset)
            return self._file.read(min(size, self.size - offset))
        except OSError as error:
            raise ElfError(f"expected a readable file: {error.strerror}") from None


_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_MAGIC: Final = b"\x7fELF\x02\x01\x01"
_EXECUTABLE, _SHARED = 2, 3
_LOAD, NOTE_SEGMENT = 1, 4
_MAY_EXECUTE: Final = 1
SYMBOLS, NOTE_SECTION, _NO_BITS, DYNAMIC_SYMBOLS = 2, 7, 8, 11
_MOST_SEGMENTS: Final = 1024
_MOST_SECTIONS: Final = 65_535
_MOST_NAME: Final = 256
_USER_SPACE: Final = 1 << 63
"""No program is loaded above; sums stay below 2**64."""


class Machine(StrEnum):
    X86_64 = "x86-64"
    ARM64 = "arm64"


_MACHINES: Final = {62: Machine.X86_64, 183: Machine.ARM64}


@dataclass(frozen=True, slots=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_size: int


@dataclass(frozen=True, slots=True)
class ElfSection:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class Layout:
    machine: Machine
    segments: tuple[Segment, ...]
    sections: tuple[ElfSection, ...]

    def file_offset(self, address: int, code: bool = True) -> int | None:
        """Give where a virtual address stands in the file; None outside the loaded bytes."""
        for part in self.segments:
            wanted = part.kind == _LOAD and (not code or part.flags & _MAY_EXECUTE)
            if wanted and part.address <= address < part.address + part.file_size:
                return address - part.address + part.offset
        return None

    def address(self, offset: int) -> int | None:
        for part in self.segments:
            if part.kind == _LOAD and part.offset <= offset < part.offset + part.file_size:
                return offset - part.offset + part.address
        return None

    def code_ranges(self) -> list[tuple[int, int, int]]:
        """Give (address, end, offset) of the segments that may be executed."""
        return [
            (part.address, part.address + part.file_size, part.offset)
            for part in self.segments
            if part.kind == _LOAD and part.flags & _MAY_EXECUTE
        ]

    def section(self, name: str) -> ElfSection | None:
        return next((s for s in self.sections if s.name == name and s.kind != _NO_BITS), None)


def read_layout(content: ElfBytes) -> Layout:
    """Read the headers. Raises ElfError for anything but a program or library we can probe."""
    raw = content.read_up_to(0, _HEADER.size)
    if len(raw) < _HEADER.size or not raw.startswith(_MAGIC):
        raise ElfError(f"expected a 64-bit little-endian ELF file, it begins {raw[:7].hex()}")
    (_, kind, machine, _, _, first_segment, first_section, _, _, segment_size, segments,
     section_size, sections, names) = _HEADER.unpack(raw)  # fmt: skip
    if kind not in {_EXECUTABLE, _SHARED}:
        raise ElfError(f"expected a program or a shared library (type 2 or 3), got type {kind}")
    if machine not in _MACHINES:
        raise ElfError(f"expected machine 62 (x86-64) or 183 (arm64), got {machine}")
    if segments > _MOST_SEGMENTS or (segments and segment_size != _SEGMENT.size):
        raise ElfError(
            f"expected at most {_MOST_SEGMENTS} program headers of {_SEGMENT.size} bytes, "
            f"got {segments} of {segment_size}"
        )
    table = content.read(first_segment, segments * _SEGMENT.size, "program headers")
    parts = tuple(
        Segment(kind, flags, offset, address, in_file)
        for kind, flags, offset, address, _, in_file, in_memory, _ in _SEGMENT.iter_unpack(table)
        if max(offset, address) + max(in_file, in_memory) <= _USER_SPACE
    )
    named = _sections(content, first_section, section_size, sections, names)
    return Layout(_MACHINES[machine], parts, named)


def _sections(
    content: ElfBytes, first: int, size: int, count: int, names: int
) -> tuple[ElfSection, ...]:
    whole = first + count * _SECTION.size <= content.size
    if not first or size != _SECTION.size or not 0 <= names < count <= _MOST_SECTIONS or not whole:
        return ()
    raw = content.read(first, count * _SECTION.size, "section headers")
    rows = list(_SECTION.iter_unpack(raw))
    texts = content.read_up_to(rows[names][4], min(rows[names][5], 16 << 20))
    return tuple(
        ElfSection(_text(texts, row[0]), row[1], row[2], row[3], row[4], row[5], row[6], row[9])
        for row in rows
    )


def _text(texts: bytes, start: int) -> str:
    end = texts.find(b"\0", start, start + _MOST_NAME)
    return texts[start:end].decode("ascii", "replace") if end >= 0 else ""


_HEAD: Final = struct.Struct("<III")
_PLACE: Final = struct.Struct("<QQQ")
_BUILD_ID: Final = (b"GNU\0", 3)
_USDT: Final = (b"stapsdt\0", 3)
_MOST_BYTES: Final = 4 << 20
"""Of all notes of a file: headers may name the same bytes 65,535 times."""
_MOST_NOTES: Final = 8_192
_MOST_BUILD_ID: Final = 64
_WRAP: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class UsdtProbe:
    """A place where a program marks an event; offsets in the file. Semaphore 0: always on."""

    provider: str
    name: str
    offset: int
    semaphore_offset: int


def build_id(content: ElfBytes, layout: Layout) -> str:
    """Give the build id in hexadecimal, or "" where the file has none."""
    places = [(s.offset, s.size) for s in layout.sections if s.kind == NOTE_SECTION]
    places += [(p.offset, p.file_size) for p in layout.segments if p.kind == NOTE_SEGMENT]
    left = _MOST_BYTES
    for offset, size in places:
        raw = content.read_up_to(offset, min(size, left))
        left -= len(raw)
        for key, text in _notes(raw):
            if key == _BUILD_ID and 0 < len(text) <= _MOST_BUILD_ID:
                return text.hex()
    return ""


def usdt_probes(content: ElfBytes, layout: Layout) -> Iterator[UsdtProbe]:
    """Yield the USDT probes whose place is in executable bytes of the file."""
    section, base = layout.section(".note.stapsdt"), layout.section(".stapsdt.base")
    if section is None:
        return
    raw = content.read_up_to(section.offset, min(section.size, _MOST_BYTES))
    for key, text in _notes(raw):
        if key != _USDT or len(text) < _PLACE.size:
            continue
        address, assumed_base, semaphore = _PLACE.unpack_from(text)
        # The linker knows where the base section went; prelink and objcopy may have moved it since.
        moved = base.address - assumed_base if base is not None else 0
        offset = layout.file_offset((address + moved) % _WRAP)
        provider, name, *_ = [*text[_PLACE.size :].split(b"\0", 2), b"", b""]
        if offset is None or not provider or not name:
            continue
        counter = layout.file_offset((semaphore + moved) % _WRAP, code=False) if semaphore else 0
        yield UsdtProbe(_ascii(provider), _ascii(name), offset, counter or 0)


def _notes(raw: bytes) -> Iterator[tuple[tuple[bytes, int], bytes]]:
    """Yield ((owner, type), description); ends at the first note that does not fit."""
    at = 0
    for _ in range(_MOST_NOTES):
        if at + _HEAD.size > len(raw):
            return
        owner_size, size, kind = _HEAD.unpack_from(raw, at)
        begin = at + _HEAD.size + (owner_size + 3 & ~3)
        if begin + size > len(raw):
            return
        owner = raw[at + _HEAD.size : at + _HEAD.size + owner_size]
        yield (owner, kind), raw[begin : begin + size]
        at = begin + (size + 3 & ~3)


def _ascii(raw: bytes) -> str:
    return raw.decode("ascii", "replace")


_SYMBOL: Final = np.dtype(
    {
        "names": ["name", "info", "other", "section", "value", "size"],
        "formats": ["<u4", "u1", "u1", "<u2", "<u8", "<u8"],
    }
)
_FUNCTION: Final = 2
"""STT_FUNC. The address of an indirect function (10) is that of its resolver: no use."""
_AT_ONCE: Final = 65_536
_MOST_SYMBOLS: Final = 2_000_000
"""48 MB of them. Large libraries export 200,000; with local symbols, three times as many."""
MOST_NAME: Final = 16_384
_WINDOW: Final = 4 << 20

Columns = NDArray[np.void]


def read_symbols(content: ElfBytes, section: ElfSection, what: str) -> Iterator[Columns]:
    """Yield the rows of a symbol table in pieces of 65,536. Raises ElfError."""
    count = section.size // _SYMBOL.itemsize
    if section.entry_size != _SYMBOL.itemsize or count > _MOST_SYMBOLS:
        raise ElfError(
            f"{what}: expected at most {_MOST_SYMBOLS} symbols of {_SYMBOL.itemsize} bytes, "
            f"got {count} of {section.entry_size}"
        )
    for first in range(0, count, _AT_ONCE):
        rows = min(_AT_ONCE, count - first)
        offset = section.offset + first * _SYMBOL.itemsize
        yield np.frombuffer(content.read(offset, rows * _SYMBOL.itemsize, what), _SYMBOL)


def defined_functions(
    content: ElfBytes, section: ElfSection, what: str, layout: Layout | None = None
) -> Columns:
    """Give the rows that define a function, by `layout` of this file alone. Raises ElfError."""
    kept = [np.zeros(0, _SYMBOL)]
    for rows in read_symbols(content, section, what):
        wanted = ((rows["info"] & 15) == _FUNCTION) & (rows["section"] != 0)
        inside = rows["value"] != 0
        if layout is not None:
            inside = np.zeros(len(rows), bool)
            for begin, end, _ in layout.code_ranges():
                inside |= (rows["value"] >= begin) & (rows["value"] < end)
        kept.append(rows[wanted & inside])
    return np.concatenate(kept)


def file_offsets(layout: Layout, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give where code addresses stand in the file; they are inside its executable bytes."""
    offsets = addresses.copy()
    for begin, end, offset in reversed(layout.code_ranges()):
        inside = (addresses >= begin) & (addresses < end)
        offsets[inside] = addresses[inside] - np.uint64(begin) + np.uint64(offset)
    return offsets


def undefined_names(
    content: ElfBytes, layout: Layout, section: ElfSection, beginnings: tuple[bytes, ...]
) -> Iterator[bytes]:
    """Yield names that a file asks of others; not gathered: they may overlap. Raises ElfError."""
    strings = string_section(layout, section)
    for rows in read_symbols(content, section, section.name):
        asked = rows[(rows["section"] == 0) & (rows["name"] != 0)]
        yield from (name for _, name in named(content, strings, asked, beginnings))


def string_section(layout: Layout, section: ElfSection) -> ElfSection:
    """Give the section that holds a symbol table's names. Raises ElfError."""
    if not 0 < section.link < len(layout.sections):
        raise ElfError(f"expected a string table for {section.name}, got section {section.link}")
    return layout.sections[section.link]


def named(
    content: ElfBytes, strings: ElfSection, rows: Columns, beginnings: tuple[bytes, ...] = (b"",)
) -> Iterator[tuple[int, bytes]]:
    """Yield (row, name) by the string table, 4 MiB at a time; names beyond 16 KiB are left out."""
    order = np.argsort(rows["name"], kind="stable")
    places = rows["name"][order].astype(np.int64)
    done = 0
    while done < len(order):
        window = int(places[done])
        until = min(int(np.searchsorted(places, window + _WINDOW)), done + _AT_ONCE)
        if window >= strings.size:
            return
        held = min(strings.size - window, _WINDOW + MOST_NAME)
        text = content.read_up_to(strings.offset + window, held)
        for row, place in zip(
            order[done:until].tolist(), (places[done:until] - window).tolist(), strict=True
        ):
            if text.startswith(beginnings, place):
                end = text.find(b"\0", place, place + MOST_NAME)
                if end > place:
                    yield row, text[place:end]
        done = until
