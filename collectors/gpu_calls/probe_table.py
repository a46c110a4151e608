"""Probe tables: rows of data that say which symbol is probed and what its arguments mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.resources import files as resources
from pathlib import Path
from typing import Final

from collectors.records.gpu_calls import Direction, ProbeGroup

from .meanings import MAX_ROWS, ArgumentPlace, CallKind, Meaning, ProbeTableError
from .table_reader import TableReader

__all__ = ["ArgumentPlace", "CallKind", "Meaning", "ProbeRow", "ProbeTable", "ProbeTableError"]

_ID: Final = re.compile(r"[a-z][a-z0-9_]*")


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
    CallKind.NAME: (frozenset({Meaning.OUT, Meaning.OBJECT}),),
    CallKind.COLLECTIVE: (frozenset({Meaning.OBJECT}),),
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
    group: ProbeGroup
    files: tuple[str, ...]
    symbols: tuple[str, ...]
    usdt: tuple[str, ...]
    kind: CallKind
    arguments: Mapping[Meaning, ArgumentPlace] = field(default_factory=dict)
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
        """Give the place of a row. Raises KeyError."""
        for place, row in enumerate(self.rows):
            if row.id == row_id:
                return place
        raise KeyError(row_id)


def shipped_tables() -> tuple[Path, ...]:
    """Give the tables that come with the agent."""
    folder = resources(__package__).joinpath("tables")
    return tuple(sorted(Path(str(e)) for e in folder.iterdir() if e.name.endswith(".toml")))


def _read(path: Path) -> Iterator[ProbeRow]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProbeTableError(f"{path}: expected a TOML table of probes: {error}") from None
    reader = TableReader(f"{path}", document)
    name, files = reader.text("name", _ID), reader.texts("files")
    variants, on_stream = reader.expression("variants"), reader.expression("on_stream")
    rows = reader.take("row", list, [])
    reader.done()
    if not files or not rows:
        raise ProbeTableError(f"{path}: expected files and at least one [[row]]")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ProbeTableError(f"{path}: row {number}: expected a table, got {row!r}")
        made = _row(TableReader(f"{path}: row {row.get('id', number)}", row), name, files, variants)
        yield from _by_stream(made, on_stream) if on_stream else [made]


def _by_stream(row: ProbeRow, on_stream: str) -> Iterator[ProbeRow]:
    """Split a row of which only some symbols have the argument that says the stream.

    In the others' register lies what the caller left there.
    """
    with_stream = tuple(symbol for symbol in row.symbols if re.search(on_stream, symbol))
    without = tuple(symbol for symbol in row.symbols if symbol not in with_stream)
    if Meaning.STREAM not in row.arguments or not with_stream or not without:
        yield row
        return
    rest: dict[Meaning, ArgumentPlace] = dict(row.arguments)
    del rest[Meaning.STREAM]
    yield replace(row, symbols=without, arguments=rest)
    yield replace(row, id=f"{row.id}_on_stream", symbols=with_stream)


def _row(reader: TableReader, name: str, files: tuple[str, ...], variants: str) -> ProbeRow:
    kind = reader.member("kind", CallKind, None)
    row = ProbeRow(
        id=f"{name}.{reader.text('id', _ID)}",
        group=reader.member("group", ProbeGroup, _GROUPS[kind]),
        files=reader.texts("files") or files,
        symbols=tuple(pattern + variants for pattern in reader.texts("symbols")),
        usdt=reader.texts("usdt"),
        kind=kind,
        arguments=reader.arguments(),
        returns=reader.take("returns", bool, kind is not CallKind.COUNT),
        status=reader.take("status", bool, kind is not CallKind.COUNT),
        direction=reader.member("direction", Direction, Direction.DEFAULT),
        element_sizes=reader.sizes("element_sizes"),
        device=reader.take("device", bool, True),
    )
    reader.done()
    _check(row, reader)
    return row


def _check(row: ProbeRow, reader: TableReader) -> None:
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
    if (row.kind in {CallKind.LAUNCH, CallKind.GRAPH_LAUNCH}) != (row.group is ProbeGroup.LAUNCH):
        raise reader.error("group: launches, and only they, are in the group launch")
