"""Which function stands at a place of a file: from its symbols, or those of its debug file."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import numpy as np

from .elf_file import ElfFile
from .elf_layout import ElfBytes, ElfError
from .elf_symbols import MOST_NAME, Columns, all_functions, string_section
from .mapped_file import MappedFile, open_regular

_DEBUG: Final = "/usr/lib/debug/.build-id"


class SymbolIndex:
    """Functions of one open file by address; only their addresses are held in memory."""

    def __init__(self, file: MappedFile, debug_roots: tuple[str, ...] = ("",)) -> None:
        """Read the symbol tables. Raises ElfError.

        debug_roots  folders that are the root of a file system in which to look for a debug file
        """
        self._files = [file]
        elf = _elf(file)
        self.build_id = elf.build_id
        state = os.fstat(file.fd)
        self.cache_key = (
            f"{elf.build_id}.{state.st_dev:x}.{state.st_ino:x}.{state.st_ctime_ns:x}"
            if elf.build_id
            else ""
        )
        """Names are kept under it: any file can have another's build id, no other is that file."""
        self._owners = {0, state.st_uid}
        self._layout = elf.layout
        self._tables = _tables(file, elf)
        if not elf.has_symbol_table and elf.build_id:
            for root in debug_roots:
                self._add_debug_file(root)

    @property
    def functions(self) -> int:
        """How many it holds: 20 bytes each."""
        return sum(table.functions for table in self._tables)

    def name(self, offset: int) -> str | None:
        """Give the function that begins at, or else covers, a byte of the file; or None."""
        address = self._layout.address(offset)
        if address is None:
            return None
        for exact in (True, False):
            for table in self._tables:
                found = table.find(address, exact)
                if found:
                    return found
        return None

    def changed(self) -> bool:
        """Tell whether the file was written since it was read."""
        return self._files[0].changed()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.pop().close()

    def _add_debug_file(self, root: str) -> None:
        """Use a debug file, if it is that of this file, and root's or of this file's owner."""
        name = f"{root}{_DEBUG}/{self.build_id[:2]}/{self.build_id[2:]}.debug"
        file = open_regular(name)
        if file is None:
            return
        with suppress(ElfError):
            elf = _elf(file)
            # In a process's own root its user puts files, and the names are everybody's.
            trusted = os.fstat(file.fd).st_uid in self._owners
            if elf.build_id == self.build_id and trusted:
                self._tables += _tables(file, elf)
                self._files.append(file)
                return
        file.close()


class _Table:
    """One symbol table: addresses in order, sizes, and where the names stand."""

    def __init__(self, content: ElfBytes, rows: Columns, strings: tuple[int, int]) -> None:
        order = np.argsort(rows["value"], kind="stable")
        self._addresses = rows["value"][order].copy()
        self._sizes = rows["size"][order].copy()
        self._names = rows["name"][order].copy()
        self._content, (self._strings, self._strings_size) = content, strings

    @property
    def functions(self) -> int:
        return len(self._addresses)

    def find(self, address: int, exact: bool) -> str | None:
        wanted = np.uint64(address)
        last = int(np.searchsorted(self._addresses, wanted, side="right")) - 1
        if last < 0:
            return None
        begin = int(self._addresses[last])
        if begin == address:
            return self._name(last)
        covered = not exact and address - begin < int(self._sizes[last])
        return self._name(last) if covered else None

    def _name(self, row: int) -> str | None:
        place = int(self._names[row])
        if place >= self._strings_size:
            return None
        room = min(MOST_NAME, self._strings_size - place)
        text, end, _ = self._content.read_up_to(self._strings + place, room).partition(b"\0")
        return text.decode("utf-8", "replace") if end and text else None


def _elf(file: MappedFile) -> ElfFile:
    return ElfFile.read(os.fdopen(file.fd, "rb", buffering=0, closefd=False))


def _tables(file: MappedFile, elf: ElfFile) -> list[_Table]:
    content = ElfBytes(os.fdopen(file.fd, "rb", buffering=0, closefd=False))
    found = []
    for section in elf.symbol_tables():
        with suppress(ElfError):
            strings = string_section(elf.layout, section)
            rows = all_functions(content, section)
            found.append(_Table(content, rows, (strings.offset, strings.size)))
    return found
