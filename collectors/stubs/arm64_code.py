"""Code of arm64 read without running it: who calls a function, and the names that it registers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import capstone
import numpy as np
from numpy.typing import NDArray

from .loaded_file import USER_SPACE, LoadedFile, among, ascending

_FARTHEST: Final = 4096
"""Bytes between two calls that follow each other; registers hold on from one to the next."""
_BEFORE: Final = 512
_BTI: Final = 0xD503245F
_KEPT: Final = frozenset(f"x{number}" for number in range(19, 29))
_CHANGE_NOTHING: Final = frozenset({"str", "stp", "stur", "cmp", "nop", "b", "ret"})
_HOST, _NAME = "x1", "x3"

Registers = dict[str, int]


class Arm64Code:
    def __init__(self, file: LoadedFile) -> None:
        self._file = file
        self._engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN)
        self._engine.skipdata = True  # it begins at no function's begin

    def jumps_through(self, slots: Collection[int]) -> list[int]:
        """Give where code begins that jumps through a slot: adrp x16; ldr x17, [x16]; br x17."""
        found, wanted = list[int](), ascending(slots)
        for address, words in self._words():
            at = np.flatnonzero((words[:-1] & 0x9F00001F) == 0x90000010)
            at = at[(words[at + 1] & 0xFFC003FF) == 0xF9400211]
            word, load = words[at].astype(np.int64), words[at + 1].astype(np.int64)
            page = (((word >> 5) & 0x7FFFF) << 2) | ((word >> 29) & 3)
            page = ((page ^ 0x100000) - 0x100000) << 12
            slot = ((at * 4 + address) & ~0xFFF) + page + (((load >> 10) & 0xFFF) << 3)
            for place in at[among(slot, wanted)].tolist():
                found.append(address + 4 * place)
                if place and int(words[place - 1]) == _BTI:
                    found.append(address + 4 * place - 4)
        return found

    def calls(self, targets: Collection[int]) -> list[int]:
        found, wanted = list[int](), ascending(targets)
        for address, words in self._words():
            at = np.flatnonzero((words & 0x7C000000) == 0x14000000)
            away = ((words[at].astype(np.int64) & 0x03FFFFFF) ^ 0x02000000) - 0x02000000
            hit = at[among(away * 4 + at * 4 + address, wanted)]
            found += (hit * 4 + address).tolist()
        return found

    def arguments(self, calls: Collection[int]) -> Iterator[tuple[int | None, int | None]]:
        """Yield (host stub, name) of each registering call."""
        before, values = -USER_SPACE, Registers()
        for call in sorted(calls):
            near = 0 < call - before <= _FARTHEST
            values = self._follow(before + 4, call, values) if near else {}
            if not near:
                values = self._follow(max(call - _BEFORE, self._file.begin(call)), call, {})
            yield values.get(_HOST), values.get(_NAME)
            values = {name: value for name, value in values.items() if name in _KEPT}
            before = call

    def _words(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        for address, code, own in self._file.pieces():
            skip = -address % 4
            whole = (own - skip) & ~3
            if whole > 0:
                yield address + skip, code[skip : skip + whole].view("<u4")

    def _follow(self, begin: int, end: int, values: Registers) -> Registers:
        """Only what makes addresses is followed: all else is unknown."""
        code = self._file.read(begin, end - begin)
        for _, _, name, operands in self._engine.disasm_lite(code, begin):
            parts = operands.replace("[", "").replace("]", "").replace("#", "").split(", ")
            values = self._step(values, name, operands, parts)
        return values

    def _step(self, values: Registers, name: str, operands: str, parts: list[str]) -> Registers:
        if name in {"bl", "blr"}:
            return {register: value for register, value in values.items() if register in _KEPT}
        if name in _CHANGE_NOTHING:
            return values
        register = "x" + parts[0][1:] if parts[0][:1] in {"x", "w"} else parts[0]
        source = values.get(parts[1]) if len(parts) > 1 else None
        number = int(parts[2], 0) if len(parts) > 2 and parts[2][:1].isdigit() else 0
        value: int | None = None
        if name in {"adrp", "adr"}:
            value = int(parts[1], 0)
        elif source is not None and name == "add" and len(parts) == 3 and parts[2][:1].isdigit():
            value = source + number
        elif source is not None and name == "mov":
            value = source
        elif source is not None and name == "ldr" and "!" not in operands and len(parts) < 4:
            value = self._file.pointer(source + number)
        values.pop(register, None)
        if name == "ldp" and len(parts) > 1:
            values.pop(parts[1], None)
        if value is not None:
            values[register] = value
        return values
