"""A job from PyTorch (Kineto) traces, one file a rank: GPU time by step, and its collectives."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np

from kernels.launches.kineto import TraceError, open_trace, trace_items

from .trace import (
    LONGEST_S,
    MOST_ROWS,
    UNKNOWN,
    Meeting,
    OperationKind,
    RankTrace,
    TraceRefused,
    operation,
)

_MOST_FILES: Final = 1_024
_MOST_ROWS_OF_A_RANK: Final = 2_000_000
_MOST_STEPS_OF_A_RANK: Final = 1_000_000
_HEAD_BYTES: Final = 1 << 18
_RANK: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,2000}?"rank"\s*:\s*(\d{1,6})\b')
_RANK_IN_NAME: Final = re.compile(r"(?:rank|worker)[-_]?(\d{1,6})", re.IGNORECASE)
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,12})$")
_LOADER: Final = re.compile(r"enumerate\(DataLoader\)|dataloader.*next", re.IGNORECASE)
_KERNELS: Final = frozenset({"kernel", "concurrent_kernel"})
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_ANNOTATIONS: Final = frozenset({"user_annotation", "cpu_op"})
_LONGEST_NAME: Final = 256


class _Row(NamedTuple):
    start_us: float
    duration_us: float
    name: str


@dataclass(slots=True)
class _Rank:
    """What one file tells: operations, and when each profiled step began."""

    rank: int
    rows: list[_Row] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)


def read_folder(folder: Path) -> RankTrace:
    """Read the traces of a folder, each of one rank; steps are PyTorch's profiler steps.

    Raises   TraceRefused
    """
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".json", ".json.gz")))
    if not 2 <= len(files) <= _MOST_FILES:
        raise TraceRefused(
            f"{folder}: expected 2 to {_MOST_FILES:,} traces .json or .json.gz, a rank each, got "
            f"{len(files)}"
        )
    try:
        ranks, room = [], MOST_ROWS
        for file in files:
            ranks.append(_read(file, room))
            room -= len(ranks[-1].rows)
    except TraceError as error:
        raise TraceRefused(str(error)) from None
    numbers = [member.rank for member in ranks]
    if len(set(numbers)) != len(numbers):
        raise TraceRefused(f"{folder}: expected one trace a rank, got ranks {sorted(numbers)}")
    return _joined(ranks)


def _read(file: Path, room: int) -> _Rank:
    """Read one rank's trace of at most `room` operations: all ranks' are held at once."""
    found = _Rank(_rank_of(file))
    for item in trace_items(file):
        row = _row(item)
        if row is None:
            continue
        if step := _STEP.search(row.name):
            found.steps.append((row.start_us, int(step[1])))
            if len(found.steps) > _MOST_STEPS_OF_A_RANK:
                raise TraceRefused(f"{file}: expected at most {_MOST_STEPS_OF_A_RANK:,} steps")
        elif len(found.rows) >= room:
            raise TraceRefused(f"{file}: expected at most {MOST_ROWS:,} operations of all ranks")
        elif len(found.rows) < _MOST_ROWS_OF_A_RANK:
            found.rows.append(row)
        else:
            raise TraceRefused(f"{file}: expected at most {_MOST_ROWS_OF_A_RANK:,} operations")
    found.steps.sort()
    return found


def _rank_of(file: Path) -> int:
    """Take the rank from the trace's head, else from the file's name."""
    try:
        with open_trace(file) as stream:
            said = _RANK.search(stream.read(_HEAD_BYTES))
    except (OSError, EOFError, zlib.error) as error:
        raise TraceRefused(f"{file}: cannot read it: {error}") from None
    if said:
        return int(said[1])
    if named := _RANK_IN_NAME.search(file.name):
        return int(named[1])
    raise TraceRefused(f"{file}: expected a rank in distributedInfo or in the file's name")


def _row(item: Any) -> _Row | None:
    """Take what ran on the GPU, steps and waits for data; None for all else."""
    if not isinstance(item, dict):
        return None
    category, name = str(item.get("cat", "")).lower(), item.get("name")
    start, duration = item.get("ts"), item.get("dur")
    if not isinstance(name, str) or not _number(start) or not _number(duration):
        return None
    if not 0 <= duration <= 1e6 * LONGEST_S:
        return None
    if category in _KERNELS:
        meets = operation(name).meeting is not Meeting.NOBODY
        return _Row(start, duration, name[:_LONGEST_NAME] if meets else "kernel")
    if category in _COPIES:
        return _Row(start, duration, "copy")
    if category in _ANNOTATIONS and (_STEP.search(name) or _LOADER.search(name)):
        return _Row(start, duration, name if _STEP.search(name) else "data_loader")
    return None


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 4e15


def _joined(ranks: list[_Rank]) -> RankTrace:
    """Sum up work by step, keep each collective; before the first step nothing counts."""
    names: dict[str, int] = {}
    columns: list[tuple[int, int, int, float, float]] = []
    begin_us = min((row.start_us for member in ranks for row in member.rows), default=0.0)
    for member in ranks:
        for step, name, start_us, duration_us in _by_step(member):
            number = names.setdefault(name, len(names))
            columns.append((member.rank, step, number, start_us - begin_us, duration_us))
        if len(columns) > MOST_ROWS:
            raise TraceRefused(f"expected at most {MOST_ROWS:,} rows")
    if not columns:
        raise TraceRefused("expected kernels of ranks, found none")
    table = np.array(columns, dtype=np.float64)
    rank = table[:, 0].astype(np.int32)
    return RankTrace(
        rank, np.zeros(len(rank), dtype=np.int32), table[:, 1].astype(np.int64),
        table[:, 2].astype(np.int32), tuple(names), table[:, 3] / 1e6, table[:, 4] / 1e6,
        np.full(len(rank), UNKNOWN, dtype=np.int64), np.full(len(rank), UNKNOWN, dtype=np.int32),
    )  # fmt: skip


def _by_step(rank: _Rank) -> Iterator[tuple[int, str, float, float]]:
    starts = [start for start, _ in rank.steps]
    sums: dict[tuple[int, str], tuple[float, float]] = {}
    for row in rank.rows:
        place = bisect_right(starts, row.start_us) - 1
        if starts and place < 0:
            continue
        step = rank.steps[place][1] if starts else 0
        if operation(row.name).kind is OperationKind.COMMUNICATION:
            yield step, row.name, row.start_us, row.duration_us
            continue
        first, total = sums.get((step, row.name), (row.start_us, 0.0))
        sums[step, row.name] = min(first, row.start_us), total + row.duration_us
    for (step, name), (start_us, total) in sums.items():
        yield step, name, start_us, min(total, 1e6 * LONGEST_S)
