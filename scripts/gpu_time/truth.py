"""Counts and times beside torch.profiler's, of the same steps, each in a process of its own."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from collectors.gpu_time.segment import RecordingState, RowKind
from scripts.gpu_probes import GRAPH, Loop

from .listening import OFF, ON, Listening, since

STEPS: Final = 200
ROUNDS: Final = 3
KERNELS: Final = (RowKind.KERNEL, RowKind.NODE)


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
    found = {
        "rounds": rounds,
        "profiler_counts_graphs": GRAPH in theirs,
        "time_error_percent": statistics.median(errors),
        "time_errors_percent": errors,
        "header": dict(header),
        "kernels": {
            name: list(total) for (kind, name), total in seen.items() if kind in KERNELS
        },
    }  # fmt: skip
    print(
        f"gpu-time: {injected.name}: {rounds[-1]['launches']} launches, profiler "
        f"{rounds[-1]['profiler_launches']}; GPU time off by {found['time_error_percent']:+.2f} % "
        f"({min(errors):+.2f} to {max(errors):+.2f})"
    )
    return found


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
    print(
        f"gpu-time: {loop.name}: on within {max(on):.3f} s, off within {max(off):.3f} s; CUPTI's "
        f"calls took {header['switch_on_ns'] / max(header['windows'], 1) / 1e6:.2f} ms on, "
        f"{header['switch_off_ns'] / max(header['windows'], 1) / 1e6:.2f} ms off, "
        f"{header['detach_ns'] / max(header['detaches'], 1) / 1e6:.2f} ms to leave "
        f"({header['detach_longest_ns'] / 1e6:.2f} at most); {header['bad_times']} had not ended, "
        f"{header['buffers_refused']} buffers refused"
    )
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
    print(
        f"gpu-time: {loop.name}: its own profiler saw {found['profiler_during']} launches while a "
        f"window was open, {found['profiler_between']} between windows; then the library's state "
        f"was {RecordingState(found['header_at_last']['state']).name}"
    )
    return found
