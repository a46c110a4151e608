"""Code of x86-64 read without running it: who calls a function, and what arguments it is given.

Registers are followed instruction by instruction, as far as they get addresses and numbers of the
file; what is anything else is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import capstone
import numpy as np

from .loaded_file import USER_SPACE, Bytes, LoadedFile, Numbers, among, ascending

_FARTHEST: Final = 192
"""Bytes in which a call's arguments are set: between two calls that follow each other, too."""
_NEAREST: Final = 24
_ENOUGH: Final = 24
"""Beginnings that agree: from a wrong one code is read rightly after a few instructions."""
_ADDRESS_SIZE: Final = 0x67
_PREFIXES: Final = (b"\xf2", b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfa\xf2")
"""With which a jump through a pointer may begin: bnd, endbr64."""

_NAMES: Final = (
    *(("r" + name, "e" + name) for name in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")),
    *((f"r{number}", f"r{number}d") for number in range(8, 16)),
)
_WHOLE: Final = {part: whole for whole, half in _NAMES for part in (whole, half)}
_KEPT: Final = frozenset({"rbx", "rbp", "r12", "r13", "r14", "r15"})
"""What a called function leaves as it was."""
_RELATIVE: Final = re.compile(r"(?:qword ptr )?\[rip(?: ([+-]) (0x[0-9a-f]+|\d+))?\]")
_ZEROED: Final = {f"{name}, {name}" for name in _WHOLE}
_CHANGE_NOTHING: Final = frozenset({"push", "cmp", "test", "nop", "endbr64", "jmp", "ret"})

Registers = dict[str, int]
_HOST, _NAME = "rsi", "rcx"


def _numbers(code: Bytes, at: Numbers) -> Numbers:
    """Give the signed numbers of 32 bits at places of the code."""
    parts = [code[at + place].astype(np.uint32) << np.uint32(8 * place) for place in range(4)]
    return np.asarray(parts[0] | parts[1] | parts[2] | parts[3]).view(np.int32).astype(np.int64)


def _relative(after: int, operand: str) -> int | None:
    """Give the address of an operand that is relative to the next instruction, of 64 bits."""
    found = _RELATIVE.fullmatch(operand)
    if found is None:
        return None
    away = int(found[2] or "0", 0)
    return after - away if found[1] == "-" else after + away


class X86Code:
    HOST, NAME, DEVICE, BOUND = _HOST, _NAME, "rdx", "r8"
    FIRST, SECOND = "rdi", "rsi"
    CALLS: Final = frozenset({"call"})
    JUMPS: Final = frozenset({"jmp"})
    ENDS: Final = frozenset({"ret", "int3"})

    def __init__(self, file: LoadedFile) -> None:
        self._file = file
        self._engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)

    def jumps_through(self, slots: Collection[int]) -> tuple[list[int], list[int]]:
        """Give (where pieces of code begin that only jump through a slot, calls through one)."""
        jumps, calls, wanted = list[int](), list[int](), ascending(slots)
        for address, code, own in self._file.pieces():
            at = np.flatnonzero(code[: len(code) - 5] == 0xFF)
            at = at[at < own]
            at = at[(code[at + 1] == 0x25) | (code[at + 1] == 0x15)]
            hit = at[among(_numbers(code, at + 2) + at + 6 + address, wanted)]
            for place in hit.tolist():
                (jumps if code[place + 1] == 0x25 else calls).append(address + place)
        prefixed = [
            jump - len(prefix)
            for jump in jumps
            for prefix in _PREFIXES
            if self._file.read(jump - len(prefix), len(prefix)) == prefix
        ]
        return jumps + prefixed, calls

    def calls(self, targets: Collection[int]) -> dict[int, int]:
        """Give (address: bytes) of calls of, and jumps to, one of the targets."""
        found, wanted = dict[int, int](), ascending(targets)
        for address, code, own in self._file.pieces():
            at = np.flatnonzero((code[: len(code) - 4] & 0xFE) == 0xE8)
            at = at[at < own]
            hit = at[among(_numbers(code, at + 1) + at + 5 + address, wanted)]
            # A linker writes `addr32 call` for a call through a pointer that it knows.
            for place in hit.tolist():
                long = int(place > 0 and code[place - 1] == _ADDRESS_SIZE)
                found[address + place - long] = 5 + long
        return found

    def mentions(self, addresses: Collection[int]) -> list[int]:
        """Give the instructions that put one of the addresses into a register."""
        found, wanted = list[int](), ascending(addresses)
        for address, code, own in self._file.pieces():
            if len(code) < 8:
                continue
            lea = ((code[:-7] & 0xFB) == 0x48) & (code[1:-6] == 0x8D) & ((code[2:-5] & 0xC7) == 5)
            at = np.flatnonzero(lea)
            at = at[at < own]
            found += (
                at[among(_numbers(code, at + 3) + at + 7 + address, wanted)] + address
            ).tolist()
            if self._file.fixed:
                at = np.flatnonzero((code[:-7] & 0xF8) == 0xB8)
                at = at[at < own]
                found += (at[among(_numbers(code, at + 1), wanted)] + address).tolist()
        return sorted(found)

    def walk(self, begin: int, size: int, values: Registers) -> Iterator[tuple[int, int, str, str]]:
        """Yield (address, size, name, operands), with the registers as they are before each."""
        for address, length, name, operands in self._engine.disasm_lite(
            self._file.read(begin, size), begin
        ):
            yield address, length, name, operands
            self._step(values, address + length, name, operands)

    def target(self, after: int, operands: str) -> int | None:
        """Give where a call goes, or the pointer through which it goes."""
        if operands.startswith("0x"):
            return int(operands, 16)
        return _relative(after, operands) if operands.startswith("qword ptr [rip") else None

    def note_load(
        self, loads: Registers, _values: Registers, after: int, name: str, operands: str
    ) -> None:
        """Note from which address of the file each register was loaded last."""
        first, _, second = operands.partition(", ")
        register = _WHOLE.get(first, "")
        place = None
        if name == "mov":
            place = loads.get(_WHOLE.get(second, ""))
            if second.startswith("qword ptr [rip"):
                place = _relative(after, second)
        if name == "call":
            loads.clear()
        elif place is not None:
            loads[register] = place
        elif name not in _CHANGE_NOTHING:
            loads.pop(register, None)

    def arguments(self, calls: dict[int, int]) -> Iterator[tuple[int, Registers]]:
        """Yield each call with its registers; `calls` are address -> bytes of the instruction."""
        after = -USER_SPACE
        for call in sorted(calls):
            values = self._follow(after, call) if 0 < call - after <= _FARTHEST else None
            if values is None or _HOST not in values or _NAME not in values:
                values = self._before(call)
            yield call, values
            after = call + calls[call]

    def _follow(self, begin: int, end: int) -> Registers | None:
        """Give the registers at `end`, or None where no instruction begins there."""
        values: Registers = {}
        place = begin
        for address, size, _, _ in self.walk(begin, end - begin, values):
            place = address + size
        return values if place == end else None

    def _before(self, call: int) -> Registers:
        """Give the registers at a call of which no beginning is known: most starts agree soon."""
        votes: Counter[tuple[int, int]] = Counter()
        for back in range(_NEAREST, _FARTHEST):
            values = self._follow(call - back, call)
            if values is not None and _HOST in values and _NAME in values:
                votes[values[_HOST], values[_NAME]] += 1
                if max(votes.values()) >= _ENOUGH:
                    break
        if not votes:
            return {}
        host, name = max(votes, key=lambda seen: votes[seen])
        return {_HOST: host, _NAME: name}

    def _step(self, values: Registers, after: int, name: str, operands: str) -> None:
        if name in _CHANGE_NOTHING:
            return
        if name in {"lea", "mov", "movabs"}:
            self._move(values, after, name, operands)
        elif name == "call":
            for register in values.keys() - _KEPT:
                del values[register]
        elif name == "xor" and operands in _ZEROED:
            values[_WHOLE[operands.partition(",")[0]]] = 0
        else:
            values.pop(_WHOLE.get(operands.partition(",")[0], ""), None)

    def _move(self, values: Registers, after: int, name: str, operands: str) -> None:
        first, _, second = operands.partition(", ")
        register = _WHOLE.get(first)
        if register is None:
            return
        value = _relative(after, second) if "[rip" in second else None
        if value is not None:
            if name == "mov":
                value = self._file.pointer(value) if first == register else None
        elif name != "lea":
            value = values.get(_WHOLE.get(second, ""))
            if value is None and second[:1].isdigit():
                value = int(second, 0)
        if value is None:
            values.pop(register, None)
        else:
            values[register] = value
