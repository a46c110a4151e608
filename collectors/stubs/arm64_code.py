"""Code of arm64 read without running it: who calls a function, and what arguments it is given."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import capstone
import numpy as np
from numpy.typing import NDArray

from .loaded_file import USER_SPACE, LoadedFile, Numbers, among, ascending

_FARTHEST: Final = 4096
"""Bytes between two calls that follow each other; registers hold on from one to the next."""
_BEFORE: Final = 512
_WORD: Final = 4
_NEAR: Final = 16
"""Instructions within which `add` completes what `adrp` began."""
_BTI: Final = 0xD503245F
_KEPT: Final = frozenset(f"x{number}" for number in range(19, 29))
_CHANGE_NOTHING: Final = frozenset({"str", "stp", "stur", "cmp", "nop", "b", "ret"})
_BRANCHES: Final = frozenset({"cbz", "cbnz", "tbz", "tbnz"})
_JUMPS: Final = frozenset({"b", "br", "ret"})
_ALL: Final = {"x": (1 << 64) - 1, "w": (1 << 32) - 1}

Registers = dict[str, int]


def _pages(words: NDArray[np.uint32], begin: Numbers) -> Numbers:
    """Give the page that each adrp gives; begin: where it lies."""
    word = words.astype(np.int64)
    page = (((word >> 5) & 0x7FFFF) << 2) | ((word >> 29) & 3)
    return (begin & ~0xFFF) + (((page ^ 0x100000) - 0x100000) << 12)


class Arm64Code:
    HOST, NAME, DEVICE, BOUND = "x1", "x3", "x2", "x4"
    FIRST, SECOND = "x0", "x1"
    CALLS: Final = frozenset({"bl"})
    JUMPS: Final = frozenset({"b"})
    ENDS: Final = frozenset({"ret", "brk"})

    def __init__(self, file: LoadedFile) -> None:
        self._file = file
        self._engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN)
        self._engine.skipdata = True  # it begins at no function's begin

    def jumps_through(self, slots: Collection[int]) -> tuple[list[int], list[int]]:
        """Give where code begins that jumps through a slot: adrp x16; ldr x17, [x16]; br x17."""
        found, wanted = list[int](), ascending(slots)
        for address, words in self._words():
            at = np.flatnonzero((words[:-1] & 0x9F00001F) == 0x90000010)
            at = at[(words[at + 1] & 0xFFC003FF) == 0xF9400211]
            load = words[at + 1].astype(np.int64)
            slot = _pages(words[at], at * _WORD + address) + (((load >> 10) & 0xFFF) << 3)
            for place in at[among(slot, wanted)].tolist():
                found.append(address + _WORD * place)
                if place and int(words[place - 1]) == _BTI:
                    found.append(address + _WORD * place - _WORD)
        return found, []

    def calls(self, targets: Collection[int]) -> dict[int, int]:
        """Give (address: bytes) of calls of, and jumps to, one of the targets."""
        found, wanted = list[int](), ascending(targets)
        for address, words in self._words():
            at = np.flatnonzero((words & 0x7C000000) == 0x14000000)
            away = ((words[at].astype(np.int64) & 0x03FFFFFF) ^ 0x02000000) - 0x02000000
            hit = at[among((away + at) * _WORD + address, wanted)]
            found += (hit * _WORD + address).tolist()
        return dict.fromkeys(found, _WORD)

    def mentions(self, addresses: Collection[int]) -> list[int]:
        """Give each adrp whose register soon gets one of the addresses by an add."""
        found, wanted = set[int](), ascending(addresses)
        pages = ascending({address & ~0xFFF for address in addresses})
        for address, words in self._words():
            at = np.flatnonzero((words & 0x9F000000) == 0x90000000)
            page = _pages(words[at], at * _WORD + address)
            kept = among(page, pages)
            at, page = at[kept], page[kept]
            register = words[at] & 31
            for step in range(1, _NEAR + 1):
                add = words[np.minimum(at + step, len(words) - 1)]
                hit = ((add & 0xFFC00000) == 0x91000000) & (((add >> 5) & 31) == register)
                given = page + ((add >> 10) & 0xFFF).astype(np.int64)
                hit &= among(given, wanted)
                found.update((at[hit] * _WORD + address).tolist())
        return sorted(found)

    def walk(self, begin: int, size: int, values: Registers) -> Iterator[tuple[int, int, str, str]]:
        """Yield (address, size, name, operands), with the registers as they are before each.

        What lies behind a jump is reached by a branch: it has the registers of that.
        """
        branches: dict[int, Registers] = {}
        jumped = False
        for address, length, name, operands in self._engine.disasm_lite(
            self._file.read(begin, size), begin
        ):
            if jumped and address in branches:
                values.clear()
                values.update(branches[address])
            yield address, length, name, operands
            if name in _BRANCHES or name.startswith("b."):
                branches.setdefault(int(_parts(operands)[-1], 16), dict(values))
            self._step(values, name, operands)
            jumped = name in _JUMPS

    def target(self, _after: int, operands: str) -> int | None:
        """Give where a call goes."""
        return int(operands[1:], 16) if operands.startswith("#0x") else None

    def note_load(
        self, loads: Registers, values: Registers, _after: int, name: str, operands: str
    ) -> None:
        """Note from which address of the file each register was loaded last."""
        parts = _parts(operands)
        place = loads.get(parts[-1]) if name == "mov" else None
        if name == "ldr" and "!" not in operands and len(parts) in {2, 3} and parts[1] in values:
            place = values[parts[1]] + _number(parts[2:])
        if name in self.CALLS:
            loads.clear()
        elif place is not None:
            loads[parts[0]] = place
        elif name not in _CHANGE_NOTHING:
            loads.pop(parts[0], None)

    def arguments(self, calls: Collection[int]) -> Iterator[tuple[int, Registers]]:
        """Yield each call with its registers."""
        before, values = -USER_SPACE, Registers()
        for call in sorted(calls):
            near = 0 < call - before <= _FARTHEST
            values = values if near else {}
            begin = before + _WORD if near else max(call - _BEFORE, self._file.begin(call))
            for _ in self.walk(begin, call - begin, values):
                pass
            yield call, values
            values = {name: value for name, value in values.items() if name in _KEPT}
            before = call

    def _words(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        for address, code, own in self._file.pieces():
            skip = -address % _WORD
            whole = (own - skip) & ~3
            if whole > 0:
                yield address + skip, code[skip : skip + whole].view("<u4")

    def _step(self, values: Registers, name: str, operands: str) -> None:
        """Only what makes addresses and numbers is followed: all else is unknown."""
        if name in _CHANGE_NOTHING:
            return
        if name in {"bl", "blr"}:
            for register in values.keys() - _KEPT:
                del values[register]
            return
        parts = _parts(operands)
        width = parts[0][:1]
        register = "x" + parts[0][1:] if width == "w" else parts[0]
        source = values.get(parts[1]) if len(parts) > 1 else None
        value: int | None = None
        if name in {"adrp", "adr"} or (name == "mov" and parts[1].lstrip("-")[:1].isdigit()):
            value = int(parts[1], 0) & _ALL.get(width, 0)
        elif source is not None and name == "add" and len(parts) == 3 and parts[2][:1].isdigit():
            value = source + _number(parts[2:])
        elif source is not None and name == "mov":
            value = source
        elif source is not None and name == "ldr" and "!" not in operands and len(parts) < 4:
            value = self._file.pointer(source + _number(parts[2:]))
        values.pop(register, None)
        if name == "ldp" and len(parts) > 1:
            values.pop(parts[1], None)
        if value is not None:
            values[register] = value


def _parts(operands: str) -> list[str]:
    return operands.replace("[", "").replace("]", "").replace("#", "").split(", ")


def _number(parts: list[str]) -> int:
    return int(parts[0], 0) if parts and parts[0].lstrip("-")[:1].isdigit() else 0
