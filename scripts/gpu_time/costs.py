"""What the library costs a loop: blocks of 15 ms with and without it, in turns, on one CPU."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any, Final

from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.time_budget import Budget
from scripts.gpu_probes import Loop

from .listening import OFF, ON, Listening

BLOCK_S: Final = 0.015
BUDGET: Final = 0.005


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
    result = {
        "mean_percent": _percent(without, with_library),
        "interval_percent": _interval(without, with_library),
        "median_percent": 100 * (statistics.median(with_library) / statistics.median(without) - 1),
        "us_per_step": 1e6 * statistics.median(without) / steps,
        "records": header["records"] - before["records"],
        "header": dict(header),
    }
    print(
        f"gpu-time: {injected.name}: plan {plan.on_ms} of {plan.period_ms} ms: "
        f"slower by {result['mean_percent']:.2f} "
        f"+- {result['interval_percent']:.2f} % (median {result['median_percent']:.2f} %), "
        f"{result['us_per_step']:.1f} us a step, {result['records']} records"
    )
    return result


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
