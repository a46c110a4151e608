"""`make bench-agent`: what one agent costs its host, beside node_exporter and beside a workload.

The agent is the real one in a process of its own, with every source this machine has, the shipped
plan's tasks, noise, ledger, local history and the embedded log. Every part is kept in bench/.cache
as soon as it is done: a run that was cut off goes on with the parts that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.agent_figures import figures
from bench.agent_parts import PAIRS, Numbers, eight_gpus, pairs, sampler, steady
from bench.record import CACHE, commit, device, write_result

COMMAND: Final = "make bench-agent"
SECONDS: Final = 600.0
_GPU_SHARE: Final = 0.2
FOLDER: Final = CACHE / "agent"
PARTS: Final = {"sampler": sampler, "steady": steady, "gpus": eight_gpus}
"""Each takes seconds and who is told how far it is."""


class Checkpoints:
    """Parts that are done, each a file; those of another commit or length are thrown away."""

    def __init__(self, seconds: float, folder: Path = FOLDER) -> None:
        self._folder = folder
        key = {"commit": commit(), "seconds": seconds}
        stamp = folder / "run.json"
        if not stamp.exists() or json.loads(stamp.read_text()) != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.keep("run", key)

    def read(self, name: str) -> Any:
        """Give a part, or None."""
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def keep(self, name: str, part: object) -> None:
        """Write a part as a whole."""
        path = self._folder / f"{name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(part))
        partial.replace(path)

    def part(self, name: str, make: Callable[[], Numbers]) -> Numbers:
        """Give a part, measured where it is missing; the load average of its time beside it."""
        found: Numbers | None = self.read(name)
        if found is None:
            found = make() | {"load": os.getloadavg()[0]}
            self.keep(name, found)
        return found


def say(text: str) -> None:
    """Show how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    """Measure, print, write bench/results/agent.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the long part")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of runs without and with it")
    parser.add_argument("--output", type=Path, help="print figures here, and write no result")
    parser.add_argument(
        "--only", choices=PARTS, help="measure one part, print its numbers, and write nothing"
    )
    asked = parser.parse_args()
    if os.geteuid() != 0:
        print("expected root: the agent is measured with eBPF, as it runs in production")
        return 1
    # Ended or interrupted, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if asked.only is not None:
        print(json.dumps(PARTS[asked.only](asked.seconds, say), indent=1))
        return 0
    kept = Checkpoints(asked.seconds)
    parts = {
        "sampler": kept.part("sampler", lambda: sampler(0, say)),
        "steady": kept.part("steady", lambda: steady(asked.seconds, say)),
        "gpus": kept.part("gpus", lambda: eight_gpus(max(asked.seconds * _GPU_SHARE, 20), say)),
    }
    both = pairs(kept.read("pairs") or [], lambda done: kept.keep("pairs", done), say, asked.pairs)
    result = figures(parts, both)
    for one in result:
        goal = "" if one.goal is None else f"  (goal {one.goal:g})"
        print(f"{one.name:44} {one.value:12.3f} {one.unit}{goal}")
    if asked.output is not None:
        asked.output.write_text(json.dumps({one.name: one.value for one in result}))
        return 0
    load = statistics.mean([part["load"] for part in parts.values()])
    how = f"load average {load:.1f} during the run, {asked.seconds:g} s, {asked.pairs} pairs"
    where = f"{device()}; {how}"
    write_result("agent", COMMAND, result, where)
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
