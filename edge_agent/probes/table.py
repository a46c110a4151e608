"""Probe tables: rows of data that say which symbol is probed and what its arguments mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from .counts import Direction, Group

MAX_ROWS: Final = 512
MAX_SLOT: Final = 15
MAX_OFFSET: Final = 4095
MAX_ELEMENT_SIZES: Final = 16
_ID: Final = re.compile(r"[a-z][a-z0-9_]*")


class ProbeTableError(ValueError):
    """A table that cannot be used: says where, what was expected and what came."""


class Kind(StrEnum):
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
    module      address of the name of the module's or library's file
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
    MODULE = "module"


class Place(NamedTuple):
    """Where an argument lies: an integer slot of the call, or memory that a slot points to.

    slot    0, 1, ...: registers first, then words of the stack, as the ABI has it
    offset  of the value behind the pointer in that slot, or None: the slot itself
    """

    slot: int
    offset: int | None = None


_GROUPS: Final = {
    Kind.COUNT: Group.OTHER,
    Kind.LAUNCH: Group.LAUNCH,
    Kind.GRAPH_LAUNCH: Group.LAUNCH,
    Kind.ALLOCATE: Group.MEMORY,
    Kind.FREE: Group.MEMORY,
    Kind.COPY: Group.COPY,
    Kind.MEMSET: Group.COPY,
    Kind.WAIT: Group.SYNCHRONISE,
    Kind.NAME: Group.NAME,
    Kind.COLLECTIVE: Group.COLLECTIVE,
}
_NEEDS: Final[Mapping[Kind, tuple[frozenset[Meaning], ...]]] = {
    Kind.LAUNCH: (frozenset({Meaning.OBJECT}),),
    Kind.GRAPH_LAUNCH: (frozenset({Meaning.OBJECT}),),
    Kind.ALLOCATE: (frozenset({Meaning.OUT}),),
    Kind.FREE: (frozenset({Meaning.OBJECT}),),
    Kind.NAME: (frozenset({Meaning.OUT, Meaning.OBJECT}),),
    Kind.COLLECTIVE: (frozenset({Meaning.OBJECT}),),
}
"""Of each set, a row of the kind needs one."""


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One row: calls that are probed and read alike.

    files           patterns (fnmatch) of the names of files that may carry the symbols
    symbols         regular expressions, each for a whole symbol name
    usdt            static probes, `provider:name`
    arguments       where the argument of each meaning lies
    returns         the return is probed too
    status          the returned int is an error code, 0 is success
    direction       of copies without an argument that says it
    element_sizes   bytes of an element by its datatype, 0: unknown; or one for all rows' elements
    device          the memory is the device's: it counts as live until freed
    """

    id: str
    group: Group
    files: tuple[str, ...]
    symbols: tuple[str, ...]
    usdt: tuple[str, ...]
    kind: Kind
    arguments: Mapping[Meaning, Place] = field(default_factory=dict)
    returns: bool = False
    status: bool = False
    direction: Direction = Direction.DEFAULT
    element_sizes: tuple[int, ...] = ()
    device: bool = True

    def in_file(self, name: str) -> bool:
        """Tell whether a file of this name may carry the row's symbols."""
        return any(fnmatchcase(name, pattern) for pattern in self.files)

    def has_symbol(self, name: str) -> bool:
        """Tell whether a symbol is one of the row's."""
        return any(re.fullmatch(pattern, name) for pattern in self.symbols)

    @property
    def return_group(self) -> Group:
        """The group of the row's return probe: launches can be counted without it."""
        return Group.LAUNCH_RESULT if self.group is Group.LAUNCH else self.group


@dataclass(frozen=True, slots=True)
class ProbeTable:
    """Rows of one or several tables; a row's place is the index by which programs know it."""

    rows: tuple[ProbeRow, ...]

    @classmethod
    def load(cls, *paths: Path) -> ProbeTable:
        """Read tables; without paths, those that come with the agent. Raises ProbeTableError."""
        if not paths:
            paths = tuple(sorted(_own_tables()))
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
        """Give the place of a row. Raises KeyError."""
        for place, row in enumerate(self.rows):
            if row.id == row_id:
                return place
        raise KeyError(row_id)


def _own_tables() -> Iterator[Path]:
    for entry in resources("edge_agent").joinpath("probes/tables").iterdir():
        if entry.name.endswith(".toml"):
            yield Path(str(entry))


def _read(path: Path) -> Iterator[ProbeRow]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProbeTableError(f"{path}: expected a TOML table of probes: {error}") from None
    reader = _Reader(f"{path}", document)
    name, files = reader.text("name", _ID), reader.texts("files")
    variants = reader.expression("variants")
    rows = reader.take("row", list, [])
    reader.done()
    if not files or not rows:
        raise ProbeTableError(f"{path}: expected files and at least one [[row]]")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ProbeTableError(f"{path}: row {number}: expected a table, got {row!r}")
        yield _row(_Reader(f"{path}: row {row.get('id', number)}", row), name, files, variants)


def _row(reader: _Reader, name: str, files: tuple[str, ...], variants: str) -> ProbeRow:
    kind = reader.member("kind", Kind, None)
    row = ProbeRow(
        id=f"{name}.{reader.text('id', _ID)}",
        group=reader.member("group", Group, _GROUPS[kind]),
        files=reader.texts("files") or files,
        symbols=tuple(pattern + variants for pattern in reader.texts("symbols")),
        usdt=reader.texts("usdt"),
        kind=kind,
        arguments=reader.arguments(),
        returns=reader.take("returns", bool, kind is not Kind.COUNT),
        status=reader.take("status", bool, kind is not Kind.COUNT),
        direction=reader.member("direction", Direction, Direction.DEFAULT),
        element_sizes=reader.sizes("element_sizes"),
        device=reader.take("device", bool, True),
    )
    reader.done()
    _check(row, reader)
    return row


def _check(row: ProbeRow, reader: _Reader) -> None:
    if not row.symbols and not row.usdt:
        raise reader.error("expected symbols or usdt, got neither")
    for pattern in row.symbols:
        try:
            re.compile(pattern)
        except re.error as error:
            raise reader.error(f"symbols: {pattern!r} is no regular expression: {error}") from None
    for probe in row.usdt:
        if probe.count(":") != 1:
            raise reader.error(f"usdt: expected provider:name, got {probe!r}")
    if row.usdt and (row.returns or row.symbols):
        raise reader.error("usdt: a static probe has no return and stands in a row of its own")
    for choices in _NEEDS.get(row.kind, ()):
        if not choices & row.arguments.keys():
            wanted = " or ".join(sorted(choices))
            raise reader.error(f"arguments: a row of kind {row.kind} needs {wanted}")
    if Meaning.OUT in row.arguments and not row.returns:
        raise reader.error("arguments: out is read at the return, and returns is false")
    if Meaning.DATATYPE in row.arguments and not row.element_sizes:
        raise reader.error("arguments: datatype needs element_sizes")
    if (row.kind in {Kind.LAUNCH, Kind.GRAPH_LAUNCH}) != (row.group is Group.LAUNCH):
        raise reader.error("group: launches, and only they, are in the group launch")


_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)


class _Reader:
    """Takes known keys out of one TOML table, with their types; `done` refuses the rest."""

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        self._where, self._left = where, dict(content)

    def error(self, text: str) -> ProbeTableError:
        return ProbeTableError(f"{self._where}: {text}")

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        value = self._left.pop(key, default)
        if not isinstance(value, kind):
            raise self.error(f"{key}: expected {kind.__name__}, got {value!r}")
        return value

    def text(self, key: str, form: re.Pattern[str]) -> str:
        value = self.take(key, str, "")
        if not form.fullmatch(value):
            raise self.error(f"{key}: expected a name like {form.pattern}, got {value!r}")
        return value

    def expression(self, key: str) -> str:
        value = self.take(key, str, "")
        try:
            re.compile(value)
        except re.error as error:
            raise self.error(f"{key}: {value!r} is no regular expression: {error}") from None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, list, [])
        if not all(isinstance(one, str) and one for one in value):
            raise self.error(f"{key}: expected a list of strings, got {value!r}")
        return tuple(cast("list[str]", value))

    def member(self, key: str, kind: type[_E], default: _E | None) -> _E:
        value = self.take(key, str, default or "")
        try:
            return kind(value)
        except ValueError:
            raise self.error(f"{key}: expected one of {', '.join(kind)}, got {value!r}") from None

    def sizes(self, key: str) -> tuple[int, ...]:
        value = self.take(key, list, [])
        if len(value) > MAX_ELEMENT_SIZES or not all(
            type(one) is int and 0 <= one <= 255 for one in value
        ):
            raise self.error(
                f"{key}: expected at most {MAX_ELEMENT_SIZES} numbers of 0 to 255, got {value!r}"
            )
        return tuple(value)

    def arguments(self) -> Mapping[Meaning, Place]:
        found: dict[Meaning, Place] = {}
        for key, value in self.take("arguments", dict, {}).items():
            if key not in set(Meaning):
                raise self.error(f"arguments: expected one of {', '.join(Meaning)}, got {key!r}")
            parts = value if isinstance(value, list) else [value]
            if not 1 <= len(parts) <= 2 or not all(type(part) is int for part in parts):
                raise self.error(f"arguments.{key}: expected slot or [slot, offset], got {value!r}")
            place = Place(*parts)
            if not 0 <= place.slot <= MAX_SLOT or not 0 <= (place.offset or 0) <= MAX_OFFSET:
                raise self.error(
                    f"arguments.{key}: expected a slot of 0 to {MAX_SLOT} and an offset of 0 to "
                    f"{MAX_OFFSET}, got {value!r}"
                )
            found[Meaning(key)] = place
        return found

    def done(self) -> None:
        if self._left:
            raise self.error(f"unknown keys: {', '.join(sorted(self._left))}")
