"""Results as Parquet: one row a frozen dataclass, so that a report reads them without this code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """Write dataclasses of one kind; tables in them become JSON text, tuples become lists.

    Raises      ValueError without a row: a file without columns says nothing
    """
    if not rows:
        raise ValueError(f"{path}: expected at least one row, got none")
    path.parent.mkdir(parents=True, exist_ok=True)
    flat = [{key: _plain(value) for key, value in asdict(row).items()} for row in rows]
    partial = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(flat), partial, compression="zstd")
    partial.replace(path)
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
