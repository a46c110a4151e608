"""`make bench-diagnosis ARGS="record --hours 1"`: the fault bench's command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from bench.diagnosis.leftovers import BenchBusyError, clear, only_bench
from bench.diagnosis.plan import Run, plan
from bench.diagnosis.sitting import Terms, pending, recording_path, sit
from bench.record import ROOT
from diagnosis.frames.recording import read_meta

RECORDINGS: Final = ROOT / "bench" / "recordings"


def main(words: list[str]) -> int:
    """Run the command; returns the exit status."""
    given = _parser().parse_args(words)
    runs = [run for run in plan(given.rounds) if not given.only or given.only in run.name]
    if given.command in {"plan", "show"}:
        with _enough():
            if given.command == "plan":
                _show_plan(runs, given.folder)
            else:
                _show_recordings(given.folder)
        return 0
    if os.geteuid() != 0:
        print("The fault bench needs root: cgroups, namespaces, eBPF.", file=sys.stderr)
        return 1
    if given.command == "clean":
        print(clear())
        return 0
    return _record(runs, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.diagnosis", description=__doc__)
    parser.add_argument("command", choices=["record", "plan", "show", "clean"])
    parser.add_argument("--folder", type=Path, default=RECORDINGS)
    parser.add_argument("--rounds", type=int, default=3, help="seeds of the whole plan")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--hours", type=float, default=1.0, help="no run begins that ends later")
    parser.add_argument("--gap-s", type=float, default=8.0, help="rest between runs")
    parser.add_argument(
        "--wait-s", type=float, default=0.0, help="wait this long for another fault bench to end"
    )
    parser.add_argument("--lock", type=Path, help="file to lock while a run is recorded")
    parser.add_argument("--together", type=int, default=1, help="runs under one hold of the lock")
    return parser


@contextmanager
def _enough() -> Iterator[None]:
    """Print until nobody reads on: whoever closes the pipe, as `head` does, has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and that must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_plan(runs: list[Run], folder: Path) -> None:
    for run in runs:
        print("recorded" if recording_path(folder, run).exists() else "pending ", run.name)
    left = pending(runs, folder)
    hours = sum(run.seconds + 10 for run in left) / 3600
    print(f"{len(left)} of {len(runs)} runs are left, about {hours:.1f} hours.")


def _show_recordings(folder: Path) -> None:
    print("impact  p99 of steps, before and during, ms   others, cores   run and subject")
    for path in sorted(folder.glob("*.parquet")):
        facts = read_meta(path)
        for subject, found in facts["impact"].items():
            before, during = found["before"]["p99_ms"], found["during"]["p99_ms"]
            gate = "impact" if found["passed"] else "none  "
            others = facts["disturbance"]["others_cores"]
            rise = (
                f"{during:8.1f}  x{found['ratio']:5.2f}" if found["during"]["steps"] else " " * 16
            )
            print(f"{gate}  {before:11.1f} {rise}   {others:19.2f}   {facts['name']} {subject}")


def _record(runs: list[Run], given: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    terms = Terms(
        given.folder,
        given.hours,
        gap_s=given.gap_s,
        lock=given.lock,
        together=given.together,
    )
    try:
        with only_bench(given.wait_s) as found:
            if found:
                print(f"Cleared what an earlier bench had left: {found}")
            sit(runs, terms)
    except BenchBusyError as error:
        print(error, file=sys.stderr)
        return 75
    except KeyboardInterrupt:
        print("Stopped. What is recorded stays; the same command goes on from there.")
        return 130
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
