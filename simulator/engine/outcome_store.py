"""Settled windows in one SQLite file, so that a run that was cut off goes on where it was.

The production store takes them too, so that every reader of releases reads simulated ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.protocol.released import Capacity, ReleasedWindow
from transport.files.sqlite_file import SqliteFile
from wire.task import Task

from .engine_port import WindowOutcome

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS run (one INTEGER PRIMARY KEY CHECK (one = 1), fingerprint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (series TEXT, start INTEGER, windows INTEGER NOT NULL,
    n INTEGER NOT NULL, reporting INTEGER NOT NULL, reason TEXT NOT NULL, refused TEXT NOT NULL,
    stages TEXT NOT NULL, capacity TEXT, wall_s REAL NOT NULL, released BLOB, truth BLOB NOT NULL,
    PRIMARY KEY (series, start)) WITHOUT ROWID
"""


_FILE: Final = SqliteFile(tables=_SCHEMA, version=None, private=False, checked=False)


class AnotherRun(ValueError):
    """A checkpoint file is of another scenario, plan, seed or fidelity."""


class OutcomeStore:
    """Outcomes by series and start; each is durable when `keep` returns."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Open or create the file.

        fingerprint     of everything that the outcomes depend on
        Raises          AnotherRun
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = _FILE.open(path)
        self._db.execute("INSERT OR IGNORE INTO run VALUES (1, ?)", (fingerprint,))
        kept = self._db.execute("SELECT fingerprint FROM run").fetchone()[0]
        if kept != fingerprint:
            self._db.close()
            raise AnotherRun(
                f"{path}: expected the checkpoint of this run ({fingerprint[:12]}), got that of "
                f"another ({kept[:12]}): choose another folder, or delete it"
            )

    def keep(self, outcome: WindowOutcome, wall_s: float) -> None:
        """Store one outcome; the same window again replaces it."""
        capacity = None if outcome.capacity is None else _capacity_text(outcome.capacity)
        released = None if outcome.released is None else outcome.released.astype("<i8").tobytes()
        row = (
            *(outcome.task.series, outcome.start, outcome.windows, outcome.n, outcome.reporting),
            *(outcome.reason, _text(outcome.refused), _text(outcome.stage_s), capacity, wall_s),
            *(released, outcome.truth.astype("<i8").tobytes()),
        )
        self._db.execute("INSERT OR REPLACE INTO outcomes VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", row)

    def find(self, task: Task, start: int) -> tuple[WindowOutcome, float] | None:
        """Give a settled window, with the wall seconds that it took; None where there is none."""
        row = self._db.execute(
            "SELECT windows, n, reporting, reason, refused, stages, capacity, wall_s, released, "
            "truth FROM outcomes WHERE series = ? AND start = ?",
            (task.series, start),
        ).fetchone()
        if row is None:
            return None
        windows, n, reporting, reason, refused, stages, capacity, wall_s, released, truth = row
        outcome = WindowOutcome(
            start,
            None if released is None else np.frombuffer(released, "<i8").astype(np.int64),
            n,
            json.loads(refused),
            reason,
            task,
            json.loads(stages),
            np.frombuffer(truth, "<i8").astype(np.int64),
            reporting,
            windows,
            None if capacity is None else _capacity_of(capacity),
        )
        return outcome, wall_s

    def __len__(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM outcomes").fetchone()[0]
        return count

    def close(self) -> None:
        """Let the file go."""
        self._db.close()


def _text(numbers: Mapping[str, Any]) -> str:
    return json.dumps(dict(numbers), sort_keys=True)


def _capacity_text(capacity: Capacity) -> str:
    tables = (capacity.gpus_by_model, capacity.squares_by_model)
    counts = capacity.squares, capacity.largest
    return json.dumps([*(sorted(table.items()) for table in tables), *counts])


def _capacity_of(text: str) -> Capacity:
    gpus, squares_by_model, *counts = json.loads(text)
    return Capacity(dict(map(tuple, gpus)), dict(map(tuple, squares_by_model)), *counts)


def release_of(outcome: WindowOutcome) -> ReleasedWindow:
    """Give what a `Store` takes. Raises ValueError where nothing was released."""
    if outcome.released is None:
        raise ValueError(f"expected a released window, got one kept back: {outcome.reason}")
    end_s = float(outcome.start + outcome.task.window_s + outcome.task.lateness_s)
    return ReleasedWindow(
        task_id=sha256(outcome.task.encode_body()).digest(),
        task=outcome.task,
        cohort=0,
        window_start_s=outcome.start,
        n=outcome.n,
        vector=outcome.released,
        rejections=outcome.refused,
        closed_s=end_s,
        released_s=end_s,
        capacity=outcome.capacity,
    )
