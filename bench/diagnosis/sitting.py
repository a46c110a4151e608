"""A sitting: as many runs of the plan as there is time for, one after the other, unattended.

make bench-diagnosis ARGS="record --hours 1"
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from bench.diagnosis.leftovers import BenchBusyError, clear, only_bench
from bench.diagnosis.plan import Run, plan
from bench.diagnosis.recording import RunRefusedError, record
from bench.diagnosis.workload import Workload, start_workload
from bench.record import CACHE, ROOT

RECORDINGS: Final = ROOT / "bench" / "recordings"
WORK: Final = CACHE / "diagnosis" / "work"
REFUSED: Final = CACHE / "diagnosis" / "refused.jsonl"
WARM_UP_S: Final = 12.0
GAP_S: Final = 8.0


class Stage:
    """The workloads that stand now; kept from run to run as long as the next needs the same."""

    def __init__(self) -> None:
        self._kind: tuple[str, int] | None = None
        self.works: list[Workload] = []

    def set(self, run: Run) -> Sequence[Workload]:
        kind = (run.workload, run.workers)
        if kind != self._kind:
            self.clear()
            for index in range(run.workers):
                cpus = (index,) if run.workers > 1 else ()
                folder = WORK / f"{run.workload}{index}"
                self.works.append(start_workload(run.workload, folder, run.seed, index, cpus))
            self._kind = kind
            time.sleep(WARM_UP_S)
        return self.works

    def clear(self) -> None:
        for work in self.works:
            work.close()
            shutil.rmtree(work.folder, ignore_errors=True)
        self.works, self._kind = [], None


def pending(runs: Sequence[Run], folder: Path) -> list[Run]:
    return [run for run in runs if not recording_path(folder, run).exists()]


def recording_path(folder: Path, run: Run) -> Path:
    return folder / f"{run.name}.parquet"


def sit(runs: Sequence[Run], folder: Path, hours: float) -> None:
    """Record what is pending; no run begins that would not end within the hours."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(WORK, ignore_errors=True)
    for cut_off in folder.glob("*.part"):
        cut_off.unlink()
    left, ends, stage = pending(runs, folder), time.monotonic() + hours * 3600, Stage()
    print(f"{len(runs) - len(left)} of {len(runs)} runs are recorded, {len(left)} are left.")
    try:
        for place, run in enumerate(left):
            left_s = ends - time.monotonic()
            if run.seconds + GAP_S > left_s:
                print(f"Time is up: {len(left) - place} runs are left for the next sitting.")
                break
            line = _attempt(run, stage, recording_path(folder, run))
            print(f"[{place + 1}/{len(left)}, {left_s / 60:.0f} min left] {run.name}: {line}")
            time.sleep(GAP_S)
    finally:
        stage.clear()


def _attempt(run: Run, stage: Stage, path: Path) -> str:
    try:
        return _summary(record(run, stage.set(run), path, undisturbed=True))
    except (RunRefusedError, RuntimeError) as error:
        stage.clear()
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        REFUSED.parent.mkdir(parents=True, exist_ok=True)
        with REFUSED.open("a") as file:
            file.write(json.dumps({"run": run.name, "why": str(error), "at": at}) + "\n")
        return f"refused: {error}"


def _summary(facts: dict[str, Any]) -> str:
    first = next(iter(facts["impact"].values()))
    before, during, rest = first["before"], first["during"], facts["disturbance"]
    return (
        f"x{first['ratio']:.2f} (p99 {before['p99_ms']:.1f} -> {during['p99_ms']:.1f} ms), "
        f"steal {rest['steal_cores']:.2f}, others {rest['others_cores']:.2f} "
        f"(at once {rest['worst_others_cores']:.2f}) cores"
    )


def main() -> int:
    """Record, show what is left of the plan, or clear up; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.diagnosis.sitting", description=__doc__)
    parser.add_argument("command", choices=["record", "plan", "clean"])
    parser.add_argument("--folder", type=Path, default=RECORDINGS)
    parser.add_argument("--rounds", type=int, default=3, help="seeds of the whole plan")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--hours", type=float, default=1.0, help="no run begins that ends later")
    given = parser.parse_args()
    runs = [run for run in plan(given.rounds) if given.only in run.name]
    if given.command == "plan":
        for run in runs:
            made = recording_path(given.folder, run).exists()
            print("recorded" if made else "pending ", run.name)
        left = pending(runs, given.folder)
        hours = sum(run.seconds + GAP_S for run in left) / 3600
        print(f"{len(left)} of {len(runs)} runs are left, about {hours:.1f} hours.")
        return 0
    if os.geteuid() != 0:
        print("The fault bench needs root: cgroups, namespaces, eBPF.", file=sys.stderr)
        return 1
    if given.command == "clean":
        print(clear())
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with only_bench() as found:
            print(f"Cleared what an earlier bench had left: {found}")
            sit(runs, given.folder, given.hours)
    except BenchBusyError as error:
        print(error, file=sys.stderr)
        return 75
    except KeyboardInterrupt:
        print("Stopped. What is recorded stays; the same command goes on from there.")
        return 130
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
