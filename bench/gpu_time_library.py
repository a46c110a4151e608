"""What the library in GPU programs costs, beside a fake CUPTI: records, switching, memory, and off.

Programs, CUPTI and driver are those of tests/fakes/cupti: only this project's code is timed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from collectors.gpu_time.listener import Listener, Reporter
from collectors.gpu_time.segment import RecordingState, SegmentUnsettled
from scripts.gpu_time.listening import OFF, ON, Listening, listening
from tests.gpu_time_kit import Program, program, until

SWITCHES: Final = 12
LEASE_MS: Final = 900
_LONG_MS: Final = 60_000
ROUNDS: Final = 9
RECORDS: Final = 1_000_000
PACE: Final = 2_000
"""Launches in 2 ms: more are lost where this machine has other work."""
OFF_ROUNDS: Final = 40
OFF_LAUNCHES: Final = 2_000_000
MANY: Final = 10_000_000
GOALS: Final = {
    "ns_per_record_aggregated": 100.0,
    "off_cost_ns_per_launch": 5.0,
    "switch_on_seconds": 1.0,
    "switch_off_seconds": 1.0,
    "memory_growth_mib_10m_records": 0.5,
}


class Switched:
    """A launching program, and the agent that asks it; times by cause, in seconds."""

    def __init__(self, path: Path, one: Program) -> None:
        self._path, self._listener = path, Listener(path)
        one.tell(f"threaded varied {1 << 40} 1 1000 200")
        self._reporter = self._met()
        self.times: dict[str, list[float]] = {}

    def asked(self, begin: str, end: str) -> None:
        """Ask for recording and for its end."""
        self._timed(begin, RecordingState.ON, lambda: self._reporter.lease(ON, _LONG_MS))
        self._ended(end, lambda: self._reporter.lease(OFF, _LONG_MS))

    def lapsed(self, end: str) -> None:
        """Ask for recording, and no more: from the last word of an agent that hangs."""
        self._reporter.lease(ON, LEASE_MS)
        self._until(RecordingState.ON)
        self._ended(end, lambda: self._reporter.lease(ON, LEASE_MS))

    def gone(self, end: str, begin: str) -> None:
        """End the agent while it records, and start another."""
        self._reporter.lease(ON, _LONG_MS)
        self._until(RecordingState.ON)
        self._ended(end, self._leave)
        self._timed(begin, RecordingState.ON, self._return)

    def close(self) -> None:
        """Let the program go."""
        self._reporter.close()
        self._listener.close()

    def _leave(self) -> None:
        self._reporter.hang_up()
        self._listener.close()

    def _return(self) -> None:
        self._reporter.segment.close()
        self._listener = Listener(self._path)
        self._reporter = self._met()
        self._reporter.lease(ON, _LONG_MS)

    def _met(self) -> Reporter:
        found: list[Reporter] = []

        def meet() -> bool:
            found.extend(self._listener.accept())
            return bool(found)

        until(meet)
        return found[0]

    def _timed(self, cause: str, state: RecordingState, change: Callable[[], object]) -> None:
        begun_s = time.monotonic()
        change()
        self._until(state)
        self.times.setdefault(cause, []).append(time.monotonic() - begun_s)

    def _ended(self, cause: str, change: Callable[[], object]) -> None:
        """Time an end of recording, and wait until CUPTI has left."""
        detaches = self._header("detaches")
        self._timed(cause, RecordingState.OFF, change)
        until(lambda: self._header("detaches") > detaches)

    def _until(self, state: RecordingState) -> None:
        until(lambda: self._header("state") == state)

    def _header(self, field: str) -> int:
        while True:
            with suppress(SegmentUnsettled):
                return self._reporter.segment.read().header[field]


def switching_times() -> dict[str, list[float]]:
    """Give seconds by cause: `on...` until it records, `off...` until it does not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu-time.sock"
        with program(path) as one:
            switched = Switched(path, one)
            for _ in range(SWITCHES):
                switched.asked("on_asked", "off_asked")
                switched.lapsed("off_lapsed")
                switched.gone("off_agent_gone", "on_agent_back")
            switched.close()
    return switched.times


def measure(kept: Parts) -> Measured:
    """Measure all; a minute and a half."""
    found = {
        "records": kept.get("records", lambda: {str(n): _records(n) for n in (1, 4)}),
        "off": kept.get("off", _off),
        "switching": kept.get("switching", switching_times),
        "memory": kept.get("memory", _memory),
    }
    return Measured(figures(found))


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
    switching = found["switching"]
    for way in ("on", "off"):
        causes = {name: times for name, times in switching.items() if name.startswith(f"{way}_")}
        worst, name = max(max(times) for times in causes.values()), f"switch_{way}_seconds"
        made.append(Figure(name, worst, "s, longest", GOALS[name]))
    memory = found["memory"]
    name = "memory_growth_mib_10m_records"
    made.append(Figure(name, memory["growth_mib"], "MiB", GOALS[name]))
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


def _memory() -> Part:
    """Record ten million launches; give what a program grew by, and by its first million."""
    with listening() as agent, program(agent.path) as one:
        agent.wait(one.pid)
        before = _resident_mib(one)
        agent.plan(ON)
        _launch(agent, one, RECORDS)
        first = _resident_mib(one)
        for _ in range(MANY // RECORDS):
            _launch(agent, one, RECORDS)
        return {"first_mib": first - before, "growth_mib": _resident_mib(one) - first}


def _resident_mib(one: Program) -> float:
    text = Path(f"/proc/{one.pid}/status").read_text(encoding="utf-8")
    return next(int(at.split()[1]) for at in text.splitlines() if at.startswith("VmRSS:")) / 1024
