"""Recognise a file of launches by its content, and read it: traces, tables, lists of names."""

from __future__ import annotations

import io
import re
import tomllib
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final

from transport.process.printable import listed

from . import profilers, tables
from .kineto import StreamTime, TraceError, gpu_events, open_trace
from .launch import LONGEST_NAME, Launch, LaunchesRefused, LaunchFile, Skip
from .profilers import MAGIC
from .tables import EXPORTS, CsvTable, find_table

EXPECTED: Final = (
    "expected a PyTorch trace, an export of Nsight Systems, Nsight Compute or rocprofv3, a kernel "
    "table in TOML, or kernel names, one a line"
)
_ROWS: Final = "expected [[kernel]] rows of name, launches and time_ns"
_HEAD_BYTES: Final = 1 << 16
_TOLERATED: Final = 100
"""A hundredth: launches that overlap a little on purpose (programmatic dependent ones)."""
_MOST_NAMES: Final = 10_000_000
_MOST_TOML_BYTES: Final = 64 << 20
_MOST_AMOUNT: Final = (1 << 63) - 1
_NO_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
"""Bytes that no text has; ESC is left out, as a hostile name may hold it and is shown escaped."""
_NO_LIST: Final = re.compile(rb"\[CUDA |\[\[?[\w.-]+\]\]?[ \t]*(#.*)?$", re.MULTILINE)
"""What begins with a bracket and is no JSON: a copy's name, or the head of a TOML table."""
_TOML: Final = re.compile(r"\[\[?[\w.\"'-]+\]\]?\s*(#.*)?|[\w.\"'-]+\s*=.*")


def open_launches(path: Path) -> LaunchFile:
    """Recognise a file by its content; raises LaunchesRefused, here or while launches are read."""
    skipped: Counter[Skip] = Counter()
    remarks: list[str] = []
    with _read_errors():
        form, launches = _recognised(path, skipped, remarks)
    return LaunchFile(form, _guarded(launches), skipped, remarks)


def _recognised(
    path: Path, skipped: Counter[Skip], remarks: list[str]
) -> tuple[str, Iterator[Launch]]:
    with path.open("rb") as raw:
        if raw.read(len(MAGIC)) == MAGIC:
            launches = profilers.sqlite_launches(path, skipped, remarks)
            return "an export of Nsight Systems (SQLite)", launches
    with open_trace(path) as stream:
        head = stream.read(_HEAD_BYTES)
    start = head.lstrip()
    if start[:1] in {b"{", b"["} and not _NO_LIST.match(start):
        if profilers.is_rocprof(start):
            return "a rocprofv3 trace (JSON)", profilers.rocprof_launches(path, start, skipped)
        return "a PyTorch trace", _events(path, skipped, remarks)
    _refuse_binary(head)
    whole = head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1] or head
    text = whole.decode("utf-8", errors="ignore")
    ahead = io.StringIO(text)
    if table := find_table(ahead):
        return table.form.form, _rows(path, table, skipped, list(ahead))
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if _TOML.fullmatch(first):
        return "a kernel table (TOML)", iter(_toml(path))
    tables.refuse_other_table(io.StringIO(text))
    return "kernel names", _names(path, skipped)


@contextmanager
def _read_errors() -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        raise LaunchesRefused(str(error)) from None
    except (OSError, EOFError, zlib.error) as error:  # a gzip that is damaged or cut, too
        raise LaunchesRefused(f"cannot read it: {error}") from None


def _guarded(launches: Iterator[Launch]) -> Iterator[Launch]:
    with _read_errors():
        yield from launches


def _refuse_binary(head: bytes) -> None:
    """Refuse what is no text: of some profilers it can be exported as one."""
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise LaunchesRefused(f"{EXPECTED}; got UTF-16, as PowerShell writes", "save it as UTF-8")
    decoder = getincrementaldecoder("utf-8")()
    try:
        decoder.decode(head, final=len(head) < _HEAD_BYTES)
        text = not _NO_TEXT.search(head)
    except UnicodeDecodeError:
        text = False
    if not text:
        raise LaunchesRefused(f"{EXPECTED}; got bytes that are no text", EXPORTS)


def _events(path: Path, skipped: Counter[Skip], remarks: list[str]) -> Iterator[Launch]:
    streams = StreamTime()
    others: Counter[str] = Counter()
    for event in gpu_events(path, skipped=skipped, others=others):
        streams.add(event)
        yield Launch(event.name, 1, event.duration_ns)
    if not streams.whole_ns and others:
        kinds = listed([f"{count:,} of {kind}" for kind, count in others.most_common()])
        remarks.append(f"entries of no GPU: {kinds}")
    if streams.twice_ns * _TOLERATED > streams.whole_ns:
        remarks.append(
            f"{streams.twice_ns / 1e6:,.3f} of {streams.whole_ns / 1e6:,.3f} ms are told twice: "
            "slices begin before the one before them on their stream has ended"
        )


def _rows(
    path: Path, table: CsvTable, skipped: Counter[Skip], ahead: list[str]
) -> Iterator[Launch]:
    with (
        open_trace(path) as stream,
        io.TextIOWrapper(stream, "utf-8", "replace", newline="") as text,
    ):
        lines = iter(partial(text.readline, LONGEST_NAME), "")
        if find_table(lines) is not None:
            yield from tables.table_launches(lines, table, skipped, ahead)


def _toml(path: Path) -> list[Launch]:
    with open_trace(path) as stream:
        content = stream.read(_MOST_TOML_BYTES + 1)
    if len(content) > _MOST_TOML_BYTES:
        raise LaunchesRefused(f"expected at most {_MOST_TOML_BYTES:,} bytes of TOML")
    try:
        rows = tomllib.loads(content.decode("utf-8"))["kernel"]
        return [Launch(*table_row(row)) for row in rows]
    except KeyError as missing:
        raise LaunchesRefused(f"{_ROWS}, found no {missing}") from None
    except (ValueError, TypeError, RecursionError) as error:  # TOML nested by the thousand
        raise LaunchesRefused(f"{_ROWS}, got {error}") from None


def table_row(row: object) -> tuple[str, int, int | None]:
    """Read a row of a plain table, or of a workload table of the simulator: only shares matter.

    Returns     name, launches, GPU time in ns
    Raises      KeyError or TypeError
    """
    if not isinstance(row, dict):
        raise TypeError(f"a row of names and numbers expected, got {type(row).__name__}")
    if "launches_per_1000_steps" in row:
        launches, time_ns = row["launches_per_1000_steps"], row["time_ns_per_step"]
    else:
        launches, time_ns = row["launches"], row.get("time_ns")
    return str(row["name"]), amount(launches), None if time_ns is None else amount(time_ns)


def amount(number: object) -> int:
    """Give launches or nanoseconds back.

    Raises      TypeError; ValueError for a number too long to be told
    """
    if not isinstance(number, int) or not 0 <= number <= _MOST_AMOUNT:
        raise TypeError(f"whole numbers of at least 0 expected, below 2^63, got {number!r:.40}")
    return number


def _names(path: Path, skipped: Counter[Skip]) -> Iterator[Launch]:
    with open_trace(path) as stream:
        for number, line in enumerate(_lines(stream, skipped)):
            if number >= _MOST_NAMES:
                raise LaunchesRefused(f"expected at most {_MOST_NAMES:,} names")
            try:
                name = line.decode("utf-8").strip()
            except UnicodeDecodeError:
                skipped[Skip.NO_TEXT] += 1
                continue
            if name:
                yield Launch(name, 1, None)


def _lines(stream: IO[bytes], skipped: Counter[Skip]) -> Iterator[bytes]:
    """Yield lines; one that is too long is left out as a whole, and never held as a whole."""
    while line := stream.readline(LONGEST_NAME):
        if len(line) < LONGEST_NAME or line.endswith(b"\n"):
            yield line
            continue
        skipped[Skip.LONG_LINE] += 1
        while line and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_NAME)
