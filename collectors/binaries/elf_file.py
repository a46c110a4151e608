"""What a probe needs to know of a program or library; files are untrusted, every read is bounded.

A section in disorder is as if it were not there: programs run with such sections all the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import BinaryIO, Final, NamedTuple

from .elf import (
    DYNAMIC_SYMBOLS,
    SYMBOLS,
    ElfBytes,
    ElfError,
    ElfSection,
    Layout,
    Machine,
    UsdtProbe,
    build_id,
    defined_functions,
    file_offsets,
    named,
    read_layout,
    string_section,
    undefined_names,
    usdt_probes,
)

LONGEST_INSTRUCTION: Final = 16
_NOP5: Final = bytes.fromhex("0f1f440000")


class EntryClass(StrEnum):
    """How the kernel passes a probed instruction.

    NOP     by kernel: x86-64's of five bytes, arm64's, which is stepped before Linux 6.13
    """

    STEPPED = "stepped"
    EMULATED = "emulated"
    NOP = "nop"


def x86_64_entry(code: bytes) -> EntryClass:
    """Classify an instruction of x86-64; code: 16 bytes, or fewer at the end of a file.

    Source  arch/x86/kernel/uprobes.c: push of a register, short and near jumps, call, nop
    """
    if code.startswith(_NOP5):
        return EntryClass.NOP
    first = code[1:2] if code[:1] == b"\x41" else code[:1]
    if first and 0x50 <= first[0] <= 0x57:
        return EntryClass.EMULATED
    if code[:1] in {b"\x90", b"\xe8", b"\xe9", b"\xeb"} or (code and 0x70 <= code[0] <= 0x7F):
        return EntryClass.EMULATED
    if len(code) > 1 and code[0] == 0x0F and 0x80 <= code[1] <= 0x8F:
        return EntryClass.EMULATED
    return EntryClass.STEPPED


_SIMULATED_ARM64: Final = (
    (0x1F000000, 0x10000000),  # adr, adrp
    (0x7C000000, 0x14000000),  # b, bl
    (0xFF000010, 0x54000000),  # b.cond
    (0x7E000000, 0x34000000),  # cbz, cbnz
    (0x7E000000, 0x36000000),  # tbz, tbnz
    (0xFFFFFC1F, 0xD61F0000),  # br
    (0xFFFFFC1F, 0xD63F0000),  # blr
    (0xFFFFFC1F, 0xD65F0000),  # ret
    (0xBF000000, 0x18000000),  # ldr (literal)
    (0xFF000000, 0x98000000),  # ldrsw (literal)
)
"""(mask, value). Source: arch/arm64/kernel/probes/decode-insn.c"""
_NOP_ARM64: Final = 0xD503201F


def arm64_entry(code: bytes) -> EntryClass:
    """Classify an instruction of arm64; stp, sub, bti and paciasp are single-stepped."""
    if len(code) < 4:
        return EntryClass.STEPPED
    word = int.from_bytes(code[:4], "little")
    if word == _NOP_ARM64:
        return EntryClass.NOP
    simulated = any(word & mask == value for mask, value in _SIMULATED_ARM64)
    return EntryClass.EMULATED if simulated else EntryClass.STEPPED


_TABLES: Final = {SYMBOLS: ".symtab", DYNAMIC_SYMBOLS: ".dynsym"}
_DEVICE_CODE: Final = (".nv_fatbin", ".nvFatBinSegment", ".hip_fatbin", ".hipFatBinSegment")

_FORWARD_X86_64: Final = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5\x5d)?\xe9(.{4})", re.DOTALL
)
"""endbr64, an empty frame, jmp: how compilers write a function that only calls another last."""
_FORWARD_ARM64: Final = re.compile(
    rb"(?:\x5f\x24\x03\xd5)?"
    rb"(?:\xff([\x03\x43\x83\xc3].)\xd1)?(?:[\xe0-\xe7]\x03[\x00-\x07]\x2a)*(?(1)\xff\1\x91)"
    rb"(?P<branch>.{3}[\x14-\x17])",
    re.DOTALL,
)
"""bti, an empty frame around arguments of 32 bits made wide (`mov w2, w2`), b."""
_MOST_FORWARD: Final = 48


def forward_x86_64(code: bytes) -> int | None:
    found = _FORWARD_X86_64.match(code)
    return None if found is None else found.end() + int(struct.unpack("<i", found[1])[0])


def forward_arm64(code: bytes) -> int | None:
    found = _FORWARD_ARM64.match(code)
    if found is None:
        return None
    words = int(struct.unpack("<I", found["branch"])[0]) & 0x03FF_FFFF
    return found.start("branch") + 4 * (words - ((words & 0x0200_0000) << 1))


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
    def __init__(self, content: ElfBytes, layout: Layout) -> None:
        self._content = content
        self.layout, self.machine = layout, layout.machine
        self.build_id = build_id(content, layout)
        self.usdt: tuple[UsdtProbe, ...] = tuple(usdt_probes(content, layout))

    @classmethod
    def read(cls, file: BinaryIO) -> ElfFile:
        """Read the headers and notes of an open file. Raises ElfError."""
        content = ElfBytes(file)
        return cls(content, read_layout(content))

    @property
    def has_symbol_table(self) -> bool:
        """Whether .symtab is there: where it was stripped, static functions have no names."""
        return any(section.kind == SYMBOLS for section in self.layout.sections)

    @property
    def has_device_code(self) -> bool:
        """Whether code for GPUs is embedded: what a CUDA or HIP compiler leaves."""
        return any(self.layout.section(name) is not None for name in _DEVICE_CODE)

    def functions(self, beginnings: tuple[bytes, ...] = (b"",)) -> Iterator[Function]:
        """Yield each function of .symtab and .dynsym, those of both twice."""
        for section in self.symbol_tables():
            with suppress(ElfError):
                yield from self._functions(section, beginnings)

    def asks_for(self, beginnings: tuple[str, ...]) -> bool:
        """Tell whether a name that begins so is asked of another file (.dynsym)."""
        wanted = tuple(text.encode() for text in beginnings)
        for section in self.symbol_tables():
            if section.kind == DYNAMIC_SYMBOLS:
                with suppress(ElfError):
                    if any(undefined_names(self._content, self.layout, section, wanted)):
                        return True
        return False

    def symbol_tables(self) -> list[ElfSection]:
        """Give the first section of each kind that holds symbols: headers may repeat."""
        first: dict[int, ElfSection] = {}
        for section in self.layout.sections:
            if section.kind in _TABLES:
                first.setdefault(section.kind, section)
        return [first[kind] for kind in sorted(first)]

    def entry_class(self, offset: int) -> EntryClass:
        """Say how the kernel passes the instruction at an offset of the file."""
        code = self.code(offset)
        if self.machine is Machine.ARM64:
            return arm64_entry(code)
        return x86_64_entry(code)

    def forward(self, offset: int) -> int | None:
        code = self.code(offset, _MOST_FORWARD)
        arm64 = self.machine is Machine.ARM64
        far = forward_arm64(code) if arm64 else forward_x86_64(code)
        return None if far is None else offset + far

    def code(self, offset: int, size: int = LONGEST_INSTRUCTION) -> bytes:
        return self._content.read_up_to(offset, size)

    def _functions(self, section: ElfSection, beginnings: tuple[bytes, ...]) -> Iterator[Function]:
        what = _TABLES[section.kind]
        rows = defined_functions(self._content, section, what, self.layout)
        offsets = file_offsets(self.layout, rows["value"])
        strings = string_section(self.layout, section)
        for row, name in named(self._content, strings, rows, beginnings):
            text, found = name.decode("utf-8", "replace"), rows[row]
            yield Function(text, int(offsets[row]), int(found["value"]), int(found["size"]))
