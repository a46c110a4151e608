"""Which function stands at a place of a file, as people write it, and a cache of such names.

The cache holds names of what ran here: 0600, local, bounded, and may be removed at any time.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from transport.files.sqlite_file import SqliteFile, remove, transaction
from transport.process.privileges import interpreter

from .elf import MOST_NAME, Columns, ElfBytes, ElfError, defined_functions, string_section
from .elf_file import ElfFile
from .proc_maps import MappedFile, open_regular

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS symbols (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    build_id TEXT NOT NULL,
    offset INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (build_id, offset)
);
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL UNIQUE,
    content BLOB NOT NULL
);
"""
_MOST_FILES: Final = 128
_MOST_NAME: Final = 4096
_FAILURES: Final = (sqlite3.Error, OverflowError)
_FILE: Final = SqliteFile(
    tables=_SCHEMA, version=None, synchronous="OFF", busy_s=0.05, checked=False
)


class SymbolCache:
    """Names by (build id, offset), and what files register: the oldest make room.

    An unusable file is made anew.
    """

    def __init__(self, path: Path, most_names: int = 100_000, most_bytes: int = 64 << 20) -> None:
        self._most, self._most_files = most_names, most_bytes // 2
        self._db: sqlite3.Connection | None = None
        for attempt in range(2):
            try:
                self._db = _open(path, most_bytes)
                return
            except (sqlite3.Error, OSError):
                if attempt == 0:
                    with suppress(OSError):
                        remove(path)

    def find(self, build_id: str, offsets: Sequence[int]) -> dict[int, str]:
        if self._db is None or not build_id:
            return {}
        found = {}
        with suppress(*_FAILURES):  # a cache that fails is a slow search, not an error
            for offset in offsets:
                row = self._db.execute(
                    "SELECT name FROM symbols WHERE build_id = ? AND offset = ?",
                    (build_id, offset),
                ).fetchone()
                if row is not None:
                    found[offset] = str(row[0])
        return found

    def keep(self, build_id: str, names: Mapping[int, str]) -> None:
        if self._db is None or not build_id or not names:
            return
        rows = [(build_id, offset, name[:_MOST_NAME]) for offset, name in names.items()]
        with suppress(*_FAILURES), transaction(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO symbols (build_id, offset, name) VALUES (?, ?, ?)", rows
            )
            self._db.execute(
                "DELETE FROM symbols WHERE number <= (SELECT max(number) FROM symbols) - ?",
                (self._most,),
            )

    def find_file(self, state: str) -> bytes | None:
        """Give what was kept of a file in this state (`file_state`)."""
        if self._db is not None and state:
            with suppress(*_FAILURES):
                row = self._db.execute(
                    "SELECT content FROM files WHERE state = ?", (state,)
                ).fetchone()
                return bytes(row[0]) if row is not None else None
        return None

    def keep_file(self, state: str, content: bytes) -> None:
        room = self._most_files - len(content)
        if self._db is None or not state or room < 0:
            return
        with suppress(*_FAILURES), transaction(self._db):
            self._db.execute("DELETE FROM files WHERE state = ?", (state,))
            held = self._db.execute(
                "SELECT number, length(content) FROM files ORDER BY number DESC"
            ).fetchall()
            for place, (number, size) in enumerate(held, 1):
                room -= size
                if room < 0 or place >= _MOST_FILES:  # a full file takes nothing more in
                    self._db.execute("DELETE FROM files WHERE number <= ?", (number,))
                    break
            self._db.execute("INSERT INTO files (state, content) VALUES (?, ?)", (state, content))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def file_state(build_id: str, fd: int) -> str:
    """Name an open file as it is now: any can have another's build id, no other is that file."""
    found = os.fstat(fd)
    return f"{build_id}.{found.st_dev:x}.{found.st_ino:x}.{found.st_ctime_ns:x}"


def _open(path: Path, most_bytes: int) -> sqlite3.Connection:
    db = _FILE.open(path)
    try:
        page = db.execute("PRAGMA page_size").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {max(most_bytes // page, 16)}")
        db.execute("SELECT build_id, offset, name FROM symbols LIMIT 1").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


_DEBUG: Final = "/usr/lib/debug/.build-id"


class SymbolIndex:
    def __init__(self, file: MappedFile, debug_roots: tuple[str, ...] = ("",)) -> None:
        """Read the symbol tables. Raises ElfError."""
        self._files = [file]
        elf = _elf(file)
        self.build_id = elf.build_id
        self.state = file_state(elf.build_id, file.fd)
        self.cache_key = self.state if elf.build_id else ""
        """Names are kept under it."""
        self._owners = {0, os.fstat(file.fd).st_uid}
        self._layout = elf.layout
        self._tables = _tables(file, elf)
        if not elf.has_symbol_table and elf.build_id:
            for root in debug_roots:
                self._add_debug_file(root)

    @property
    def functions(self) -> int:
        return sum(table.functions for table in self._tables)

    @property
    def fd(self) -> int:
        return self._files[0].fd

    def name(self, offset: int) -> str | None:
        address = self._layout.address(offset)
        if address is None:
            return None
        for exact in (True, False):
            for table in self._tables:
                found = table.find(address, exact)
                if found:
                    return found
        return None

    def changed(self) -> bool:
        return self._files[0].changed()

    def close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _add_debug_file(self, root: str) -> None:
        name = f"{root}{_DEBUG}/{self.build_id[:2]}/{self.build_id[2:]}.debug"
        file = open_regular(name)
        if file is None:
            return
        with suppress(ElfError):
            elf = _elf(file)
            # In a process's own root its user puts files, and the names are everybody's.
            trusted = os.fstat(file.fd).st_uid in self._owners
            if elf.build_id == self.build_id and trusted:
                self._tables += _tables(file, elf)
                self._files.append(file)
                return
        file.close()


class _Table:
    def __init__(self, content: ElfBytes, rows: Columns, strings: tuple[int, int]) -> None:
        order = np.argsort(rows["value"], kind="stable")
        self._addresses = rows["value"][order].copy()
        self._sizes = rows["size"][order].copy()
        self._names = rows["name"][order].copy()
        self._content, (self._strings, self._strings_size) = content, strings

    @property
    def functions(self) -> int:
        return len(self._addresses)

    def find(self, address: int, exact: bool) -> str | None:
        wanted = np.uint64(address)
        last = int(np.searchsorted(self._addresses, wanted, side="right")) - 1
        if last < 0:
            return None
        begin = int(self._addresses[last])
        if begin == address:
            return self._name(last)
        covered = not exact and address - begin < int(self._sizes[last])
        return self._name(last) if covered else None

    def _name(self, row: int) -> str | None:
        place = int(self._names[row])
        if place >= self._strings_size:
            return None
        room = min(MOST_NAME, self._strings_size - place)
        text, end, _ = self._content.read_up_to(self._strings + place, room).partition(b"\0")
        return text.decode("utf-8", "replace") if end and text else None


def _elf(file: MappedFile) -> ElfFile:
    return ElfFile.read(os.fdopen(file.fd, "rb", buffering=0, closefd=False))


def _tables(file: MappedFile, elf: ElfFile) -> list[_Table]:
    content = ElfBytes(os.fdopen(file.fd, "rb", buffering=0, closefd=False))
    found = []
    for section in elf.symbol_tables():
        with suppress(ElfError):
            strings = string_section(elf.layout, section)
            rows = defined_functions(content, section, section.name)
            found.append(_Table(content, rows, (strings.offset, strings.size)))
    return found


MOST_SYMBOL: Final = 4096
_DEADLINE_S: Final = 2.0
_ATTEMPTS: Final = 2
_MOST_FAILURES: Final = 16
_MOST_KNOWN: Final = 65_536
_MOST_CHARACTERS: Final = 16 << 20
_CUDA_STUB: Final = re.compile(r"(?:_ZL?(\d+))?__device_stub_(?=_Z)")
_HIP_STUB: Final = "__device_stub__"


def kernel_symbol(symbol: str) -> str:
    """Give the kernel whose host stub, mangled once more, a symbol is; others as they are."""
    found = _CUDA_STUB.match(symbol)
    if found is None:
        return symbol
    if found[1] is None:
        return symbol[found.end() :]
    begin = found.end(1)
    return symbol[found.end() : begin + int(found[1][:6])] or symbol


class Demangler:
    """Demangles in a child process; remembers 65,536 names. After 16 that broke it, no more."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()
        self._characters = 0
        self.failures = 0

    def demangle(self, symbols: Sequence[str]) -> list[str]:
        """Give the readable name of each symbol, or itself; at most 4096 characters."""
        wanted = {symbol: kernel_symbol(symbol)[:MOST_SYMBOL] for symbol in symbols}
        unknown = [
            name
            for name in dict.fromkeys(wanted.values())
            if name not in self._known and name.startswith("_Z") and name.isprintable()
        ]
        for name, text in self._ask(unknown).items():
            self._known[name] = text.replace(_HIP_STUB, "")[:MOST_SYMBOL]
            self._characters += len(name) + len(self._known[name])
        readable = [self._known.get(wanted[symbol], wanted[symbol]) for symbol in symbols]
        while len(self._known) > _MOST_KNOWN or self._characters > _MOST_CHARACTERS:
            self._characters -= sum(map(len, self._known.popitem(last=False)))
        return readable

    def _ask(self, names: list[str]) -> dict[str, str]:
        answers: dict[str, str] = {}
        for _ in range(_ATTEMPTS):
            if not names or self.failures >= _MOST_FAILURES:
                break
            lines = _run_child(names)
            answers |= dict(zip(names, lines, strict=False))
            if len(lines) < len(names):
                self.failures += 1
                answers[names[len(lines)]] = names[len(lines)]
            names = names[len(lines) + 1 :]
        return answers | dict(zip(names, names, strict=True))


def _run_child(names: list[str]) -> list[str]:
    text = "".join(f"{name}\n" for name in names).encode("utf-8", "replace")
    python = interpreter()
    program = str(Path(__file__).with_name("demangle_child.py"))
    try:
        done = subprocess.run(
            [python.program, "-P", "-S", "-s", program], env=os.environ | python.environment,
            pass_fds=python.descriptors, input=text, capture_output=True, timeout=_DEADLINE_S,
            check=False,
        )  # fmt: skip
        said = done.stdout
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
    except OSError:
        return []
    whole = said[: said.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").split("\n")[:-1][: len(names)]
