"""Recorded frames as a Parquet file: small, with a version, read with bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from transport.process.printable import first_line

from .frame import HostSample
from .series import SeriesRow, frames_of, rows_of

VERSION: Final = 1
CHUNK_FRAMES: Final = 600
"""Frames that are held before they are written: a row group."""

MOST_FILE_BYTES: Final = 256 << 20
_MOST_GROUPS: Final = 4_096
_MOST_ROWS: Final = 65_536
_MOST_VALUES: Final = 8_000_000
_MOST_FRAMES: Final = 200_000
"""Of one recording: over two days."""
_MOST_WHOLE: Final = 20_000
"""Of one that is held in memory."""
_MOST_PART_BYTES: Final = 256 << 20
"""What a part says it takes once it is decompressed."""
_MOST_CHUNK_FRAMES: Final = 4_096
_MOST_META_BYTES: Final = 1 << 20
_LONGEST_TEXT: Final = 4_096

_META: Final = b"pointillist.frames"
_TEXTS: Final = ("kind", "key", "name")
_LISTS: Final = ("numbers", "integers")
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_NUMBERS: Final = pa.list_(pa.field("element", pa.float32(), nullable=False))
_INTEGERS: Final = pa.list_(pa.field("element", pa.int64(), nullable=False))
SCHEMA: Final = pa.schema([
    *(pa.field(name, _TEXT, nullable=False) for name in _TEXTS),
    pa.field("numbers", _NUMBERS, nullable=False),
    pa.field("integers", _INTEGERS, nullable=False),
])  # fmt: skip
_ENCODING: Final = {
    "numbers.list.element": "BYTE_STREAM_SPLIT",
    "integers.list.element": "DELTA_BINARY_PACKED",
}


class RecordingError(ValueError):
    """A file that is no recording: one line says what was expected and what came."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What was recorded: facts about the run, as its writer gave them, and its seconds."""

    meta: Mapping[str, Any]
    frames: tuple[HostSample, ...]


class RecordingWriter:
    """Writes frames as they come; the file appears under its name when it is complete."""

    def __init__(self, path: Path, meta: Mapping[str, Any] | None = None) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._meta = dict(meta or {})
        self._frames: list[HostSample] = []
        self._writer: pq.ParquetWriter | None = pq.ParquetWriter(
            self._part, SCHEMA, compression="zstd", compression_level=19,
            use_dictionary=list(_TEXTS), column_encoding=_ENCODING, write_statistics=False,
            store_schema=False, data_page_version="2.0", version="2.6",
        )  # fmt: skip

    def append(self, frame: HostSample) -> None:
        self._frames.append(frame)
        if len(self._frames) >= CHUNK_FRAMES:
            self._flush()

    def close(self, meta: Mapping[str, Any] | None = None) -> None:
        """Write what is left and name the file; a second call does nothing."""
        if self._writer is None:
            return
        try:
            self._flush()
            text = json.dumps({"version": VERSION, "meta": self._meta | dict(meta or {})})
            self._writer.add_key_value_metadata({_META.decode(): text})
        except BaseException:
            self.discard()
            raise
        self._writer.close()
        self._writer = None
        self._part.replace(self._path)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(OSError):
                self.discard()

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self._writer is not None:
            rows = list(rows_of(frames))
            columns = [[getattr(row, name) for row in rows] for name in (*_TEXTS, *_LISTS)]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
            ]
            table = pa.Table.from_arrays(arrays, schema=SCHEMA)
            self._writer.write_table(table, row_group_size=len(rows))


def write_recording(path: Path, frames: Iterable[HostSample], meta: Mapping[str, Any]) -> None:
    """Write a whole recording. Raises ValueError for an infinite signal."""
    with RecordingWriter(path, meta) as writer:
        for frame in frames:
            writer.append(frame)


def read_recording(path: Path) -> Recording:
    with _opened(path) as file:
        return Recording(_meta(file, path), tuple(_frames(file, path, _MOST_WHOLE)))


def read_meta(path: Path) -> Mapping[str, Any]:
    """Read the facts about a recording's run alone. Raises RecordingError, OSError."""
    with _opened(path) as file:
        return _meta(file, path)


def iterate(path: Path) -> Iterator[HostSample]:
    """Give a recording's frames, some minutes at a time. Raises RecordingError, OSError."""
    with _opened(path) as file:
        _meta(file, path)
        yield from _frames(file, path)


def _opened(path: Path) -> pq.ParquetFile:
    size = path.stat().st_size
    if size > MOST_FILE_BYTES:
        raise RecordingError(f"{path}: expected at most {MOST_FILE_BYTES} bytes, got {size}")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordingError(f"{path}: expected a Parquet file, got {first_line(error)}") from None
    wrong = _wrong_shape(file)
    if wrong:
        file.close()
        raise RecordingError(f"{path}: {wrong}")
    return file


def _wrong_shape(file: pq.ParquetFile) -> str | None:
    """Say what the file's own table of contents tells against it, before any page is read."""
    meta = file.metadata
    if meta.num_row_groups > _MOST_GROUPS:
        return f"expected at most {_MOST_GROUPS} row groups, got {meta.num_row_groups}"
    names = file.schema_arrow.names
    if names != SCHEMA.names:
        return f"expected the columns {SCHEMA.names}, got {[name[:40] for name in names[:8]]}"
    for field, found in zip(SCHEMA, file.schema_arrow, strict=True):
        plain = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
        wanted = field.type.value_type if field.name in _TEXTS else field.type
        same = plain == wanted or (
            pa.types.is_list(plain) and plain.value_type == getattr(wanted, "value_type", None)
        )
        if not same:
            return f"expected {field.name} to be {wanted}, got {str(found.type)[:80]}"
    for group in range(meta.num_row_groups):
        rows = meta.row_group(group)
        values = max(rows.column(place).num_values for place in range(rows.num_columns))
        sizes = [rows.column(place).total_uncompressed_size for place in range(rows.num_columns)]
        if sum(sizes) > _MOST_PART_BYTES:
            return f"expected parts of at most {_MOST_PART_BYTES} bytes, got more"
        if rows.num_rows > _MOST_ROWS or values > _MOST_VALUES:
            return f"expected at most {_MOST_ROWS} series of {_MOST_VALUES} values, got more"
    return None


def _meta(file: pq.ParquetFile, path: Path) -> dict[str, Any]:
    text = (file.metadata.metadata or {}).get(_META)
    if text is None or len(text) > _MOST_META_BYTES:
        raise RecordingError(f"{path}: expected the facts of a recording, got none or too many")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordingError(f"{path}: expected facts in JSON, got other text") from None
    if not isinstance(found, dict) or not isinstance(found.get("meta"), dict):
        raise RecordingError(f"{path}: expected an object `meta` in the facts")
    if found.get("version") != VERSION:
        got = str(found.get("version"))[:40]
        raise RecordingError(f"{path}: expected version {VERSION} of recordings, got {got}")
    meta: dict[str, Any] = found["meta"]
    return meta


def _frames(file: pq.ParquetFile, path: Path, most: int = _MOST_FRAMES) -> Iterator[HostSample]:
    count = 0
    for group in range(file.metadata.num_row_groups):
        try:
            found = frames_of(_rows(file.read_row_group(group)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise RecordingError(f"{path}: part {group}: {first_line(error)}") from None
        count += len(found)
        if count > most:
            raise RecordingError(f"{path}: expected at most {most} frames, got more")
        yield from found


def _rows(table: pa.Table) -> Iterator[SeriesRow]:
    texts = [table.column(name).to_pylist() for name in _TEXTS]
    lists = []
    for name, kind in zip(_LISTS, (np.float32, np.int64), strict=True):
        column = table.column(name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        if column.null_count or column.values.null_count or len(column.values) > _MOST_VALUES:
            raise ValueError(f"expected up to {_MOST_VALUES} {name} and no null among them")
        values = np.asarray(column.values.to_numpy(zero_copy_only=False), kind)
        if np.isinf(values).any():
            raise ValueError("expected finite numbers, got an infinite one")
        lists.append((values, column.offsets.to_numpy().tolist()))
    (numbers, number_at), (integers, integer_at) = lists
    for place, row in enumerate(zip(*texts, strict=True)):
        if any(not isinstance(text, str) or len(text) > _LONGEST_TEXT for text in row):
            raise ValueError(f"expected texts of up to {_LONGEST_TEXT} characters")
        if not all(text.isprintable() for text in row):
            raise ValueError("expected printable texts")
        found = SeriesRow(
            str(row[0]),
            str(row[1]),
            str(row[2]),
            numbers[number_at[place] : number_at[place + 1]],
            integers[integer_at[place] : integer_at[place + 1]],
        )
        if found.kind == "frame" and len(found.integers) > _MOST_CHUNK_FRAMES:
            raise ValueError(f"expected at most {_MOST_CHUNK_FRAMES} frames in a part")
        yield found
