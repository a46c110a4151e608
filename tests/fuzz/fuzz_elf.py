"""Programs and libraries of any user: what is asked of one is answered, or an ElfError."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from collectors.binaries.elf import ElfBytes, ElfError, defined_functions, named, string_section
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.probe_offset import probe_offset

_BEGINNINGS: Final = (b"", b"cu")
_MOST_NAMED: Final = 200


def fuzz(data: bytes) -> None:
    with suppress(ElfError):
        elf = ElfFile.read(io.BytesIO(data))
        _ask(elf, ElfBytes(io.BytesIO(data)), len(data))


def _ask(elf: ElfFile, content: ElfBytes, size: int) -> None:
    assert len(elf.build_id) <= 128
    assert {elf.has_symbol_table, elf.has_device_code} <= {True, False}
    for probe in elf.usdt:
        assert min(probe.offset, probe.semaphore_offset) >= 0
    for beginnings in ((b"",), _BEGINNINGS[1:]):
        for function in islice(elf.functions(beginnings), _MOST_NAMED):
            assert function.name
            assert function.offset >= 0
            elf.entry_class(function.offset)
            elf.forward(function.offset)
            place = probe_offset(elf.code(function.offset, 256), function.size)
            assert 0 <= place <= 32
    elf.asks_for(("cu", "hip"))
    for section in elf.symbol_tables():
        with suppress(ElfError):
            strings = string_section(elf.layout, section)
            list(
                islice(
                    named(content, strings, defined_functions(content, section, section.name)),
                    _MOST_NAMED,
                )
            )
    for begin, _, offset in elf.layout.code_ranges():
        assert elf.layout.address(offset) is not None or begin >= 0
        elf.entry_class(min(offset, size))


def seeds() -> Iterator[bytes]:
    """Give a library of two functions with notes and symbols, its cut halves, and a program."""
    library = made_library()
    yield library
    yield library[: len(library) // 2]
    yield library[:16] + struct.pack("<H", 2) + library[18:]
    yield library[:18] + struct.pack("<H", 183) + library[20:]


_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_CODE: Final = bytes.fromhex("f30f1efa e910000000 90 554889e5 5d c3 0f1f440000 c3".replace(" ", ""))


def made_library() -> bytes:
    """Lay out a small library by hand: no compiler is asked for, and every byte is in reach."""
    strings = b"\0cuLaunchKernel\0helper\0"
    symbols = b"".join(
        _SYMBOL.pack(*row)
        for row in ((0, 0, 0, 0, 0, 0), (1, 18, 0, 1, 0x1000, 10), (16, 18, 0, 1, 0x100A, 6),
                    (1, 18, 0, 0, 0, 0))
    )  # fmt: skip
    note = struct.pack("<III4s", 4, 8, 3, b"GNU\0") + b"build-id"
    place = struct.pack("<QQQ", 0x1000, 0x2000, 0) + b"torch\0op\0" + b"8@%rdi\0"
    probe = struct.pack("<III8s", 8, len(place), 3, b"stapsdt\0") + place.ljust(40, b"\0")
    names = b"\0.text\0.dynsym\0.dynstr\0.note.gnu\0.note.stapsdt\0.stapsdt.base\0.nv_fatbin\0"
    parts = [_CODE, symbols, strings, note, probe, b"\0", b"\0" * 8, names]
    at, places = 64 + 2 * 56, []
    for part in parts:
        places.append((at, len(part)))
        at += len(part)
    kinds = [(".text", 1, 0, 0), (".dynsym", 11, 3, 24), (".dynstr", 3, 0, 0),
             (".note.gnu", 7, 0, 0), (".note.stapsdt", 7, 0, 0), (".stapsdt.base", 1, 0, 0),
             (".nv_fatbin", 1, 0, 0), ("", 3, 0, 0)]  # fmt: skip
    headers = bytes(64) + b"".join(
        _SECTION.pack(
            names.index(name.encode() + b"\0"), kind, 0, 0x1000 if name == ".text" else 0x2000,
            *places[number], link, 0, 1, entry,
        )
        for number, (name, kind, link, entry) in enumerate(kinds)
    )  # fmt: skip
    segment = struct.Struct("<IIQQQQQQ")
    segments = segment.pack(1, 5, places[0][0], 0x1000, 0, places[0][1], places[0][1], 4096)
    segments += segment.pack(4, 4, places[3][0], 0x2000, 0, places[3][1], places[3][1], 4)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, at, 0, 64, 56, 2, 64, 9, 8
    )
    return head + segments + b"".join(parts) + headers
