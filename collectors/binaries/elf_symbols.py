"""Functions that a symbol table defines, read in pieces: libraries have millions of symbols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .elf_layout import ElfBytes, ElfError, ElfSection, Layout

_SYMBOL: Final = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
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


def defined_functions(content: ElfBytes, layout: Layout, section: ElfSection, what: str) -> Columns:
    """Give the rows that define a function in executable bytes of the file. Raises ElfError."""
    kept = [np.zeros(0, _SYMBOL)]
    for rows in read_symbols(content, section, what):
        wanted = ((rows["info"] & 15) == _FUNCTION) & (rows["section"] != 0)
        inside = np.zeros(len(rows), bool)
        for begin, end, _ in layout.code_ranges():
            inside |= (rows["value"] >= begin) & (rows["value"] < end)
        kept.append(rows[wanted & inside])
    return np.concatenate(kept)


def all_functions(content: ElfBytes, section: ElfSection) -> Columns:
    """Give the rows that define a function, also where its bytes are in another file.

    Raises ElfError.
    """
    kept = [np.zeros(0, _SYMBOL)]
    for rows in read_symbols(content, section, section.name):
        wanted = ((rows["info"] & 15) == _FUNCTION) & (rows["section"] != 0) & (rows["value"] != 0)
        kept.append(rows[wanted])
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
    """Yield the names that a file asks of others and that begin so. Raises ElfError.

    Not gathered: names may overlap, and two million of a string of 4 MiB are 16 GB.
    """
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
    """Yield (row, name), in the order of the string table, of which 4 MiB are held at a time.

    beginnings  names that begin otherwise are left out: most of them, and quickly
    A name without an end within 16 KiB is left out too.
    """
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
