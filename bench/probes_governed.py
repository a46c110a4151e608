"""A process that launches at a rate under the governor: how much slower it is, what was counted.

The process launches through a probed library and through a bare one in slices of milliseconds that
take turns: whatever the machine does besides, it does to both.

`python -m bench.probes_governed LIBRARY` is an agent that probes one file, in a process of its own:
everything of the real agent that probing needs, and nothing that it publishes. It says `ready` when
the file is attached, works until a line comes on stdin, and then prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from bench.probes_target import Slices, Target, copy_library
from bench.record import ROOT
from bench.steered import Steered
from collectors.binaries.elf_file import ElfFile
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.activity_records import Named
from collectors.gpu_calls.call_records import CallRecords
from collectors.gpu_calls.costs import HitCosts
from collectors.gpu_calls.found_files import FileFound
from collectors.gpu_calls.governor import Governor, GovernorSettings
from collectors.gpu_calls.periods import Collected, PeriodKeeper, ProbeAttacher, SwitchingThread
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.gpu_calls.readout import ProbeDrain
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    ProcessLabels,
)

_FILE: Final = 1
_EVERY_S: Final = 1.0
RATES: Final = (1_000, 2_500, 5_000, 20_000, 50_000)
"""At 2,500 all probes can just stay attached: the dearest rate without windows."""
BURST_MS: Final = (300, 1_500)
"""Work and sleep in turns: a training step with its data loading, six to one."""
FREE_RATE: Final = 20_000


@dataclass(slots=True)
class Seen:
    launches: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    _calls: CallRecords = field(
        default_factory=lambda: CallRecords(
            ProbeTable.load(), lambda _: ProcessLabels("bench"), lambda _: False
        )
    )

    def add(self, drain: ProbeDrain) -> None:
        self.launches += sum(row.launches for row in drain.launches if row.file == _FILE)

    def collect(self, collected: Iterable[Collected]) -> None:
        """Count drains of governed periods, and keep what is said of each process."""
        drains = list(collected)
        for record in self._calls.of(drains, _Unnamed()):
            self.records += [
                {
                    "pid": process.process.pid, "begin_ns": record.boottime_ns,
                    "span_ns": record.span_ns, "value": process.launches.value,
                }
                for process in record.processes
            ]  # fmt: skip
        for one in drains:
            self.add(one.drain)


class _Unnamed(dict[tuple[ProcessKey, int], Named]):
    def __missing__(self, key: tuple[ProcessKey, int]) -> Named:
        return Named(f"kernel_{key[1]}", "other")


class Governed:
    def __init__(self, library: Path) -> None:
        table = ProbeTable.load()
        self._programs = GpuPrograms(table)
        costs = HitCosts(table)
        costs.calibrate(self._programs)
        attacher = ProbeAttacher(self._programs)
        self._keeper = PeriodKeeper(
            self._programs, Governor(GovernorSettings(), secrets.randbelow), costs, attacher.places
        )
        found = file_found(library, table)
        costs.learn(_FILE, found.plan)
        attacher.add(found)
        self._keeper.start(boottime_ns())
        self._switching = SwitchingThread(self._keeper, attacher, lambda: None)  # done
        self._switching.start()

    def collect(self, seen: Seen) -> None:
        collected, changed = self._keeper.take(boottime_ns())
        seen.collect(collected)
        if changed:
            self._switching.wake()

    def close(self) -> None:
        self._switching.stop()
        self._programs.close()


class Free:
    def __init__(self, library: Path) -> None:
        table = ProbeTable.load()
        self._programs = GpuPrograms(table)
        self._programs.attach(_FILE, str(library), file_found(library, table).plan.attachments)

    def collect(self, seen: Seen) -> None:
        seen.add(self._programs.drain(boottime_ns()))

    def close(self) -> None:
        self._programs.close()


def file_found(library: Path, table: ProbeTable) -> FileFound:
    status = library.stat()
    with library.open("rb") as file:
        plan = PlanBook(table).plan(ElfFile.read(file), library.name)
    key = ((os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino)
    return FileFound(_FILE, key, str(library), plan, str(library), "", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--free", action="store_true", help="without the governor")
    options = parser.parse_args()
    probes = (Free if options.free else Governed)(options.library.resolve())
    seen = Seen()
    probes.collect(Seen())
    print("ready", flush=True)
    begin, begun_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        probes.collect(seen)
    end, took_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - begun_s
    probes.collect(seen)
    said = {
        "launches": seen.launches,
        "records": seen.records,
        "user_share": (end.ru_utime - begin.ru_utime) / took_s,
    }
    probes.close()
    print(json.dumps(said), flush=True)


class Agent(Steered):
    """Such a process, started and read by the benchmark; use it as a context manager."""

    def __init__(self, library: Path, *, free: bool) -> None:
        command = [sys.executable, "-m", "bench.probes_governed", str(library)]
        super().__init__([*command, *["--free"] * free], cwd=ROOT)

    def __enter__(self) -> Self:
        if self.answer() != "ready":
            raise RuntimeError("the benchmark's agent did not attach: see above")
        return self

    def end(self) -> dict[str, Any]:
        said, _ = self.process.communicate("\n", timeout=60)
        answer: dict[str, Any] = json.loads(said)
        return answer


def governed(
    folder: Path, rate: float, seconds: float, burst_ms: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Run a process under the governor; what probes took and by how much counts err, of one."""
    with _target(folder) as target, Agent(_library(folder), free=False) as agent:
        target.begin_pace(0, 1, rate, seconds, burst_ms)
        slices = target.end_pace()
        seen = agent.end()
        records = [record for record in seen["records"] if record["pid"] == target.pid]
    return {"overhead": slowdown(slices), **count_error(slices, records)}


def free(folder: Path, seconds: float) -> dict[str, Any]:
    """Run a process at a rate without the governor: what the agent takes, and what it misses."""
    with _target(folder) as target, Agent(_library(folder), free=True) as agent:
        target.begin_pace(0, 1, FREE_RATE, seconds, (0, 0))
        slices = target.end_pace()
        seen = agent.end()
    launches = sum(one.launches for one in slices)
    return {"uncounted": launches - seen["launches"], "user_share": seen["user_share"]}


def flat_out(folder: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Let a process launch as often as it can, without the governor."""
    with _target(folder) as target, Agent(_library(folder), free=True) as agent:
        launches = target.flat_out(0, threads, seconds)
        seen = agent.end()
    return {"uncounted": launches - seen["launches"]}


def count_error(slices: Sequence[Slices], records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compare what was counted and estimated with the truth, while the process launched."""
    begin_ns, end_ns = slices[0].begin_ns, max(slices[-1].end_ns, slices[-1].bare_end_ns)
    told = [
        one
        for one in records
        if one["begin_ns"] >= begin_ns and one["begin_ns"] + one["span_ns"] <= end_ns
    ]
    truth = sum(launched(slices, one["begin_ns"], one["begin_ns"] + one["span_ns"]) for one in told)
    return {"count_error": sum(one["value"] for one in told) / truth - 1.0} if truth else {}


def _target(folder: Path) -> Target:
    return Target(folder, [_library(folder), copy_library(folder, "push", "bare").resolve()])


def _library(folder: Path) -> Path:
    path = folder / "governed" / "libcudart.so.12"
    return path if path.exists() else copy_library(folder, "push", "governed").resolve()


def slowdown(slices: Sequence[Slices]) -> float:
    """Give what probes took of the process's time on the wall."""
    values = np.array(slices, dtype=np.float64)
    wall = max(values[-1, 1], values[-1, 5]) - min(values[0, 0], values[0, 4])
    return float((values[:, 3] - values[:, 7]).sum() / wall)


def launched(slices: Sequence[Slices], begin_ns: int, end_ns: int) -> float:
    """Count launches of a span; of slices at its edges their share."""
    total = 0.0
    for one in slices:
        inside = min(one.end_ns, end_ns) - max(one.begin_ns, begin_ns)
        if inside > 0:
            total += one.launches * inside / (one.end_ns - one.begin_ns)
    return total


if __name__ == "__main__":
    main()
