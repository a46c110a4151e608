"""What the library in GPU programs costs, beside a fake CUPTI: a record, and a launch while off.

Programs, CUPTI and driver are those of tests/fakes/cupti: only this project's code is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from collectors.gpu_time.segment import RecordingState
from scripts.gpu_time.listening import OFF, ON, Listening, listening
from tests.gpu_time_kit import Program, program
from tests.wait_kit import until

ROUNDS: Final = 9
RECORDS: Final = 1_000_000
PACE: Final = 2_000
"""Launches in 2 ms: more are lost where this machine has other work."""
OFF_ROUNDS: Final = 40
OFF_LAUNCHES: Final = 2_000_000
GOALS: Final = {"ns_per_record_aggregated": 100.0, "off_cost_ns_per_launch": 5.0}


def measure(kept: Parts) -> Measured:
    """Measure both; a minute."""
    records = kept.get("records", lambda: {str(n): _records(n) for n in (1, 4)})
    return Measured(figures({"records": records, "off": kept.get("off", _off)}))


def figures(found: Mapping[str, Any]) -> list[Figure]:
    """Give medians with their spread, and beside records what only reading them costs."""
    made = []
    for threads, rounds in found["records"].items():
        name = "ns_per_record_aggregated" + ("" if threads == "1" else f"_{threads}_threads")
        floor = statistics.median(rounds["floor"])
        made += _spread(name, rounds["library"], "CPU-ns", GOALS["ns_per_record_aggregated"], floor)
    pairs = found["off"]
    added = [on - without for on, without in zip(pairs["with"], pairs["without"], strict=True)]
    made += _spread("off_cost_ns_per_launch", added, "CPU-ns", GOALS["off_cost_ns_per_launch"])
    return made


def _spread(
    name: str,
    values: Sequence[float],
    unit: str,
    goal: float | None = None,
    floor: float | None = None,
) -> list[Figure]:
    low, middle, high = statistics.quantiles(values, n=4)
    return [
        Figure(name, middle, unit, goal, floor),
        Figure(f"{name}_quartiles", high - low, f"{unit} between quartiles"),
    ]


def _launch(agent: Listening, one: Program, launches: int, threads: int = 1) -> Mapping[str, int]:
    """Have so many launches made by so many threads, and all recorded; give what was written.

    Raises  RuntimeError where this machine was too busy to read all
    """
    for _ in range(5):
        agent.wait(one.pid, RecordingState.ON)
        before = agent.settled(one.pid).header
        one.ask(f"threaded varied {launches // threads} {threads} 1000 {PACE // threads}")
        after = agent.settled(one.pid).header
        grown = {name: after[name] - before[name] for name in ("records", "cpu_ns")}
        if grown["records"] == launches:
            return grown
    raise RuntimeError(f"expected {launches} records, the last of 5 tries had {grown['records']}")


def _records(threads: int) -> Part:
    """Time the library's own thread, by record; beside it a loop that only reads the records."""
    with listening() as agent:
        agent.plan(ON)
        with program(agent.path) as one:
            _launch(agent, one, 40_000, threads)
            library, floor = [], []
            for _ in range(ROUNDS):
                grown = _launch(agent, one, RECORDS, threads)
                library.append(grown["cpu_ns"] / RECORDS)
                floor.append(int(one.ask(f"floor x {RECORDS}").split()[1]) / RECORDS)
    return {"library": library, "floor": floor}


def _off() -> Part:
    """Time launches with the library, which has recorded before, and without, in turns."""
    with listening() as agent:
        agent.plan(ON)
        with program(agent.path) as injected, program(agent.path, "not injected") as bare:
            agent.wait(injected.pid, RecordingState.ON)
            agent.plan(OFF)
            until(lambda: agent.look(injected.pid).header["detaches"] == 1)
            times: dict[Program, list[float]] = {injected: [], bare: []}
            for turn in range(2 * OFF_ROUNDS):
                for one in (injected, bare)[:: -1 if turn % 2 else 1]:
                    process_ns = int(one.ask(f"timed gemm {OFF_LAUNCHES}").split()[2])
                    times[one].append(process_ns / OFF_LAUNCHES)
    return {"with": times[injected], "without": times[bare]}
