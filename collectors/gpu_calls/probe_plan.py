"""What to attach to a file: each row of the probe table, on every symbol that is its own, once.

- A row's symbols are regular expressions of whole names: every variant is found (`cuMemAlloc_v2`).
- Names at one offset (ncclAllReduce and pncclAllReduce) are probed once, by the first row.
- A function that only jumps to another of its row (`__cudaLaunchKernel` of CUDA 13) is left out:
  both would count the same call, and the stack pointer, which tells calls inside calls, is equal.
- A function whose first instruction is passed in a single step (3 to 17 us) is probed at the first
  one that is not (0.6 us), where a call looks the same there (`probe_offset`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from collectors.binaries.elf import ElfError, Machine
from collectors.binaries.elf_file import ElfFile, EntryClass, Function
from collectors.records.gpu_calls import ProbeGroup

from .probe_table import ProbeTable

MOST_PLACES: Final = 4096
"""Of one link; the kernel takes more, no library has a hundredth of it."""
_MOST_NAMES: Final = 65_536
"""That begin as a row's; the CUDA runtime has 1,000. Each is held against every row."""
_LAUNCH: Final = "cudaLaunchKernel"
_LETTERS: Final = re.compile(r"[A-Za-z0-9_]+")
_GROUPED: Final = re.compile(r"\([^()]*\)")


@dataclass(frozen=True, slots=True)
class Attachment:
    """Places in one file that are attached by one link; the tuples run side by side.

    rows        index of the row in the table: half of the attach cookie
    semaphores  offset of a USDT counter in the file, 0: none
    classes     how the kernel passes the probed instruction: what a hit costs
    """

    group: ProbeGroup
    returns: bool
    offsets: tuple[int, ...]
    rows: tuple[int, ...]
    semaphores: tuple[int, ...]
    classes: tuple[EntryClass, ...]


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What to attach to a file; `remark` says what cannot be seen there and why, or is empty."""

    attachments: tuple[Attachment, ...]
    remark: str = ""

    def __bool__(self) -> bool:
        return bool(self.attachments)


class _Link(NamedTuple):
    group: ProbeGroup
    returns: bool


class _Place(NamedTuple):
    row: int
    semaphore: int


_Chosen = dict[_Link, dict[int, _Place]]


class PlanBook:
    def __init__(self, table: ProbeTable) -> None:
        self._rows = table.rows
        self._symbols = [re.compile("|".join(f"(?:{s})" for s in r.symbols)) for r in self._rows]
        self._beginnings = [tuple(map(_beginning, row.symbols)) for row in self._rows]

    def plan(self, elf: ElfFile, file_name: str, moved: bool = True) -> FilePlan:
        """Plan one file.

        moved       probe functions where it is cheapest, else at their entries
        Raises      ElfError for a file with more names or places than any library has
        """
        rows = tuple(i for i, row in enumerate(self._rows) if row.in_file(file_name))
        chosen: _Chosen = {}
        wanted = list(self._functions(elf, rows))
        known = {(function.offset, row) for function, row in wanted}
        for function, row in wanted:
            if (elf.forward(function.offset), row) in known:
                continue  # it only jumps to another function of its row
            self._choose(
                chosen, function.offset + (_probe_offset(elf, function) if moved else 0), row
            )
        for offset, row, semaphore in self._marks(elf, rows):
            link = _Link(self._rows[row].group, False)
            _choose(chosen, link, offset, _Place(row, semaphore))
        return FilePlan(_attachments(elf, chosen), _remark(elf) if rows and not chosen else "")

    def plan_launches(self, elf: ElfFile, addresses: Iterable[int]) -> FilePlan:
        """Plan functions of a file that launch kernels as `cudaLaunchKernel` does."""
        chosen: _Chosen = {}
        rows = [place for place, row in enumerate(self._rows) if row.has_symbol(_LAUNCH)]
        for address in addresses:
            offset = elf.layout.file_offset(address)
            if offset is not None and rows:
                function = Function(_LAUNCH, offset, address, 0)
                self._choose(chosen, offset + _probe_offset(elf, function), rows[0])
        return FilePlan(_attachments(elf, chosen))

    def _choose(self, chosen: _Chosen, at: int, row: int) -> None:
        _choose(chosen, _Link(self._rows[row].group, False), at, _Place(row, 0))
        if self._rows[row].returns:
            _choose(chosen, _Link(self._rows[row].return_group, True), at, _Place(row, 0))

    def _functions(self, elf: ElfFile, rows: tuple[int, ...]) -> Iterator[tuple[Function, int]]:
        beginnings = {text for row in rows for text in self._beginnings[row]}
        if not beginnings:
            return
        for number, function in enumerate(elf.functions(tuple(beginnings))):
            if number >= _MOST_NAMES:
                raise ElfError(f"expected at most {_MOST_NAMES} names that may be a row's")
            for row in rows:
                if self._rows[row].symbols and self._symbols[row].fullmatch(function.name):
                    yield function, row

    def _marks(self, elf: ElfFile, rows: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, row, semaphore) of each USDT probe that is one of a row's."""
        rows = tuple(row for row in rows if self._rows[row].usdt)
        for mark in elf.usdt:
            name = f"{mark.provider}:{mark.name}"
            for row in rows:
                if any(fnmatchcase(name, wanted) for wanted in self._rows[row].usdt):
                    yield mark.offset, row, mark.semaphore_offset


_FEW: Final = {
    ProbeGroup.LAUNCH: 384,
    ProbeGroup.NAME: 384,
    ProbeGroup.COLLECTIVE: 384,
    ProbeGroup.SYNCHRONISE: 384,
    ProbeGroup.COPY: 256,
}
"""What is probed where each place takes a tenth of a second to let go, and while how many are."""


def few(attachments: Sequence[Attachment], taken: int) -> tuple[Attachment, ...]:
    """Leave of a file what reports are made of, beside `taken` places of others."""
    kept: list[Attachment] = []
    for group, room in _FEW.items():
        own = [
            one
            for one in attachments
            if one.group is group and not (one.returns and group is ProbeGroup.COPY)
        ]
        places = sum(len(one.offsets) for one in own)
        if taken + places <= room:
            kept += own
            taken += places
    return tuple(kept)


def _choose(chosen: _Chosen, link: _Link, offset: int, place: _Place) -> None:
    places = chosen.setdefault(link, {})
    places[offset] = min(place, places.get(offset, place))
    if len(places) > MOST_PLACES:
        raise ElfError(f"expected at most {MOST_PLACES} places of one group")


def _attachments(elf: ElfFile, chosen: _Chosen) -> tuple[Attachment, ...]:
    groups = list(ProbeGroup)
    links = sorted(chosen, key=lambda link: (groups.index(link.group), link.returns))
    return tuple(_attachment(elf, link, chosen[link]) for link in links)


def _attachment(elf: ElfFile, link: _Link, places: dict[int, _Place]) -> Attachment:
    offsets = tuple(sorted(places))
    return Attachment(
        link.group,
        link.returns,
        offsets,
        tuple(places[at].row for at in offsets),
        tuple(places[at].semaphore for at in offsets),
        tuple(elf.entry_class(at) for at in offsets),
    )


def _remark(elf: ElfFile) -> str:
    if not elf.has_device_code or elf.has_symbol_table:
        return ""
    if elf.asks_for(("__cudaRegister", "__hipRegister")):
        return ""  # its runtime is a library of its own, seen there
    return (
        "contains a GPU runtime without symbols (static and stripped): "
        "only calls of the driver's library are seen"
    )


def _beginning(expression: str) -> bytes:
    """Give the letters with which every match of an expression begins."""
    if "|" in _GROUPED.sub("", expression):
        return b""
    letters = _LETTERS.match(expression)
    text = letters.group() if letters is not None else ""
    optional = expression[len(text) : len(text) + 1] in {"?", "*", "{"}
    return (text[:-1] if optional else text).encode()


def _probe_offset(elf: ElfFile, function: Function) -> int:
    """Give how many bytes behind its entry a function is probed; arm64 is probed at entries."""
    stepped = elf.entry_class(function.offset) is EntryClass.STEPPED
    if elf.machine is not Machine.X86_64 or not stepped:
        return 0
    # 10 MiB of disassembler, which most machines never need.
    from collectors.binaries.probe_offset import MOST_CODE, probe_offset

    size = min(function.size or MOST_CODE, MOST_CODE)
    return probe_offset(elf.code(function.offset, size), function.size)
