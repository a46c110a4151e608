"""Notes in an ELF file: the build id, and the USDT probes of `.note.stapsdt`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .elf_bytes import ElfBytes
from .elf_layout import NOTE_SECTION, NOTE_SEGMENT, Layout

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
    """One place where a program marks an event.

    offset            of its nop in the file
    semaphore_offset  of the counter, in the file, that switches the probe on; 0: always on
    arguments         where they are, as the note says: `8@%rdi -4@$7`
    """

    provider: str
    name: str
    offset: int
    semaphore_offset: int
    arguments: str


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
        provider, name, arguments, *_ = [*text[_PLACE.size :].split(b"\0", 3), b"", b"", b""]
        if offset is None or not provider or not name:
            continue
        counter = layout.file_offset((semaphore + moved) % _WRAP, code=False) if semaphore else 0
        yield UsdtProbe(_text(provider), _text(name), offset, counter or 0, _text(arguments))


def _notes(raw: bytes) -> Iterator[tuple[tuple[bytes, int], bytes]]:
    """Yield ((owner, type), description); ends at the first note that does not fit."""
    at = 0
    for _ in range(_MOST_NOTES):
        if at + _HEAD.size > len(raw):
            return
        owner_size, size, kind = _HEAD.unpack_from(raw, at)
        begin = at + _HEAD.size + _padded(owner_size)
        if begin + size > len(raw):
            return
        owner = raw[at + _HEAD.size : at + _HEAD.size + owner_size]
        yield (owner, kind), raw[begin : begin + size]
        at = begin + _padded(size)


def _padded(size: int) -> int:
    return (size + 3) & ~3


def _text(raw: bytes) -> str:
    return raw.decode("ascii", "replace")
