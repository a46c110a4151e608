"""A sitting: as many runs of the plan as there is time for, one after the other, unattended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.diagnosis.plan import Run
from bench.diagnosis.recording import RunRefusedError, record
from bench.diagnosis.workload import Workload, discard, start_workload
from bench.record import CACHE

WORK: Final = CACHE / "diagnosis" / "work"
REFUSED: Final = CACHE / "diagnosis" / "refused.jsonl"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a sitting goes.

    folder      where recordings are; a run whose file is there is not made again
    hours       no run begins that would not end within them
    warm_up_s   after a workload was started, before its first run
    gap_s       rest between runs
    lock        file that is locked while a run is recorded, so that other loads keep away
    together    runs under one hold of the lock
    """

    folder: Path
    hours: float = 1.0
    warm_up_s: float = 12.0
    gap_s: float = 8.0
    lock: Path | None = None
    together: int = 1


class Stage:
    """The workloads that stand now; kept from run to run as long as the next needs the same."""

    def __init__(self, warm_up_s: float) -> None:
        self._warm_up_s = warm_up_s
        self._kind: tuple[str, int] | None = None
        self.works: list[Workload] = []

    def set(self, run: Run) -> Sequence[Workload]:
        """Return the run's workloads, warm."""
        kind = (run.workload, run.workers)
        if kind != self._kind:
            self.clear()
            for index in range(run.workers):
                cpus = (index,) if run.workers > 1 else ()
                folder = WORK / f"{run.workload}{index}"
                self.works.append(start_workload(run.workload, folder, run.seed, index, cpus))
            self._kind = kind
            time.sleep(self._warm_up_s)
        return self.works

    def clear(self) -> None:
        """End what stands."""
        for work in self.works:
            work.close()
            discard(work.folder)
        self.works, self._kind = [], None


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Wait for the lock and hold it."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Turns:
    """The lock that keeps other loads away, held for some runs and then let go for the gap.

    lock        None: nobody is kept away
    together    runs that are recorded before others get their turn
    """

    def __init__(self, lock: Path | None, together: int) -> None:
        self._lock, self._together = lock, together
        self._held, self._runs = contextlib.ExitStack(), 0

    def take(self) -> None:
        """Wait until it is ours; at once where it still is."""
        if self._runs == 0:
            self._held.enter_context(alone(self._lock))
        self._runs += 1

    def rest(self, gap_s: float) -> None:
        """After a run: let go where that was the last of a turn, and wait."""
        if self._runs >= self._together:
            self.end()
        time.sleep(gap_s if self._runs == 0 else min(gap_s, 3.0))

    def end(self) -> None:
        """Let go."""
        self._held.close()
        self._runs = 0


def pending(plan: Sequence[Run], folder: Path) -> list[Run]:
    """Runs without a recording, in the plan's order."""
    return [run for run in plan if not recording_path(folder, run).exists()]


def recording_path(folder: Path, run: Run) -> Path:
    """Where a run's recording is, or will be."""
    return folder / f"{run.name}.parquet"


def sit(plan: Sequence[Run], terms: Terms) -> int:
    """Record what is pending until time is up; returns how many recordings were made."""
    terms.folder.mkdir(parents=True, exist_ok=True)
    discard(WORK)
    for cut_off in terms.folder.glob("*.part"):
        cut_off.unlink()
    runs, ends = pending(plan, terms.folder), time.monotonic() + terms.hours * 3600
    stage, turns, made = Stage(terms.warm_up_s), Turns(terms.lock, terms.together), 0
    print(f"{len(plan) - len(runs)} of {len(plan)} runs are recorded, {len(runs)} are left.")
    try:
        for place, run in enumerate(runs):
            left_s = ends - time.monotonic()
            if run.seconds + terms.gap_s > left_s:
                print(f"Time is up: {len(runs) - place} runs are left for the next sitting.")
                break
            line = _attempt(run, stage, turns, terms.folder)
            made += line.startswith("x")
            print(f"[{place + 1}/{len(runs)}, {left_s / 60:.0f} min left] {run.name}: {line}")
            turns.rest(terms.gap_s)
    finally:
        turns.end()
        stage.clear()
    return made


def _attempt(run: Run, stage: Stage, turns: Turns, folder: Path) -> str:
    try:
        works = stage.set(run)
        turns.take()
        path = recording_path(folder, run)
        facts = record(run, works, path, undisturbed=True)
    except (RunRefusedError, RuntimeError) as error:
        stage.clear()
        _note_refusal(run, str(error))
        return f"refused: {error}"
    return _summary(facts)


def _summary(facts: dict[str, Any]) -> str:
    first = next(iter(facts["impact"].values()))
    before, during, rest = first["before"], first["during"], facts["disturbance"]
    return (
        f"x{first['ratio']:.2f} (p99 {before['p99_ms']:.1f} -> {during['p99_ms']:.1f} ms), "
        f"steal {rest['steal_cores']:.2f}, others {rest['others_cores']:.2f} "
        f"(at once {rest['worst_others_cores']:.2f}) cores"
    )


def _note_refusal(run: Run, why: str) -> None:
    REFUSED.parent.mkdir(parents=True, exist_ok=True)
    row = {"run": run.name, "why": why, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    with REFUSED.open("a") as file:
        file.write(json.dumps(row) + "\n")
