"""Headers of an ELF file: what kind it is, its segments and its sections.

Source  System V ABI, chapters 4 and 5: 64-bit, little-endian files only
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .elf_bytes import ElfBytes, ElfError

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_MAGIC: Final = b"\x7fELF\x02\x01\x01"
_EXECUTABLE, _SHARED = 2, 3
_LOAD, _INTERPRETER, NOTE_SEGMENT = 1, 3, 4
_MAY_EXECUTE: Final = 1
SYMBOLS, NOTE_SECTION, _NO_BITS, DYNAMIC_SYMBOLS = 2, 7, 8, 11
_MOST_SEGMENTS: Final = 1024
_MOST_SECTIONS: Final = 65_535
_MOST_NAME: Final = 256
_USER_SPACE: Final = 1 << 63
"""No program is loaded above; sums stay below 2**64."""


class Machine(StrEnum):
    """Processors whose entries can be probed."""

    X86_64 = "x86-64"
    ARM64 = "arm64"


_MACHINES: Final = {62: Machine.X86_64, 183: Machine.ARM64}


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header: `file_size` bytes at `offset` stand at `address`."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int


@dataclass(frozen=True, slots=True)
class ElfSection:
    """One section header; `link` is the index of the section it refers to."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The headers of a file; no sections where they were cut off or are in disorder."""

    machine: Machine
    executable: bool
    segments: tuple[Segment, ...]
    sections: tuple[ElfSection, ...]

    def file_offset(self, address: int, code: bool = True) -> int | None:
        """Give where a virtual address stands in the file; None outside the loaded bytes.

        code  look in segments that may be executed only
        """
        for part in self.segments:
            wanted = part.kind == _LOAD and (not code or part.flags & _MAY_EXECUTE)
            if wanted and part.address <= address < part.address + part.file_size:
                return address - part.address + part.offset
        return None

    def address(self, offset: int) -> int | None:
        """Give the virtual address at which a byte of the file is loaded, or None."""
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
        """Find the first section of a name that has bytes in the file."""
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
        Segment(kind, flags, offset, address, in_file, in_memory)
        for kind, flags, offset, address, _, in_file, in_memory, _ in _SEGMENT.iter_unpack(table)
        if max(offset, address) + max(in_file, in_memory) <= _USER_SPACE
    )
    interpreted = any(part.kind == _INTERPRETER for part in parts)
    named = _sections(content, first_section, section_size, sections, names)
    return Layout(_MACHINES[machine], kind == _EXECUTABLE or interpreted, parts, named)


def _sections(
    content: ElfBytes, first: int, size: int, count: int, names: int
) -> tuple[ElfSection, ...]:
    """Read the section headers; () where they are missing or cut off, as programs run without."""
    whole = first + count * _SECTION.size <= content.size
    if not first or size != _SECTION.size or not 0 <= names < count <= _MOST_SECTIONS or not whole:
        return ()
    raw = content.read(first, count * _SECTION.size, "section headers")
    rows = list(_SECTION.iter_unpack(raw))
    texts = content.read_up_to(rows[names][4], min(rows[names][5], 16 << 20))
    return tuple(
        ElfSection(_text(texts, row[0]), row[1], row[3], row[4], row[5], row[6], row[9])
        for row in rows
    )


def _text(texts: bytes, start: int) -> str:
    end = texts.find(b"\0", start, start + _MOST_NAME)
    return texts[start:end].decode("ascii", "replace") if end >= 0 else ""
