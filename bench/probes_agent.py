"""An agent that probes one file, in a process of its own: `python -m bench.probes_agent LIBRARY`.

Everything of the real agent that probing needs, and nothing that it publishes. It says `ready` when
the file is attached, works until a line comes on stdin, and then prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.record import ROOT
from collectors.binaries.elf_file import ElfFile
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.activity_records import Named
from collectors.gpu_calls.call_records import CallRecords
from collectors.gpu_calls.costs import HitCosts
from collectors.gpu_calls.counts import ProbeDrain
from collectors.gpu_calls.found_files import FileFound
from collectors.gpu_calls.governor import Governor, GovernorSettings
from collectors.gpu_calls.periods import Collected, PeriodKeeper
from collectors.gpu_calls.probe_plan import plan_file
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.gpu_calls.switching import Switchboard, SwitchingThread
from collectors.records.gpu_calls import (
    GpuCalls,
    ProbeGroup,
    ProcessCalls,
    ProcessLabels,
)
from collectors.records.process import ProcessKey

_FILE: Final = 1
_EVERY_S: Final = 1.0


@dataclass(slots=True)
class Seen:
    """What came out of the drains."""

    launches: int = 0
    periods: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    _calls: CallRecords = field(
        default_factory=lambda: CallRecords(
            ProbeTable.load(), lambda _: ProcessLabels("bench"), lambda _: False
        )
    )

    def add(self, drain: ProbeDrain) -> None:
        """Count a drain of the bench's own file."""
        self.launches += sum(row.launches for row in drain.launches if row.file == _FILE)

    def collect(self, collected: Iterable[Collected]) -> None:
        """Count drains of governed periods, and keep what is said of each process."""
        drains = list(collected)
        for record in self._calls.of(drains, _Unnamed()):
            self.records += [_said(record, process) for process in record.processes]
        for one in drains:
            self.add(one.drain)
            if one.ended is None:
                continue
            self.periods.append(
                {
                    "begin_ns": one.period.begin_ns,
                    "length_ns": one.ended.length_ns,
                    "share": one.shares[ProbeGroup.LAUNCH],
                }
            )


class _Unnamed(dict[tuple[ProcessKey, int], Named]):
    """Names for whatever is asked."""

    def __missing__(self, key: tuple[ProcessKey, int]) -> Named:
        return Named(f"kernel_{key[1]}", "other")


def _said(record: GpuCalls, process: ProcessCalls) -> dict[str, Any]:
    low, high = process.launches.interval
    return {
        "pid": process.process.pid,
        "begin_ns": record.boottime_ns,
        "span_ns": record.span_ns,
        "value": process.launches.value,
        "low": low,
        "high": min(high, sys.float_info.max),  # JSON has no infinity
        "error": min(process.launches.error, sys.float_info.max),
    }


class Governed:
    """Probes under the governor."""

    def __init__(self, library: Path) -> None:
        table = ProbeTable.load()
        self._programs = GpuPrograms(table)
        costs = HitCosts(table)
        costs.calibrate(self._programs)
        board = Switchboard(self._programs)
        self._keeper = PeriodKeeper(
            self._programs, Governor(GovernorSettings(), secrets.randbelow), costs, board.places
        )
        found = file_found(library, table)
        costs.learn(_FILE, found.plan)
        board.add(found)
        self._keeper.start(boottime_ns())
        self._switching = SwitchingThread(self._keeper, board, lambda: None)  # done
        self._switching.start()

    def collect(self, seen: Seen) -> None:
        """Drain once."""
        collected, changed = self._keeper.take(boottime_ns())
        seen.collect(collected)
        if changed:
            self._switching.wake()

    def close(self) -> None:
        """Stop."""
        self._switching.stop()
        self._programs.close()


class Free:
    """Probes that stay attached."""

    def __init__(self, library: Path) -> None:
        table = ProbeTable.load()
        self._programs = GpuPrograms(table)
        self._programs.attach(_FILE, str(library), file_found(library, table).plan.attachments)

    def collect(self, seen: Seen) -> None:
        """Drain once."""
        seen.add(self._programs.drain(boottime_ns()))

    def close(self) -> None:
        """Stop."""
        self._programs.close()


def file_found(library: Path, table: ProbeTable) -> FileFound:
    """Give a library as discovery would."""
    status = library.stat()
    with library.open("rb") as file:
        plan = plan_file(ElfFile.read(file), table, library.name)
    key = ((os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino)
    return FileFound(_FILE, key, str(library), plan, str(library), "", 0)


def main() -> None:
    """Probe until a line comes."""
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
        "periods": seen.periods,
        "records": seen.records,
        "user_share": (end.ru_utime - begin.ru_utime) / took_s,
        "system_share": (end.ru_stime - begin.ru_stime) / took_s,
    }
    probes.close()
    print(json.dumps(said), flush=True)


class Agent:
    """Such a process, started and read by the benchmark; use it as a context manager."""

    def __init__(self, library: Path, *, free: bool) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "bench.probes_agent", str(library), *["--free"] * free],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Agent:
        assert self._child.stdout is not None
        if self._child.stdout.readline() != "ready\n":
            raise RuntimeError("the benchmark's agent did not attach: see above")
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def end(self) -> dict[str, Any]:
        """Let it stop, and give what it saw."""
        said, _ = self._child.communicate("\n", timeout=60)
        answer: dict[str, Any] = json.loads(said)
        return answer


if __name__ == "__main__":
    main()
