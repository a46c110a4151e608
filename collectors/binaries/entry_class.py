"""What a probe on an instruction costs: how the kernel carries on after the trap.

A uprobe replaces the first byte of an instruction by a trap. Afterwards the kernel either does the
instruction's work itself (cheap), or runs a copy of it in a single step, with a second trap (ten
times dearer); a five-byte nop becomes a call without any trap (Linux 6.18 and later).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

LONGEST_INSTRUCTION: Final = 16
ENDBR64: Final = bytes.fromhex("f30f1efa")
_NOP5: Final = bytes.fromhex("0f1f440000")


class EntryClass(StrEnum):
    """How the kernel passes a probed instruction, the cheapest last."""

    STEPPED = "stepped"
    EMULATED = "emulated"
    NOP5 = "nop5"


def x86_64(code: bytes) -> EntryClass:
    """Classify an instruction of x86-64; code: 16 bytes, or fewer at the end of a file.

    Source  arch/x86/kernel/uprobes.c: push of a register, short and near jumps, call, nop
    """
    if code.startswith(_NOP5):
        return EntryClass.NOP5
    first = code[1:2] if code[:1] == b"\x41" else code[:1]
    if first and 0x50 <= first[0] <= 0x57:
        return EntryClass.EMULATED
    if code[:1] in {b"\x90", b"\xe8", b"\xe9", b"\xeb"} or (code and 0x70 <= code[0] <= 0x7F):
        return EntryClass.EMULATED
    if len(code) > 1 and code[0] == 0x0F and 0x80 <= code[1] <= 0x8F:
        return EntryClass.EMULATED
    return EntryClass.STEPPED


_SIMULATED_ARM64: Final = (
    (0xFFFFFFFF, 0xD503201F),  # nop
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
"""(mask, value). Source: arch/arm64/kernel/probes/decode-insn.c; nop since Linux 6.13."""


def arm64(code: bytes) -> EntryClass:
    """Classify an instruction of arm64; stp, sub, bti and paciasp are single-stepped."""
    if len(code) < 4:
        return EntryClass.STEPPED
    word = int.from_bytes(code[:4], "little")
    simulated = any(word & mask == value for mask, value in _SIMULATED_ARM64)
    return EntryClass.EMULATED if simulated else EntryClass.STEPPED
