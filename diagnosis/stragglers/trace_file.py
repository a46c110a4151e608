"""Reads untrusted traces of ranks: Parquet, CSV, JSON, or a folder of PyTorch (Kineto) traces."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import ijson
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kernels.families import LONGEST_NAME
from kernels.launches.kineto import TraceError, trace_items
from kernels.launches.launch import Skip
from transport.files.own_names import files_ending
from transport.process.printable import first_line, listed, printable

from .trace import (
    LONGEST_S,
    MOST_NAMES,
    MOST_ROWS,
    UNKNOWN,
    OperationKind,
    RankTrace,
    TraceRefused,
    communicates,
    operation,
)

_MOST_FILES: Final = 1_024
_MOST_ROWS_OF_A_RANK: Final = 2_000_000
_MOST_STEPS_OF_A_RANK: Final = 1_000_000
_MOST_RANK: Final = 999_999
_RANKS_IN_NAME: Final = tuple(
    re.compile(rf"{word}[-_]?(\d{{1,6}})(?!\d)", re.IGNORECASE)
    for word in ("rank", "worker", r"(?<![a-z])TP")
)
"""The first that a file's name has counts: a host's workers may each have several ranks."""
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

    rank: int = UNKNOWN
    rows: list[_Row] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    base_ns: int = 0
    remarks: list[str] = field(default_factory=list)

    def begin_at(self, later_us: float) -> None:
        """Move all times to where a common clock has them."""
        self.rows = [row._replace(start_us=row.start_us + later_us) for row in self.rows]
        self.steps = [(start_us + later_us, step) for start_us, step in self.steps]


def read_folder(folder: Path) -> RankTrace:
    """Read traces, each of one rank; steps are PyTorch's profiler steps. Raises TraceRefused."""
    files = files_ending(folder, ".json", ".json.gz")
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
    return _joined_ranks(ranks)


def _read(file: Path, room: int) -> _Rank:
    """Read one rank's trace of at most `room` operations: all ranks' are held at once."""
    found = _Rank()
    lost: Counter[Skip] = Counter()
    head: dict[str, Any] = {}
    for item in trace_items(file, lost, head):
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
    base_ns = head.get("baseTimeNanoseconds")
    found.base_ns = base_ns if isinstance(base_ns, int) and 0 <= base_ns < 1 << 62 else 0
    found.rank = _rank_of(file, head.get("distributedInfo"), found.remarks)
    shown = printable(file.name)
    found.remarks += [f"{shown}: left out: {n:,} with {why}" for why, n in lost.items()]
    return found


def _rank_of(file: Path, told: Any, remarks: list[str]) -> int:
    """Give the rank that a trace says of itself; of its file's name where it says none."""
    rank = told.get("rank") if isinstance(told, dict) else None
    fits = (pattern.search(file.name) for pattern in _RANKS_IN_NAME)
    named = next((int(fit[1]) for fit in fits if fit), None)
    shown = printable(file.name)
    if isinstance(rank, int) and 0 <= rank <= _MOST_RANK:
        if named not in {None, rank}:
            remarks.append(f"{shown} is of rank {rank}, as distributedInfo says")
        return rank
    if named is None:
        raise TraceRefused(f"{file}: expected a rank in distributedInfo or in the file's name")
    remarks.append(f"{shown}: rank {named} by the file's name, as distributedInfo has none")
    return named


def _row(item: Any) -> _Row | None:
    """Take what ran on the GPU, steps and waits for data; None for all else."""
    if not isinstance(item, dict) or item.get("ph", "X") != "X":
        return None
    category, name = str(item.get("cat", "")).lower(), item.get("name")
    start, duration = item.get("ts"), item.get("dur")
    if not isinstance(name, str) or not _number(start) or not _number(duration):
        return None
    if not 0 <= duration <= 1e6 * LONGEST_S:
        return None
    if category in _KERNELS:
        return _Row(start, duration, name[:LONGEST_NAME] if communicates(name) else "kernel")
    if category in _COPIES:
        return _Row(start, duration, "copy")
    if category in _ANNOTATIONS and (_STEP.search(name) or _LOADER.search(name)):
        return _Row(start, duration, name if _STEP.search(name) else "data_loader")
    return None


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 4e15


def _joined_ranks(ranks: list[_Rank]) -> RankTrace:
    """Sum up work by step, keep each collective; before the first step nothing counts."""
    names: dict[str, int] = {}
    columns: list[tuple[int, int, int, float, float]] = []
    remarks = [remark for member in ranks for remark in member.remarks]
    bases = {member.base_ns for member in ranks}
    if len(bases) > 1:
        apart_s = (max(bases) - min(bases)) / 1e9
        remarks.append(f"times begin at bases that lie {apart_s:,.3f} s apart: they were added")
        for member in ranks:
            member.begin_at((member.base_ns - min(bases)) / 1e3)
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
        tuple(remarks),
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


_MOST_BYTES: Final = 4 << 30
_JSON_BATCH: Final = 65_536
_SCALARS: Final = frozenset({"string", "number", "integer", "double", "boolean", "null"})
_LARGEST: Final = 1 << 62
_MOST_COLUMNS: Final = 1_024

_UNITS: Final = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3, "_s": 1.0, "": 1.0}
_NAMES: Final = {
    "rank": ("rank",),
    "step": ("step",),
    "name": ("optype", "operation", "op"),
    "stage": ("stage", "pipeline_stage", "pp_rank"),
    "replica": ("dp_rank", "replica"),
    "group": ("communicator", "comm", "group"),
    **{f"start{unit}": (f"start{unit}", f"start_ts{unit}") for unit in _UNITS},
    **{f"duration{unit}": (f"duration{unit}", f"dur{unit}") for unit in _UNITS},
}
"""What a column is, and under which names it is found; a time without a unit is in seconds."""

EXPECTED: Final = (
    "expected columns rank, step, optype, start and duration (in seconds, or start_ms, "
    "duration_us, ...); stage, dp_rank and communicator where there are any"
)


def read_trace(path: Path) -> RankTrace:
    """Read .parquet, .csv, .json (a list of rows), .jsonl, or a folder. Raises TraceRefused."""
    if path.is_dir():
        return read_folder(path)
    readers = {".parquet": _parquet, ".csv": _csv, ".json": _json, ".jsonl": _json}
    reader = readers.get(path.suffix)
    if reader is None:
        raise TraceRefused(f"{path}: expected a file .parquet, .csv, .json or .jsonl")
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise TraceRefused(f"expected at most {_MOST_BYTES:,} bytes, got {size:,}")
        return _trace(reader(path))
    except TraceRefused as refused:
        raise TraceRefused(f"{path}: {refused}") from None
    except OSError as error:  # pyarrow's own I/O errors are of this kind too
        why = error.strerror or first_line(error)
        raise TraceRefused(f"{path}: cannot read it: {why}") from None
    except (pa.ArrowException, ijson.JSONError, UnicodeDecodeError) as error:
        raise TraceRefused(f"{path}: {EXPECTED}; {first_line(error)}") from None


def _columns(names: list[str]) -> dict[str, str]:
    """Find what is needed among a file's columns: what it is -> its name in the file."""
    found: dict[str, str] = {}
    for what, spellings in _NAMES.items():
        for spelling in spellings:
            if spelling in names:
                found.setdefault(what, spelling)
    missing = [what for what in ("rank", "step", "name") if what not in found]
    missing += [
        time for time in ("start", "duration") if not any(time + unit in found for unit in _UNITS)
    ]
    twice = [spelling for spelling in found.values() if names.count(spelling) > 1]
    if twice:
        raise TraceRefused(f"expected one column {twice[0]}, found several")
    if missing:
        raise TraceRefused(f"{EXPECTED}; found no {', '.join(missing)} among: {listed(names)}")
    return found


def _parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        columns = _columns(file.schema_arrow.names)
        rows = file.metadata.num_rows
        if rows > MOST_ROWS:
            raise TraceRefused(f"expected at most {MOST_ROWS:,} rows, got {rows:,}")
        # Pages can claim far more than they hold: rows are counted again as they come.
        return _table(file.iter_batches(columns=list(columns.values())), columns)


def _csv(path: Path) -> pa.Table:
    with pa_csv.open_csv(path) as reader:
        return _table(reader, _columns(reader.schema.names))


def _json(path: Path) -> pa.Table:
    rows = _json_rows(path)
    first = next(rows, None)
    columns = _columns(list(first)) if first is not None else {}
    every = chain([first] if first is not None else [], rows)

    def batches() -> Iterator[pa.RecordBatch]:
        while part := list(islice(every, _JSON_BATCH)):
            yield pa.RecordBatch.from_pylist(
                [{name: row.get(name) for name in columns.values()} for row in part]
            )

    return _table(batches(), columns)


def _table(batches: Iterable[pa.RecordBatch], columns: dict[str, str]) -> pa.Table:
    kept, read = [], 0
    for batch in batches:
        read += len(batch)
        if read > MOST_ROWS:
            raise TraceRefused(f"expected at most {MOST_ROWS:,} rows")
        kept.append(_compact(batch, columns))
    if not kept:
        raise TraceRefused("expected operations of ranks, found none")
    return pa.Table.from_batches(kept).unify_dictionaries()


def _plain(value: Any) -> Any:
    if isinstance(value, str | float | None) or (isinstance(value, int) and abs(value) < _LARGEST):
        return value
    raise TraceRefused(f"expected a number or a name in each column, got {type(value).__name__}")


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield flat rows by events: a builder takes the square of how deep values are nested."""
    row: dict[str, Any] | None = None
    key, in_list = "", False
    with path.open("rb") as file:
        for event, value in ijson.basic_parse(file, use_float=True, multiple_values=True):
            if event == "map_key" and row is not None:
                key = value
            elif event == "start_map" and row is None:
                row = {}
            elif event == "end_map" and row is not None:
                yield row
                row = None
            elif event == "start_array" and row is None and not in_list:
                in_list = True
            elif event == "end_array" and row is None:
                in_list = False
            elif event in _SCALARS and row is not None:
                row[key] = _plain(value)
                if len(row) > _MOST_COLUMNS:
                    raise TraceRefused(f"expected at most {_MOST_COLUMNS:,} columns, found more")
            else:
                where = f"in {listed([key])}" if row is not None else "in place of a row"
                raise TraceRefused(
                    f"expected a list of rows of numbers and names, got {event} {where}"
                )


def _compact(batch: pa.RecordBatch, columns: dict[str, str]) -> pa.RecordBatch:
    arrays, names = [], []
    for what, spelling in columns.items():
        column = batch.column(batch.schema.get_field_index(spelling))
        if column.null_count:
            raise TraceRefused(f"expected a value in each row of {spelling}, found none in some")
        if what == "name":
            column = _names(column, spelling)
        elif what.startswith(("start", "duration")):
            column = column.cast(pa.float64(), safe=False)
        else:
            column = _whole(column, spelling)
        arrays.append(column)
        names.append(what)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _names(column: Any, spelling: str) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast(pa.string())
    if len(column) and pc.max(pc.utf8_length(column)).as_py() > _LONGEST_NAME:
        raise TraceRefused(f"expected at most {_LONGEST_NAME} characters in each {spelling}")
    return column.dictionary_encode()


def _whole(column: Any, spelling: str) -> Any:
    if pa.types.is_boolean(column.type) or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        raise TraceRefused(f"expected whole numbers in {spelling}, got {column.type}")
    return column.cast(pa.int64())


def _trace(table: pa.Table) -> RankTrace:
    name = table["name"].combine_chunks()
    if len(name.dictionary) > MOST_NAMES:
        raise TraceRefused(f"expected at most {MOST_NAMES:,} names of operations")
    return RankTrace(
        _bounded(table, "rank", np.int32),
        _bounded(table, "stage", np.int32, 0),
        _bounded(table, "step", np.int64),
        np.asarray(name.indices, dtype=np.int32),
        tuple(name.dictionary.to_pylist()),
        _seconds(table, "start"),
        _seconds(table, "duration"),
        _bounded(table, "group", np.int64, UNKNOWN),
        _bounded(table, "replica", np.int32, UNKNOWN),
    )


def _bounded(table: pa.Table, what: str, kind: type, otherwise: int | None = None) -> NDArray[Any]:
    if what not in table.column_names and otherwise is not None:
        return np.full(len(table), otherwise, dtype=kind)
    values = table[what].to_numpy()
    limits = np.iinfo(np.int32)
    if len(values) and not (limits.min <= values.min() and values.max() <= limits.max):
        raise TraceRefused(f"expected {what} within {limits.min:,} .. {limits.max:,}")
    return np.asarray(values, dtype=kind)


def _seconds(table: pa.Table, time: str) -> NDArray[np.float64]:
    unit = next(unit for unit in _UNITS if time + unit in table.column_names)
    return np.asarray(table[time + unit].to_numpy(), dtype=np.float64) * _UNITS[unit]
