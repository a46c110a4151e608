"""Results as Parquet rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from simulator.outcome.rows import write_rows


@dataclass(frozen=True)
class Result:
    name: str
    hours: float | None
    curve: tuple[float, ...]
    refused: dict[str, int]


def test_rows_are_read_back_without_their_class(tmp_path: Path) -> None:
    rows = [Result("a", None, (1.0, 2.0), {"tag": 2}), Result("b", 24.0, (), {})]
    path = write_rows(tmp_path / "deep" / "rows.parquet", rows)
    read = pq.read_table(path).to_pylist()
    assert read[0] == {"name": "a", "hours": None, "curve": [1.0, 2.0], "refused": '{"tag": 2}'}
    assert read[1]["hours"] == 24.0
    with pytest.raises(ValueError, match="at least one row"):
        write_rows(path, [])
