"""What the library costs a loop, its counts beside torch.profiler, and the agent's own source."""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from collectors.boot_clock import boottime_ns
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_time.gpu_time_source import GpuTimeSection, GpuTimeSource
from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.segment import RecordingState, RowKind
from collectors.gpu_time.window_estimates import Budget
from collectors.records.activity import KernelActivity
from scripts.gpu_probes import GRAPH, Loop

from .listening import OFF, ON, Listening, injected, since

BLOCK_S: Final = 0.015
BUDGET: Final = 0.005
STEPS: Final = 200
ROUNDS: Final = 3
KERNELS: Final = (RowKind.KERNEL, RowKind.NODE)
RUN_S: Final = 8.0
BURST_LAUNCHES: Final = 600_000
AFTER_S: Final = 7.0
"""Longer than a period of the budget's."""
MEMORY_LAUNCHES: Final = 10_000_000


def costs(agent: Listening, bare: Loop, injected: Loop, pairs: int) -> dict[str, Any]:
    """Time both in turns: before anything was recorded, recording all, by the budget, and after."""
    steps = max(1, round(BLOCK_S / (bare.steps(200) / 200)))
    injected.steps(steps)
    found: dict[str, Any] = {"steps_per_block": steps, "pairs": pairs}
    found["before"] = _mode(agent, bare, injected, steps, OFF, pairs // 2)
    found["recording_all"] = _mode(agent, bare, injected, steps, ON, pairs // 10)
    plan = Budget(BUDGET).follow(agent.look(injected.pid))
    found["governed_plan"] = [plan.on_ms, plan.period_ms, plan.most]
    found["governed"] = _mode(agent, bare, injected, steps, plan, pairs)
    found["after"] = _mode(agent, bare, injected, steps, OFF, pairs // 2)
    return found


def _mode(
    agent: Listening, bare: Loop, injected: Loop, steps: int, plan: WindowPlan, pairs: int
) -> dict[str, Any]:
    agent.plan(plan)
    time.sleep(0.5)
    before = agent.look(injected.pid).header
    times: dict[Loop, list[float]] = {bare: [], injected: []}
    for _ in range(pairs):
        for loop in random.sample((bare, injected), 2):
            times[loop].append(loop.steps(steps))
    header = agent.look(injected.pid).header
    without, with_library = times[bare], times[injected]
    return {
        "mean_percent": _percent(without, with_library),
        "interval_percent": _interval(without, with_library),
        "median_percent": 100 * (statistics.median(with_library) / statistics.median(without) - 1),
        "us_per_step": 1e6 * statistics.median(without) / steps,
        "records": header["records"] - before["records"],
        "header": dict(header),
    }


def _percent(without: list[float], with_library: list[float]) -> float:
    return 100 * (sum(with_library) / sum(without) - 1)


def _interval(without: list[float], with_library: list[float], groups: int = 20) -> float:
    """Half of the 95 % interval, from the spread of groups of neighbouring pairs."""
    size = max(1, len(without) // groups)
    values = [
        _percent(without[at : at + size], with_library[at : at + size])
        for at in range(0, size * (len(without) // size), size)
    ]
    return float(2.09 * statistics.stdev(values) / len(values) ** 0.5)


def truth(agent: Listening, bare: Loop, injected: Loop) -> dict[str, Any]:
    """Record everything for some rounds; give both sides' launches and nanoseconds of each."""
    agent.plan(ON)
    agent.wait(injected.pid, RecordingState.ON)
    injected.steps(STEPS // 10)
    rounds = []
    for _ in range(ROUNDS):
        before = agent.settled(injected.pid)
        injected.steps(STEPS)
        seen = since(before, agent.settled(injected.pid))
        ours = [total for (kind, _), total in seen.items() if kind in KERNELS]
        theirs = bare.times(STEPS)
        rounds.append(
            {
                "launches": sum(total.launches for total in ours),
                "ns": sum(total.ns for total in ours),
                "profiler_launches": sum(count for count, _ in theirs.values()),
                "profiler_ns": sum(ns for _, ns in theirs.values()),
            }
        )
    errors = [100 * (one["ns"] / one["profiler_ns"] - 1) for one in rounds]
    header = agent.look(injected.pid).header
    return {
        "rounds": rounds,
        "profiler_counts_graphs": GRAPH in theirs,
        "time_error_percent": statistics.median(errors),
        "time_errors_percent": errors,
        "header": dict(header),
        "kernels": {
            name: list(total) for (kind, name), total in seen.items() if kind in KERNELS
        },
    }  # fmt: skip


def switching(agent: Listening, loop: Loop, times: int = 8) -> dict[str, Any]:
    """Switch recording on and off on the live loop; give the seconds until it did."""
    on, off = [], []
    for _ in range(times):
        agent.plan(ON)
        on.append(agent.wait(loop.pid, RecordingState.ON))
        loop.steps(20)
        agent.plan(OFF)
        off.append(agent.wait(loop.pid, RecordingState.OFF))
        loop.steps(20)
    header = agent.look(loop.pid).header
    return {"on_s": on, "off_s": off, "header": dict(header)}


def beside_profiler(agent: Listening, loop: Loop) -> dict[str, Any]:
    """Let the program use torch.profiler while a window is open, and between: who loses what?"""
    found: dict[str, Any] = {}
    for when, plan in (("during", ON), ("between", OFF)):
        agent.plan(plan)
        agent.wait(loop.pid, RecordingState.ON if plan is ON else RecordingState.OFF)
        loop.steps(STEPS)
        agent.settled(loop.pid)
        found[f"profiler_{when}"] = sum(count for count, _ in loop.times(STEPS).values())
        found[f"header_{when}"] = dict(agent.look(loop.pid).header)
    agent.plan(ON)
    time.sleep(1)
    loop.steps(STEPS)
    found["header_at_last"] = dict(agent.settled(loop.pid).header)
    return found


class Followed:
    def __init__(self, socket: Path) -> None:
        section = GpuTimeSection(enabled=True, socket=socket)
        self.source = GpuTimeSource(section, 1, GpuUsers())
        self.source.start()
        self.records: list[KernelActivity] = []

    def close(self) -> None:
        self.source.stop()

    def drain(self) -> None:
        drained = self.source.drain(boottime_ns())
        self.records += [record for record in drained if isinstance(record, KernelActivity)]

    def follow(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(1)
            self.drain()


def governed(name: str, command: list[str], asked: str) -> dict[str, Any]:
    """Let a loop work for a while under the default budget, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "gpu-time.sock"
        followed = Followed(socket)
        with Loop(name, command, injected(socket)) as loop, closing(followed):
            followed.follow(2)
            followed.records.clear()
            launched = _work(loop, followed, asked)
            launched += _afterwards(loop, followed)
    records = followed.records
    estimate = sum(work.count * 1e6 / work.sampling_rate_millionths for work in records)
    recorded = sum(work.count for work in records)
    timed = sum(work.gpu_time_ns or 0 for work in records)
    return {
        "launched": launched, "estimated": estimate, "recorded": recorded, "recorded_ns": timed,
        "drains": len(records), "records": [asdict(work) for work in records[:40]],
    }  # fmt: skip


def _afterwards(loop: Loop, followed: Followed) -> int:
    """Go on a little, as programs do: the next window tells how many launches came before it."""
    steps = 0
    end_s = time.monotonic() + AFTER_S
    while time.monotonic() < end_s:
        loop.steps(20)
        steps += 20
        time.sleep(0.005)
        if steps % 1_000 == 0:
            followed.drain()
    followed.follow(1)
    return steps


def _work(loop: Loop, followed: Followed, asked: str) -> int:
    """Have launches made, draining meanwhile; give their number."""
    steps = BURST_LAUNCHES
    if asked == "steps":
        steps = max(1, round(RUN_S / (loop.steps(200) / 200)))
        followed.follow(3)
    followed.records.clear()
    loop.tell(f"{asked} {steps}")
    while not loop.answered():
        time.sleep(1)
        followed.drain()
    return steps


def memory(command: list[str], agent: Listening, launches: int = MEMORY_LAUNCHES) -> dict[str, Any]:
    """Launch millions with everything recorded; give the growth of host and device memory."""
    with Loop("launches", command, agent.environment) as loop:
        agent.plan(ON)
        agent.wait(loop.pid)
        loop.steps(200_000)
        process = psutil.Process(loop.pid)
        before = process.memory_info().rss, _device_bytes()
        begun_s = time.monotonic()
        loop.steps(launches)
        seconds = time.monotonic() - begun_s
        after = process.memory_info().rss, _device_bytes()
        header = agent.settled(loop.pid).header
    agent.plan(OFF)
    return {
        "launches": launches, "seconds": seconds, "host_mib": (after[0] - before[0]) / 2**20,
        "device_mib": (after[1] - before[1]) / 2**20, "header": dict(header),
    }  # fmt: skip


def _device_bytes() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    ran = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
    return int(ran.stdout.split()[0]) << 20
