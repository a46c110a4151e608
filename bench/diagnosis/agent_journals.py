"""Journals of live agents: real faults, each met by an agent of its own under a demo identity.

python -m bench.diagnosis.agent_journals     as root; about a minute a fault

The agents are the production ones with their eBPF sources, as users without root, all on this
machine; a demo identity each, because a machine has but one that counts. What an agent wrote down
is kept as it is, without the pictures; a fleet that lives through it is in tests/diagnosis/causes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.agent_host import AgentHost, make_host, running
from bench.diagnosis.cgroups import PARENT
from bench.diagnosis.faults.registry import INJECTORS
from bench.diagnosis.impact import Impact, impact
from bench.diagnosis.leftovers import only_bench
from bench.diagnosis.plan import MIDDLE, Run
from bench.diagnosis.recording import Injection, RunRefusedError, Schedule
from bench.diagnosis.sitting import Stage, Turns
from bench.diagnosis.workload import STEP_LOOP, Workload
from bench.record import ROOT
from collectors.boot_clock import boottime_ns
from edge_agent.journal import read_lines
from edge_agent.windows.window_state import DurableAccumulators

JOURNALS: Final = ROOT / "bench" / "journals"
FAULTS: Final = (
    "low_quota", "stress_cpu", "low_limit", "stress_hdd", "bulk_streams", "low_rate", "slow_peer",
    "slow_store", "process_stops",
)  # fmt: skip
"""One of each cause that needs no GPU, and one that no class knows."""

WEEK_S: Final = 604_800
_ROOM_S: Final = 3.0
_WARM_UP_S: Final = 12.0
_PREFIX: Final = "pointillist-agents-"


def record_journal(run: Run, works: Sequence[Workload], folder: Path) -> dict[str, Any]:
    """Let an agent meet one fault; returns facts, the journal's lines and what it would report.

    Raises      RunRefusedError where the fault shows no effect or the workload fell
    """
    work = works[0]
    host = make_host(folder, ebpf=True, gpus=False, demo=True, more=_watching(work))
    injections = [
        Injection(INJECTORS[name](work, run.intensity, run.seed)) for name in run.injectors
    ]
    with running(host):
        began_ns = boottime_ns()
        for injection in injections:
            injection.fault.watch()
        schedule = Schedule(run, injections)
        schedule.start()
        try:
            time.sleep(run.seconds + _ROOM_S)
        finally:
            schedule.cut()
            work.rest()
    if schedule.error is not None:
        raise RunRefusedError(f"the injector failed: {schedule.error}")
    work.check()
    if not all(injection.effect.get("shown") for injection in injections):
        raise RunRefusedError(f"no effect: {[injection.effect for injection in injections]}")
    found = _impact(work, injections, began_ns)
    return {
        "injector": run.injectors[0],
        "cause": run.causes[0],
        "ratio": round(found.ratio, 2),
        "passed": found.passed,
        "weekly": counted(host),
        "lines": told(host),
    }


def told(host: AgentHost) -> list[bytes]:
    """The journal's lines, without the pictures."""
    lines = list(read_lines(host.folder / "state" / "diagnoses.jsonl"))
    return [line for line in lines if json.loads(line)["kind"] != "series"]


def counted(host: AgentHost) -> list[str]:
    """Causes in the week that the agent has open: what it would report, before noise and mask."""
    window = int(time.time()) // WEEK_S * WEEK_S
    state = DurableAccumulators(host.folder / "state" / "open-windows.sqlite").load("week", window)
    return [] if state is None else sorted(state.cells.get("incidents", {}))


def _watching(work: Workload) -> str:
    return f"""
[diagnosis]
watch = ["/{PARENT}/job*"]
[[diagnosis.steps]]
path = "{work.library}"
symbol = "{work.symbol}"
returns = {str(work.returns).lower()}
"""


def _impact(work: Workload, injections: Sequence[Injection], began_ns: int) -> Impact:
    start = min(one.start_ns for one in injections)
    end = max(one.end_ns for one in injections)
    return impact(work.log.between(began_ns, start), work.log.between(start, end))


def main(words: list[str]) -> int:
    """Record what is asked for; a journal whose fault had no impact is not kept."""
    parser = argparse.ArgumentParser(prog="bench.diagnosis.agent_journals", description=__doc__)
    parser.add_argument("--folder", type=Path, default=JOURNALS)
    parser.add_argument("--only", nargs="*", default=FAULTS, choices=INJECTORS)
    parser.add_argument("--intensity", type=int, default=MIDDLE, choices=(0, 1, 2))
    parser.add_argument("--lock", type=Path, help="file to lock while agents look on")
    parser.add_argument("--wait-s", type=float, default=0.0, help="for another bench to end")
    given = parser.parse_args(words)
    if os.geteuid() != 0:
        print("Live agents with faults need root: cgroups, namespaces, eBPF.", file=sys.stderr)
        return 1
    given.folder.mkdir(parents=True, exist_ok=True)
    with only_bench(given.wait_s), tempfile.TemporaryDirectory(prefix=_PREFIX) as base:
        Path(base).chmod(0o755)  # the agents' own users go through it
        stage, turns = Stage(_WARM_UP_S), Turns(given.lock, len(given.only))
        try:
            for number, fault in enumerate(given.only):
                run = Run(
                    STEP_LOOP, (fault,), given.intensity, number + 1, fault_s=20.0, after_s=8.0
                )
                _attempt(run, stage, turns, Path(base) / f"agent{number}", given.folder)
        finally:
            turns.end()
            stage.clear()
    return 0


def _attempt(run: Run, stage: Stage, turns: Turns, folder: Path, journals: Path) -> None:
    try:
        works = stage.set(run)
        turns.take()
        facts = record_journal(run, works, folder)
    except (RunRefusedError, RuntimeError, AssertionError) as error:
        stage.clear()
        print(f"{run.name}: refused: {error}")
        return
    lines = facts.pop("lines")
    print(f"{run.name}: {facts}, {len(lines)} lines")
    if facts["passed"] and lines:
        path = journals / f"{facts['cause']}.{facts['injector']}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
