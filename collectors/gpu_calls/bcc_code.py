"""Gives finished BPF code the number of the place that it is attached to."""

from __future__ import annotations

import struct
from typing import Final

SENTINEL: Final = 0x5EED_0BCC_9ACE_D00D
"""Stands in the compiled code where a place's number goes."""

_INSTRUCTION: Final = 8
_LOAD_64: Final = 0x18
"""ld_imm64: two instructions, each with half of the number in its last four bytes."""


def at_place(code: bytes, place: int) -> bytes:
    """Give code with a place's number instead of the sentinel.

    place   0 .. 2**64 - 1
    Raises  ValueError unless the sentinel is there once
    """
    low, high = SENTINEL & 0xFFFFFFFF, SENTINEL >> 32
    found = [
        at
        for at in range(0, len(code) - _INSTRUCTION, _INSTRUCTION)
        if code[at] == _LOAD_64
        and struct.unpack_from("<I", code, at + 4)[0] == low
        and struct.unpack_from("<I", code, at + 12)[0] == high
    ]
    if len(found) != 1:
        raise ValueError(f"expected one place in the BPF code, got {len(found)}")
    changed = bytearray(code)
    struct.pack_into("<I", changed, found[0] + 4, place & 0xFFFFFFFF)
    struct.pack_into("<I", changed, found[0] + 12, place >> 32)
    return bytes(changed)
