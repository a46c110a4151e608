"""A released window as rows, one a cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from aggregator.protocol.released import ReleasedWindow
from aggregator.statistics.statistics import Cell

from .release_files import SCHEMA


def release_rows(release: ReleasedWindow, cells: Sequence[Cell]) -> pa.Table:
    """Give the rows of a release, in the order of the vector."""
    same, count = of_window(release), len(cells)
    columns = [
        pa.array(
            [same[f.name]] * count if f.name in same else [getattr(c, f.name) for c in cells],
            f.type,
        )
        for f in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def of_window(release: ReleasedWindow) -> dict[str, object]:
    """Give the columns that are the same for all cells of a release."""
    task = release.task
    return {
        "series": task.series,
        "cohort": release.cohort,
        "window_start": utc(release.window_start_s),
        "window_s": task.window_s,
        "n_hosts": release.n,
        "epsilon": task.epsilon_millionths / 1e6,
        "delta": task.delta_1e12 / 1e12,
        "domain": task.domain,
        "released_at": utc(release.released_s),
        "rejections": json.dumps(dict(sorted(release.rejections.items()))),
    }


def utc(seconds: float) -> datetime:
    """Naive UTC, as every timestamp in the store is."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
