"""What to attach to a file: each row of the probe table, on each variant that is there, once.

- A row names functions exactly or by a pattern (`*`, `?`, `[...]`). An exact name also stands for
  its variants: `cuMemAlloc` for `cuMemAlloc_v2`, `cuMemAlloc_v2_ptds`, ...; a row that names the
  variant itself goes first.
- Patterns hold in files that the row's own `files` match. Exact names hold in every file that
  defines them: a program may contain the CUDA runtime.
- Names at one offset (ncclAllReduce and pncclAllReduce) are one function: one probe of a group.
- A function that begins with endbr64 is probed behind it: nothing has changed by then, and the
  instruction behind is often one that the kernel passes without a single step (0.6 us against 3 to
  11 us).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from itertools import chain
from typing import Final, NamedTuple, Protocol

from .counts import Group
from .elf_file import ElfFile
from .elf_layout import Machine
from .entry_class import ENDBR64, EntryClass

_VERSION: Final = re.compile(r"_v[2-9]\d?$")
_STREAM: Final = ("_ptsz", "_ptds")
_WILD: Final = re.compile(r"[*?\[]")
_EXACT, _OF_VERSION, _OF_NAME, _PATTERN = range(4)


class PlannedRow(Protocol):
    """The part of a `ProbeRow` that says where it is attached.

    files    patterns of file names
    symbols  names or patterns of functions
    usdt     `provider:name`, either may be a pattern
    returns  whether the return is probed too
    """

    @property
    def group(self) -> Group: ...
    @property
    def files(self) -> Sequence[str]: ...
    @property
    def symbols(self) -> Sequence[str]: ...
    @property
    def usdt(self) -> Sequence[str]: ...
    @property
    def returns(self) -> object: ...


class PlannedTable(Protocol):
    """The part of a `ProbeTable` that planning reads."""

    @property
    def rows(self) -> Sequence[PlannedRow]: ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """Places in one file that are attached by one link; the tuples run side by side.

    group       what they belong to
    returns     probe the returns instead of the entries
    offsets     bytes from the start of the file
    rows        index of the row in the table: half of the attach cookie
    semaphores  offset of a USDT counter in the file, 0: none
    classes     how the kernel passes the probed instruction: what a hit costs
    """

    group: Group
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


class _Place(NamedTuple):
    rank: int
    row: int
    semaphore: int


class PlanBook:
    """A probe table made ready to plan many files."""

    def __init__(self, table: PlannedTable) -> None:
        self._rows = tuple(table.rows)
        self._exact: dict[str, list[int]] = {}
        for index, row in enumerate(self._rows):
            for symbol in row.symbols:
                if not _WILD.search(symbol):
                    self._exact.setdefault(symbol, []).append(index)

    def plan(self, elf: ElfFile, file_name: str, past_endbr: bool = True) -> FilePlan:
        """Plan one file.

        file_name   without folders: what the rows' file patterns are held against
        past_endbr  probe behind a first instruction endbr64
        """
        chosen: dict[tuple[Group, int], _Place] = {}
        places = chain(self._functions(elf, file_name), self._marks(elf, file_name))
        for group, offset, place in places:
            at = _behind_endbr(elf, offset) if past_endbr else offset
            if (group, at) not in chosen or place < chosen[group, at]:
                chosen[group, at] = place
        return FilePlan(tuple(self._attachments(elf, chosen)), self._remark(elf, bool(chosen)))

    def _functions(self, elf: ElfFile, file_name: str) -> Iterator[tuple[Group, int, _Place]]:
        patterns = self._patterns(file_name)
        for function in elf.functions():
            for rank, row in self._rows_of(function.name, patterns):
                yield self._rows[row].group, function.offset, _Place(rank, row, 0)

    def _rows_of(
        self, name: str, patterns: list[tuple[re.Pattern[str], int]]
    ) -> Iterator[tuple[int, int]]:
        for rank, spelling in _spellings(name):
            for row in self._exact.get(spelling, ()):
                yield rank, row
        for pattern, row in patterns:
            if pattern.match(name):
                yield _PATTERN, row

    def _patterns(self, file_name: str) -> list[tuple[re.Pattern[str], int]]:
        return [
            (re.compile(translate(symbol)), index)
            for index, row in enumerate(self._rows)
            if any(fnmatchcase(file_name, pattern) for pattern in row.files)
            for symbol in row.symbols
            if _WILD.search(symbol)
        ]

    def _marks(self, elf: ElfFile, file_name: str) -> Iterator[tuple[Group, int, _Place]]:
        for mark in elf.usdt:
            for index, row in enumerate(self._rows):
                known = any(fnmatchcase(file_name, pattern) for pattern in row.files)
                for wanted in row.usdt:
                    exact = not _WILD.search(wanted)
                    if (known or exact) and fnmatchcase(f"{mark.provider}:{mark.name}", wanted):
                        rank = _EXACT if exact else _PATTERN
                        place = _Place(rank, index, mark.semaphore_offset)
                        yield row.group, mark.offset, place

    def _attachments(
        self, elf: ElfFile, chosen: dict[tuple[Group, int], _Place]
    ) -> Iterator[Attachment]:
        for group in Group:
            places = sorted((at, place) for (of, at), place in chosen.items() if of is group)
            for returns in (False, True):
                # A USDT mark is an instruction, not a call: it does not return.
                wanted = [
                    (at, place)
                    for at, place in places
                    if not returns
                    or (self._rows[place.row].returns and self._rows[place.row].symbols)
                ]
                if wanted:
                    yield Attachment(
                        group,
                        returns,
                        tuple(at for at, _ in wanted),
                        tuple(place.row for _, place in wanted),
                        tuple(place.semaphore for _, place in wanted),
                        tuple(elf.entry_class(at) for at, _ in wanted),
                    )

    @staticmethod
    def _remark(elf: ElfFile, planned: bool) -> str:
        if planned or not elf.has_device_code or elf.has_symbol_table:
            return ""
        if any(name.startswith(("__cudaRegister", "__hipRegister")) for name in elf.undefined()):
            return ""  # its runtime is a library of its own, seen there
        return (
            "contains a GPU runtime without symbols (static and stripped): "
            "only calls of the driver's library are seen"
        )


def plan_file(
    elf: ElfFile, table: PlannedTable, file_name: str, past_endbr: bool = True
) -> FilePlan:
    """Plan one file; `PlanBook` is quicker for many."""
    return PlanBook(table).plan(elf, file_name, past_endbr)


def _spellings(name: str) -> Iterator[tuple[int, str]]:
    """Yield the names under which a table may know a function, the closest first."""
    yield _EXACT, name
    of_version = name[:-5] if name.endswith(_STREAM) else name
    if of_version != name:
        yield _OF_VERSION, of_version
    if "_v" in of_version[-4:] and (found := _VERSION.search(of_version)):
        yield _OF_NAME, of_version[: found.start()]


def _behind_endbr(elf: ElfFile, offset: int) -> int:
    endbr = elf.machine is Machine.X86_64 and elf.code(offset).startswith(ENDBR64)
    return offset + len(ENDBR64) if endbr else offset
