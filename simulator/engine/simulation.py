"""A scenario from its first window to its last: fleet, rows, engine, checkpoints."""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.protocol.released import Capacity, ReleasedWindow
from privacy.plan import Plan
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.fleet_rows import FleetRows
from simulator.fleet.hosts import FleetState
from simulator.scenario import Scenario
from transport.files.sqlite_file import SqliteFile
from wire.catalogue import Catalogue
from wire.task import Task

from .exact import HONEST, ExactEngine, ExactParties, Tampering
from .fast import MaskedEngine, NoiseEngine
from .interface import EngineSettings, RowSource, WindowOutcome
from .journals import Plays
from .task_rules import fleet_tasks, windows_within

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
        """Open or create the file of a run. Raises AnotherRun."""
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


DAY_S: Final = 86_400
ROW_S: Final = 3600
"""Beyond a day, windows shorter than this are played as one row an hour."""

CHECKPOINT: Final = "outcomes.sqlite"


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """Windows of one series that are settled together.

    end_s       of the last of them, Unix seconds; windows come in the order of their ends
    window_s    of each: at one end the shorter come first
    """

    end_s: int
    window_s: int
    series: str
    start_s: int
    windows: int


@dataclass(frozen=True, slots=True)
class Step:
    """One settled window, or row of windows.

    state       what the hosts did in it; in a row, in the first of its windows
    wall_s      seconds that it took, by the clock on the wall
    kept        it was settled before this run was cut off, and comes from the checkpoint
    """

    due: Due
    state: FleetState
    outcome: WindowOutcome
    wall_s: float
    kept: bool


def schedule(tasks: list[Task], span: tuple[int, int], row_s: int) -> Iterator[Due]:
    """Give every whole window within [first, end), in the order of their ends.

    row_s   windows that divide it are taken in rows that end at its multiples; 0: each alone
    """
    return iter(heapq.merge(*(_of_task(task, span, row_s) for task in tasks)))


def _of_task(task: Task, span: tuple[int, int], row_s: int) -> Iterator[Due]:
    starts = windows_within(task.window_s, span)
    length_s = row_s if row_s > task.window_s and row_s % task.window_s == 0 else task.window_s
    at = starts.start
    while at in starts:
        end_s = min((at // length_s + 1) * length_s, starts[-1] + task.window_s)
        yield Due(end_s, task.window_s, task.series, at, (end_s - at) // task.window_s)
        at = end_s


@dataclass(slots=True)
class Simulation:
    """One scenario under one plan; iterate over `steps`.

    settings    its seed is the scenario's, whatever it says
    folder      where settled windows are kept; None: nowhere
    plays       agents' journals that some hosts live through
    """

    scenario: Scenario
    plan: Plan
    catalogue: Catalogue
    settings: EngineSettings
    folder: Path | None = None
    tampering: Tampering = HONEST
    plays: Plays | None = None
    fidelity: str = field(init=False)
    model: FleetModel = field(init=False)
    tasks: list[Task] = field(init=False)
    _parties: ExactParties = field(init=False)

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, seed=self.scenario.seed)
        self.fidelity = self.scenario.fidelity
        if self.fidelity == "auto":
            self.fidelity = "masked" if self.scenario.duration_s <= DAY_S else "noise"
        self.model = FleetModel(self.scenario, self.catalogue)
        self._parties = ExactParties()
        self.tasks = fleet_tasks(
            self.plan, self.catalogue, self.model.inventory, self.span, self._parties.public_keys
        )

    @property
    def span(self) -> tuple[int, int]:
        return self.scenario.start_s, self.scenario.end_s

    @property
    def due(self) -> list[Due]:
        rows = self.fidelity == "noise" and self.scenario.duration_s > DAY_S
        return list(schedule(self.tasks, self.span, ROW_S if rows else 0))

    @property
    def fingerprint(self) -> str:
        settings = self.settings
        parts = (
            *(self.scenario, self.plan, self.catalogue.hash.hex(), self.fidelity),
            *(settings.noise.value, settings.block_hosts),
            *(() if self.plays is None else (self.plays.fingerprint,)),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def steps(self) -> Iterator[Step]:
        """Settle window after window; what a checkpoint holds is not played again.

        Raises      AnotherRun, WorkerFailed, JournalError
        """
        store = None
        if self.folder is not None:
            store = OutcomeStore(self.folder / CHECKPOINT, self.fingerprint)
        engine: ExactEngine | MaskedEngine | NoiseEngine | None = None
        inventory, settings = self.model.inventory, self.settings
        sources = {task.series: (task, self._rows(task)) for task in self.tasks}
        try:
            for due in self.due:
                task, rows = sources[due.series]
                # The fleet is lived through either way: it is cheap, and repeats from its seed.
                state = self.model.at(due.start_s, task.window_s)
                found = store.find(task, due.start_s) if store is not None else None
                if found is not None:
                    yield Step(due, state, *found, kept=True)
                    continue
                if engine is None and self.fidelity == "exact":
                    engine = ExactEngine(
                        self._parties, self.tasks, inventory, self.span, settings, self.tampering
                    )
                elif engine is None:
                    kind = MaskedEngine if self.fidelity == "masked" else NoiseEngine
                    engine = kind(inventory, settings)
                began = time.perf_counter()
                if due.windows > 1 and isinstance(engine, NoiseEngine):
                    outcome = engine.windows(task, due.start_s, state, rows, due.windows)
                else:
                    outcome = engine.window(task, due.start_s, state, rows)
                wall_s = time.perf_counter() - began
                if store is not None:
                    store.keep(outcome, wall_s)
                yield Step(due, state, outcome, wall_s, kept=False)
        finally:
            if engine is not None:
                engine.close()
            if store is not None:
                store.close()

    def apart(self, skip: Callable[[Due], bool]) -> Iterator[tuple[Due, list[WindowOutcome]]]:
        """Settle row after row, each window by itself; of what `skip` names no window is played.

        Raises  WorkerFailed, JournalError
        """
        engine = NoiseEngine(self.model.inventory, self.settings)
        sources = {task.series: (task, self._rows(task)) for task in self.tasks}
        try:
            for due in schedule(self.tasks, self.span, ROW_S):
                state = self.model.at(due.start_s, due.window_s)
                if skip(due):
                    continue
                task, rows = sources[due.series]
                yield due, list(engine.apart(task, due.start_s, state, rows, due.windows))
        finally:
            engine.close()

    def _rows(self, task: Task) -> RowSource:
        drawn = FleetRows(self.catalogue, task, self.model.applications)
        if self.plays is None:
            return drawn
        return self.plays.over(self.catalogue, task, drawn, self.scenario.hosts)
