"""Probe tables: rows of data that say which symbol is probed and what its arguments mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from collectors.records.gpu_calls import Direction, ProbeGroup
from transport.settings.config import build, limited, read_table

MAX_ROWS: Final = 512
MAX_SLOT: Final = 15
MAX_OFFSET: Final = 4095
MAX_ELEMENT_SIZES: Final = 16


class ProbeTableError(ValueError):
    """A table that cannot be used: says where, what was expected and what came."""


class CallKind(StrEnum):
    """What a call means to the programs, in the order of `enum kind`."""

    COUNT = "count"
    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph_launch"
    ALLOCATE = "allocate"
    FREE = "free"
    COPY = "copy"
    MEMSET = "memset"
    WAIT = "wait"
    NAME = "name"
    COLLECTIVE = "collective"


class Meaning(StrEnum):
    """What an argument is, in the order of `enum meaning`.

    object      kernel, freed pointer, graph or communicator, by the row's kind
    out         address to which the call writes the pointer or handle that it makes
    grid        x, y, z as 32-bit words of a struct dim3 (two slots, or in memory)
    grid_x      the first of three slots of 32 bits
    size        bytes or elements; times size_y and size_z, where they are given
    pitch_out   address to which the call writes the bytes of a line: times size
    datatype    index into the row's element_sizes
    name        address of the kernel's name; host the address of its host stub
    name_out    address to which the call writes the address of the object's name
    """

    OBJECT = "object"
    OUT = "out"
    GRID = "grid"
    GRID_X = "grid_x"
    BLOCK = "block"
    BLOCK_X = "block_x"
    SHARED = "shared"
    STREAM = "stream"
    EVENT = "event"
    SIZE = "size"
    SIZE_Y = "size_y"
    SIZE_Z = "size_z"
    PITCH_OUT = "pitch_out"
    DATATYPE = "datatype"
    DIRECTION = "direction"
    NAME = "name"
    HOST = "host"
    NAME_OUT = "name_out"


class ArgumentPlace(NamedTuple):
    """Slot 0, 1, ... as the ABI has it, or an offset in memory that the slot points to."""

    slot: int
    offset: int | None = None


_ID: Final = "[a-z][a-z0-9_]*"

_GROUPS: Final = {
    CallKind.COUNT: ProbeGroup.OTHER,
    CallKind.LAUNCH: ProbeGroup.LAUNCH,
    CallKind.GRAPH_LAUNCH: ProbeGroup.LAUNCH,
    CallKind.ALLOCATE: ProbeGroup.MEMORY,
    CallKind.FREE: ProbeGroup.MEMORY,
    CallKind.COPY: ProbeGroup.COPY,
    CallKind.MEMSET: ProbeGroup.COPY,
    CallKind.WAIT: ProbeGroup.SYNCHRONISE,
    CallKind.NAME: ProbeGroup.NAME,
    CallKind.COLLECTIVE: ProbeGroup.COLLECTIVE,
}
_NEEDS: Final[Mapping[CallKind, tuple[frozenset[Meaning], ...]]] = {
    CallKind.LAUNCH: (frozenset({Meaning.OBJECT}),),
    CallKind.GRAPH_LAUNCH: (frozenset({Meaning.OBJECT}),),
    CallKind.ALLOCATE: (frozenset({Meaning.OUT}),),
    CallKind.FREE: (frozenset({Meaning.OBJECT}),),
    CallKind.NAME: (frozenset({Meaning.OUT, Meaning.NAME_OUT}),),
    CallKind.COLLECTIVE: (frozenset({Meaning.OBJECT}),),
}


def _expression(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text in quotes, got {value!r}")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None
    return value


def _place(value: Any) -> ArgumentPlace:
    """Read where an argument lies. Raises ValueError."""
    parts = value if isinstance(value, list) else [value]
    if not 1 <= len(parts) <= 2 or not all(type(part) is int for part in parts):
        raise ValueError(f"expected slot or [slot, offset], got {value!r}")
    place = ArgumentPlace(*parts)
    if not 0 <= place.slot <= MAX_SLOT or not 0 <= (place.offset or 0) <= MAX_OFFSET:
        raise ValueError(
            f"expected a slot of 0 to {MAX_SLOT} and an offset of 0 to {MAX_OFFSET}, got {value!r}"
        )
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One row: calls that are probed and read alike.

    files           patterns (fnmatch) of the names of files that may carry the symbols
    symbols         regular expressions, each for a whole symbol name
    usdt            static probes, `provider:name`
    status          the returned int is an error code, 0 is success
    element_sizes   bytes of an element by its datatype, 0: unknown; or one for all rows' elements
    device          the memory is the device's: it counts as live until freed
    """

    kind: CallKind
    id: str = limited(form=_ID)
    group: ProbeGroup
    files: tuple[str, ...] = limited(form=".+")
    symbols: tuple[str, ...] = limited((), read=_expression)
    usdt: tuple[str, ...] = limited((), form="[^:]*:[^:]*")
    arguments: Mapping[Meaning, ArgumentPlace] = field(
        default_factory=dict, metadata={"read": _place}
    )
    returns: bool = False
    status: bool = False
    direction: Direction = Direction.DEFAULT
    element_sizes: tuple[int, ...] = limited((), low=0, high=255, most=MAX_ELEMENT_SIZES)
    device: bool = True

    def in_file(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.files)

    def has_symbol(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.symbols)

    @property
    def return_group(self) -> ProbeGroup:
        """The group of the row's return probe: launches can be counted without it."""
        return ProbeGroup.LAUNCH_RESULT if self.group is ProbeGroup.LAUNCH else self.group


@dataclass(frozen=True, slots=True)
class ProbeTable:
    """Rows of one or several tables; a row's place is the index by which programs know it."""

    rows: tuple[ProbeRow, ...]

    @classmethod
    def load(cls, *paths: Path) -> ProbeTable:
        """Read tables; without paths, those that come with the agent. Raises ProbeTableError."""
        paths = paths or shipped_tables()
        rows = [row for path in paths for row in _read(path)]
        seen: set[str] = set()
        for row in rows:
            if row.id in seen:
                raise ProbeTableError(f"row {row.id}: expected a name of its own, it is taken")
            seen.add(row.id)
        if len(rows) > MAX_ROWS:
            raise ProbeTableError(f"expected at most {MAX_ROWS} rows, got {len(rows)}")
        return cls(tuple(rows))

    def index(self, row_id: str) -> int:
        return [row.id for row in self.rows].index(row_id)


def shipped_tables() -> tuple[Path, ...]:
    folder = resources(__package__).joinpath("tables")
    return tuple(sorted(Path(str(e)) for e in folder.iterdir() if e.name.endswith(".toml")))


def _read(path: Path) -> Iterator[ProbeRow]:
    try:
        content = read_table(path, error=ProbeTableError)
    except OSError as error:
        raise ProbeTableError(f"{path}: {error.strerror}") from None
    for row in rows if isinstance(rows := content.get("row"), list) else ():
        _complete(row, content.get("files"))
    table = build(_Table, content, f"{path}: ", error=ProbeTableError)
    for row in table.rows:
        if problem := _problem(row):
            raise ProbeTableError(f"{path}: row[{row.id}]: {problem}")
        symbols = tuple(pattern + table.variants for pattern in row.symbols)
        made = replace(row, id=f"{table.name}.{row.id}", symbols=symbols)
        yield from _by_stream(made, table.on_stream) if table.on_stream else [made]


def _complete(row: Any, files: Any) -> None:
    kind = row.get("kind") if isinstance(row, dict) else None
    if not isinstance(kind, str) or kind not in set(CallKind):
        return
    row.setdefault("group", _GROUPS[CallKind(kind)].value)
    for key in ("returns", "status"):
        row.setdefault(key, kind != CallKind.COUNT)
    if row.get("files", []) == []:
        row["files"] = files


def _by_stream(row: ProbeRow, on_stream: str) -> Iterator[ProbeRow]:
    """Split a row of which some symbols lack the stream: their register holds what lay there."""
    with_stream = tuple(symbol for symbol in row.symbols if re.search(on_stream, symbol))
    without = tuple(symbol for symbol in row.symbols if symbol not in with_stream)
    if Meaning.STREAM not in row.arguments or not with_stream or not without:
        yield row
        return
    rest: dict[Meaning, ArgumentPlace] = dict(row.arguments)
    del rest[Meaning.STREAM]
    yield replace(row, symbols=without, arguments=rest)
    yield replace(row, id=f"{row.id}_on_stream", symbols=with_stream)


def _problem(row: ProbeRow) -> str:
    if not row.symbols and not row.usdt:
        return "expected symbols or usdt, got neither"
    if row.usdt and (row.returns or row.symbols):
        return "usdt: a static probe has no return and stands in a row of its own"
    for choices in _NEEDS.get(row.kind, ()):
        if not choices & row.arguments.keys():
            return f"arguments: a row of kind {row.kind} needs {' or '.join(sorted(choices))}"
    if {Meaning.OUT, Meaning.NAME_OUT} & row.arguments.keys() and not row.returns:
        return "arguments: out is read at the return, and returns is false"
    if Meaning.DATATYPE in row.arguments and not row.element_sizes:
        return "arguments: datatype needs element_sizes"
    if (row.kind in {CallKind.LAUNCH, CallKind.GRAPH_LAUNCH}) != (row.group is ProbeGroup.LAUNCH):
        return "group: launches, and only they, are in the group launch"
    return ""


@dataclass(frozen=True, slots=True)
class _Table:
    name: str = limited(form=_ID)
    files: tuple[str, ...] = limited(form=".+", fewest=1)
    rows: tuple[ProbeRow, ...] = limited(key="row", fewest=1)
    variants: str = limited("", read=_expression)
    on_stream: str = limited("", read=_expression)
