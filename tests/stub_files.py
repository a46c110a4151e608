"""Small libraries that register one kernel, laid out by hand: no compiler is asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

NAME: Final = "_Z4tickv"
STUB: Final = 0x280
RETURNS: Final = STUB + 31
LAUNCH: Final = 0x2E0
_STRINGS, _SYMBOLS, _RELOCATIONS, _PLT, _CONSTRUCTOR = 0x110, 0x160, 0x1C0, 0x210, 0x240
_DATA: Final = 0x300
_SLOTS, _HANDLE, _WRAPPER, _DYNAMIC = _DATA, 0x318, 0x320, 0x340
_END: Final = 0x3C0
_NAMES: Final = (b"__cudaRegisterFunction", b"__cudaGetKernel", b"cudaLaunchKernel")
_X86, _ARM64 = 62, 183


def made_library(machine: int = _X86, static: bool = False) -> bytes:
    """Give a library whose stub launches as CUDA 13 does; `static`: with a runtime, stripped."""
    content = bytearray(_END)
    parts = [(0x100, NAME.encode() + b"\0"), (_WRAPPER, struct.pack("<II", 0x466243B1, 1))]
    parts += _arm64() if machine == _ARM64 else _x86(static)
    if not static:
        parts += _imports(machine)
    for at, text in parts:
        content[at : at + len(text)] = text
    dynamic = (2, 6, _DYNAMIC, _DYNAMIC, _END - _DYNAMIC)
    loaded = [(1, 5, 0, 0, _DATA), (1, 6, _DATA, _DATA, _END - _DATA)]
    segments = loaded if static else [*loaded, dynamic]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, 64, 0, 0, 64, 56,
        len(segments), 64, 0, 0,
    )  # fmt: skip
    head += b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, offset, address, 0, size, size, 8)
        for kind, flags, offset, address, size in segments
    )
    content[: len(head)] = head
    return bytes(content)


def _imports(machine: int) -> Iterable[tuple[int, bytes]]:
    strings, symbols, relocations = b"\0", bytes(24), b""
    jump_slot = 7 if machine == _X86 else 1026
    for number, name in enumerate(_NAMES):
        symbols += struct.pack("<IBBHQQ", len(strings), 18, 0, 0, 0, 0)
        relocations += struct.pack("<QQq", _SLOTS + 8 * number, (number + 1) << 32 | jump_slot, 0)
        strings += name + b"\0"
    entries = ((5, _STRINGS), (6, _SYMBOLS), (23, _RELOCATIONS), (2, len(relocations)), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return [
        (_STRINGS, strings), (_SYMBOLS, symbols), (_RELOCATIONS, relocations), (_DYNAMIC, dynamic),
    ]  # fmt: skip


def _x86(static: bool) -> list[tuple[int, bytes]]:
    plt = [_PLT, _PLT + 16, LAUNCH if static else _PLT + 32]

    def to(begin: int, *code: tuple[bytes, int | None]) -> tuple[int, bytes]:
        """Put each instruction's target, relative to the next one, behind its first bytes."""
        text = b""
        for head, target in code:
            text += head
            if target is not None:
                text += struct.pack("<i", target - (begin + len(text) + 4))
        return begin, text

    lea = {register: bytes.fromhex(code) for register, code in
           {"rdi": "488d3d", "rsi": "488d35", "rcx": "488d0d"}.items()}  # fmt: skip

    def registers(bound: str, target: int) -> list[tuple[bytes, int | None]]:
        copied = (bytes.fromhex("4889ca"), None)
        return [
            (lea["rsi"], STUB), (lea["rcx"], 0x100), copied, (bytes.fromhex(bound), None),
            (b"\xe8", target),
        ]  # fmt: skip

    jumps = [
        to(_PLT + 16 * number, (b"\xff\x25", _SLOTS + 8 * number)) for number in range(len(_NAMES))
    ]
    return [
        *jumps,
        to(
            _CONSTRUCTOR,
            (lea["rdi"], _WRAPPER),
            *registers("4531c0", LAUNCH),  # as variables are: r8d is 0
            *registers("41b8ffffffff", plt[0]),
            (b"\xc3", None),
        ),
        to(
            STUB, (lea["rsi"], STUB), (lea["rdi"], _HANDLE), (b"\xe8", plt[1]),
            (bytes.fromhex("488b3d"), _HANDLE), (b"\xe8", plt[2]), (b"\xc3", None),
        ),
        (LAUNCH, b"\xc3"),
    ]  # fmt: skip


def _arm64() -> list[tuple[int, bytes]]:
    def adrp(register: int, place: int, target: int) -> int:
        pages = (target >> 12) - (place >> 12)
        return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register

    def add(register: int, target: int) -> int:
        return 0x91000000 | (target & 0xFFF) << 10 | register << 5 | register

    at = _CONSTRUCTOR
    code = [
        adrp(1, at, STUB), add(1, STUB), adrp(3, at + 8, 0x100), add(3, 0x100),
        0x94000000 | (_PLT - (at + 16)) // 4 & 0x03FFFFFF, 0xD65F03C0,
    ]  # fmt: skip
    plt = [adrp(16, _PLT, _SLOTS), 0xF9400211 | _SLOTS // 8 << 10, add(16, _SLOTS), 0xD61F0220]
    return [
        (begin, b"".join(word.to_bytes(4, "little") for word in words))
        for begin, words in ((at, code), (_PLT, plt), (STUB, [0xD65F03C0]))
    ]
