"""Launches from the JSON of rocprofv3: kernels are named in one list and dispatched in another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ijson

from transport.process.printable import first_line

from .json_depth import MOST_DEPTH, JsonDepth
from .kineto import NO_JSON, open_trace
from .launch import LONGEST_NAME, MOST_ROWS, Launch, LaunchesRefused, Skip, duration

_TOOL: Final = "rocprofiler-sdk-tool"
_HEAD: Final = re.compile(rb'^\s*\{\s*"' + _TOOL.encode() + rb'"\s*:\s*([\[{])')
_NAMES: Final = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
_MOST_SYMBOLS: Final = 1_000_000
_CHUNK_BYTES: Final = 1 << 16
_MOST_DIGITS: Final = 1_000
_LONG_NUMBER: Final = re.compile(rb"\d{%d}" % _MOST_DIGITS)


def is_rocprof(head: bytes) -> bool:
    """Tell by the first bytes of a file."""
    return _HEAD.match(head) is not None


def rocprof_launches(path: Path, head: bytes, skipped: Counter[Skip]) -> Iterator[Launch]:
    """Yield each dispatch, and each copy.

    head        the first bytes of the file
    Raises      LaunchesRefused where it breaks off
    """
    opened = _HEAD.match(head)
    process = f"{_TOOL}.item" if opened is not None and opened.group(1) == b"[" else _TOOL
    names = _symbols(path, process)
    for record in _items(path, f"{process}.buffer_records.kernel_dispatch.item"):
        info = record.get("dispatch_info") if isinstance(record, dict) else None
        name = names.get(_kernel(info), "")
        if not name:
            skipped[Skip.NO_NAME] += 1
        elif (time_ns := _duration(record, skipped)) is not None:
            yield Launch(name, 1, time_ns)
    for record in _items(path, f"{process}.buffer_records.memory_copy.item"):
        if (time_ns := _duration(record, skipped)) is not None:
            yield Launch("Memcpy", 1, time_ns)


def _symbols(path: Path, process: str) -> dict[int, str]:
    """Give the names of kernels by their number."""
    names: dict[int, str] = {}
    for symbol in _items(path, f"{process}.kernel_symbols.item"):
        if len(names) < _MOST_SYMBOLS and isinstance(symbol, dict):
            found = next((symbol[key] for key in _NAMES if isinstance(symbol.get(key), str)), "")
            names[_kernel(symbol)] = found[:LONGEST_NAME]
    return names


def _kernel(record: Any) -> int:
    number = record.get("kernel_id") if isinstance(record, dict) else None
    return number if isinstance(number, int) else -1


def _items(path: Path, prefix: str) -> Iterator[Any]:
    """Yield the entries of one list; handles are 64 bits wide, so numbers are read as exact."""
    items: Any = ijson.sendable_list()
    parser = ijson.items_coro(items, prefix)
    given = 0
    try:
        for chunk in _chunks(path):
            parser.send(chunk)
            given += len(items)
            if given > MOST_ROWS:
                raise LaunchesRefused(f"expected at most {MOST_ROWS:,} entries")
            yield from items
            items.clear()
        parser.close()
    except (*NO_JSON, ArithmeticError) as error:  # an exponent that no number has
        raise LaunchesRefused(f"expected JSON of rocprofv3: {first_line(error)}") from None
    yield from items


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the file; the parser of exact numbers would crash on one of thousands of digits."""
    before, depth = b"", JsonDepth()
    with open_trace(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            if _LONG_NUMBER.search(before + chunk):
                raise LaunchesRefused("expected JSON of rocprofv3: a number has too many digits")
            if depth.too_deep(chunk):
                raise LaunchesRefused(f"expected at most {MOST_DEPTH:,} levels of JSON")
            before = chunk[-_MOST_DIGITS:]
            yield chunk


def _duration(record: Any, skipped: Counter[Skip]) -> int | None:
    known = record if isinstance(record, dict) else {}
    return duration(known.get("start_timestamp"), known.get("end_timestamp"), skipped)
