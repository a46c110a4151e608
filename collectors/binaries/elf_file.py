"""What a probe needs to know of a program or library; files are untrusted, every read is bounded.

A section that is in disorder is as if it were not there: `.functions` of it are missing and
`.disorder` says why, since programs run with such sections all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from . import entry_class
from .elf_bytes import ElfBytes, ElfError
from .elf_layout import DYNAMIC_SYMBOLS, SYMBOLS, ElfSection, Layout, Machine, read_layout
from .elf_notes import UsdtProbe, build_id, usdt_probes
from .elf_symbols import defined_functions, file_offsets, named, string_section, undefined_names
from .entry_class import EntryClass

_TABLES: Final = {SYMBOLS: ".symtab", DYNAMIC_SYMBOLS: ".dynsym"}
_DEVICE_CODE: Final = (".nv_fatbin", ".nvFatBinSegment", ".hip_fatbin", ".hipFatBinSegment")


class Function(NamedTuple):
    """A function that a file defines; several may share one offset (aliases).

    offset   of its first instruction in the file
    address  virtual, as the file states it: in memory the load bias is added
    size     bytes; 0 where the file does not say
    """

    name: str
    offset: int
    address: int
    size: int


class ElfFile:
    """One program or library; reads from its open file while `functions` and others are asked."""

    def __init__(self, content: ElfBytes, layout: Layout) -> None:
        self._content = content
        self.layout = layout
        self.build_id = build_id(content, layout)
        self.usdt: tuple[UsdtProbe, ...] = tuple(usdt_probes(content, layout))
        self.disorder: list[str] = []

    @classmethod
    def read(cls, file: BinaryIO) -> ElfFile:
        """Read the headers and notes of an open file. Raises ElfError."""
        content = ElfBytes(file)
        return cls(content, read_layout(content))

    @property
    def machine(self) -> Machine:
        """The processor whose code this is."""
        return self.layout.machine

    @property
    def executable(self) -> bool:
        """Whether it is a program rather than a library."""
        return self.layout.executable

    @property
    def has_symbol_table(self) -> bool:
        """Whether .symtab is there: where it was stripped, static functions have no names."""
        return any(section.kind == SYMBOLS for section in self.layout.sections)

    @property
    def has_device_code(self) -> bool:
        """Whether code for GPUs is embedded: what a CUDA or HIP compiler leaves."""
        return any(self.layout.section(name) is not None for name in _DEVICE_CODE)

    def functions(self, beginnings: tuple[bytes, ...] = (b"",)) -> Iterator[Function]:
        """Yield each function of .symtab and .dynsym, those of both twice.

        beginnings  of names: others are left out
        """
        for section in self.symbol_tables():
            try:
                yield from self._functions(section, beginnings)
            except ElfError as error:
                self.disorder.append(str(error))

    def asks_for(self, beginnings: tuple[str, ...]) -> bool:
        """Tell whether a name that begins so is asked of another file (.dynsym)."""
        wanted = tuple(text.encode() for text in beginnings)
        for section in self.symbol_tables():
            if section.kind == DYNAMIC_SYMBOLS:
                try:
                    if any(undefined_names(self._content, self.layout, section, wanted)):
                        return True
                except ElfError as error:
                    self.disorder.append(str(error))
        return False

    def symbol_tables(self) -> list[ElfSection]:
        """Give the sections that hold symbols, .symtab first: of each kind the first.

        No linker makes a second; a header may name the same bytes 65,535 times.
        """
        first: dict[int, ElfSection] = {}
        for section in self.layout.sections:
            if section.kind in _TABLES:
                first.setdefault(section.kind, section)
        return [first[kind] for kind in sorted(first)]

    def entry_class(self, offset: int) -> EntryClass:
        """Say how the kernel passes the instruction at an offset of the file."""
        code = self.code(offset)
        if self.machine is Machine.ARM64:
            return entry_class.arm64(code)
        return entry_class.x86_64(code)

    def code(self, offset: int) -> bytes:
        """Give up to 16 bytes at an offset of the file."""
        return self._content.read_up_to(offset, entry_class.LONGEST_INSTRUCTION)

    def _functions(self, section: ElfSection, beginnings: tuple[bytes, ...]) -> Iterator[Function]:
        what = _TABLES[section.kind]
        rows = defined_functions(self._content, self.layout, section, what)
        offsets = file_offsets(self.layout, rows["value"])
        strings = string_section(self.layout, section)
        for row, name in named(self._content, strings, rows, beginnings):
            text, found = name.decode("utf-8", "replace"), rows[row]
            yield Function(text, int(offsets[row]), int(found["value"]), int(found["size"]))
