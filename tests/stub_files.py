"""Small libraries that register one kernel, laid out by hand: no compiler is asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

NAME: Final = "_Z4tickv"
STUB: Final = 0x280
RETURNS: Final = STUB + 31
RETURNS_ARM64: Final = STUB + 24
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
    parts += _arm64(static) if machine == _ARM64 else _x86(static)
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


def _arm64(static: bool) -> list[tuple[int, bytes]]:
    def put(register: int, place: int, target: int) -> list[int]:
        """Give adrp and add."""
        pages = (target >> 12) - (place >> 12)
        page = 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register
        return [page, 0x91000000 | (target & 0xFFF) << 10 | register << 5 | register]

    def call(place: int, target: int) -> int:
        return 0x94000000 | (target - place) // 4 & 0x03FFFFFF

    def jump(place: int, slot: int) -> list[int]:
        page, add = put(16, place, slot)
        return [page, 0xF9400211 | (slot & 0xFFF) // 8 << 10, add, 0xD61F0220]

    plt = [_PLT, _PLT + 16, LAUNCH if static else _PLT + 32]
    at = _CONSTRUCTOR
    # mov x2, x3; mov w4, #-1
    register = [*put(0, at, _WRAPPER), *put(1, at + 8, STUB), *put(3, at + 16, 0x100)]
    register += [0xAA0303E2, 0x12800004, call(at + 32, plt[0]), 0xD65F03C0]
    # cbz x9 leads behind ret, where the handle is asked for; ldr x0, [x8]; mov x8, x9
    launch = [*put(8, STUB, _HANDLE), 0xB40000A9, 0xF9400100, 0xAA0903E8]
    launch += [call(STUB + 20, plt[2]), 0xD65F03C0, *put(1, STUB + 28, STUB)]
    # mov x0, x8; b back
    launch += [0xAA0803E0, call(STUB + 40, plt[1]), 0x17FFFFF8]
    pieces = [(at, register), (STUB, launch), (LAUNCH, [0xD65F03C0])]
    pieces += [(_PLT + 16 * n, jump(_PLT + 16 * n, _SLOTS + 8 * n)) for n in range(len(_NAMES))]
    return [
        (begin, b"".join(word.to_bytes(4, "little") for word in words)) for begin, words in pieces
    ]
