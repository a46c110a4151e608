"""Plays the runs of an experiment in parallel processes; what is finished is not played again.

A folder holds a file of one row for each finished run, `rows/KEY.parquet`, and checkpoints of those
under way, `work/KEY/`.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from privacy.errors import ParameterError
from transport.process.unforeseen import line
from wire.catalogue import Catalogue

from .experiment_file import ExperimentRun
from .kinds import KINDS

ROWS: Final = "rows"
WORK: Final = "work"
_PRELOAD: Final = ["simulator.experiments.kinds"]
_RUNS_EACH: Final = 16
"""Runs of one process before a fresh one takes its place: what leaks is gone with it."""


class SweepFailed(RuntimeError):
    """A run broke; the others of its folder are kept, and the next call plays it again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One run and its row; `kept` where it was finished by an earlier call."""

    run: ExperimentRun
    row: dict[str, Any]
    kept: bool


def sweep(runs: Sequence[ExperimentRun], folder: Path, processes: int = 1) -> Iterator[Finished]:
    """Play what is not finished yet, and give each row as it comes, finished ones first.

    Raises      SweepFailed, after the runs under way have ended
    """
    (folder / ROWS).mkdir(parents=True, exist_ok=True)
    wanted = {run.key: run for run in runs}  # equal points of two parts are one run
    todo = []
    for run in wanted.values():
        row = _find(folder, run)
        if row is None:
            todo.append(run)
        else:
            yield Finished(run, row, kept=True)
    here = ((run, play_one(run, folder)) for run in todo)
    for run, row in here if processes <= 1 else _there(todo, folder, processes):
        _write(pa.Table.from_pylist([row]), _path(folder, run))
        shutil.rmtree(folder / WORK / run.key, ignore_errors=True)
        yield Finished(run, row, kept=False)


def forget(runs: Iterable[ExperimentRun], folder: Path) -> None:
    for run in runs:
        _path(folder, run).unlink(missing_ok=True)
        shutil.rmtree(folder / WORK / run.key, ignore_errors=True)


def read_rows(runs: Iterable[ExperimentRun], folder: Path) -> list[dict[str, Any]]:
    found = []
    for run in runs:
        row = _find(folder, run)
        if row is not None:
            found.append(row | run.columns())
    return found


def write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write all rows as one Parquet table, a column missing in some rows being null there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    _write(pa.table(columns), path)


def play_one(run: ExperimentRun, folder: Path) -> dict[str, Any]:
    work = folder / WORK / run.key
    work.mkdir(parents=True, exist_ok=True)
    catalogue = Catalogue.load()
    try:
        row = KINDS[run.kind](run, work, catalogue) | {"refusal": ""}
    except ParameterError as error:
        row = {"refusal": str(error)}
    return run.columns() | row


def _there(
    todo: Sequence[ExperimentRun], folder: Path, processes: int
) -> Iterator[tuple[ExperimentRun, dict[str, Any]]]:
    """Play in processes of their own, each with one run at a time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    workers = min(processes, max(1, len(todo)))
    with ProcessPoolExecutor(workers, context, max_tasks_per_child=_RUNS_EACH) as pool:
        waiting: dict[Future[dict[str, Any]], ExperimentRun] = {}
        queue, failed = list(reversed(todo)), ""
        try:
            while waiting or queue:
                while queue and len(waiting) < workers and not failed:
                    run = queue.pop()
                    waiting[pool.submit(play_one, run, folder)] = run
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    run = waiting.pop(future)
                    try:
                        yield run, future.result()
                    except BrokenProcessPool as error:
                        raise SweepFailed(f"{run.label}: its process is gone") from error
                    except Exception as error:  # noqa: BLE001  (it may be anything of a run's own)
                        failed = failed or f"{run.label}: {line(error)}"
                if failed and not waiting:
                    raise SweepFailed(failed)
        except BaseException:
            # Leaving the block waits for the runs under way: a person who ends a sweep should not.
            # Their checkpoints are whole, and the next call goes on from them.
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _path(folder: Path, run: ExperimentRun) -> Path:
    return folder / ROWS / f"{run.key}.parquet"


def _find(folder: Path, run: ExperimentRun) -> dict[str, Any] | None:
    try:
        (row,) = pq.read_table(_path(folder, run)).to_pylist()
    except (OSError, ValueError):  # pyarrow's own errors are ValueErrors
        return None
    return dict(row)


def _write(table: pa.Table, path: Path) -> None:
    """Whole or not at all: a reader never meets half a file."""
    part = path.with_suffix(f".{os.getpid()}.part")
    pq.write_table(table, part, compression="zstd")
    part.replace(path)
