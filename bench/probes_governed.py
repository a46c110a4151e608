"""A process that launches at a rate under the governor: how much slower it is, what was counted.

The process launches through a probed library and through a bare one in slices of milliseconds that
take turns: whatever the machine does besides, it does to both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.probes_agent import Agent
from bench.probes_target import Slices, Target, copy_library

RATES: Final = (1_000, 2_500, 5_000, 20_000, 50_000)
"""At 2,500 all probes can just stay attached: the dearest rate without windows."""

BURST_MS: Final = (300, 1_500)
"""Work and sleep in turns: a training step with its data loading, six to one."""

FREE_RATE: Final = 20_000
_SETTLED: Final = 2
"""Periods after which the governor knows the process."""


def governed(
    folder: Path, rate: float, seconds: float, burst_ms: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """Run a process under the governor. Returns shares of one."""
    with _target(folder) as target, Agent(_library(folder), free=False) as agent:
        target.begin_pace(0, 1, rate, seconds, burst_ms)
        slices = target.end_pace()
        seen = agent.end()
        records = estimated(seen, target.pid)
    return {
        "rate": _rate(slices),
        **_slowdown(slices, "overhead"),
        **_slowdown(_from(slices, seen["periods"]), "settled"),
        **count_error(slices, seen["periods"], records),
        "stall_ns": seen["stall_ns"],
        "cut_off": seen["cut_off"],
        "lost": seen["lost"],
    }


def free(folder: Path, seconds: float) -> dict[str, Any]:
    """Run a process at a rate without the governor: what the agent takes, and what it misses."""
    with _target(folder) as target, Agent(_library(folder), free=True) as agent:
        target.begin_pace(0, 1, FREE_RATE, seconds, (0, 0))
        slices = target.end_pace()
        seen = agent.end()
    launches = sum(one.launches for one in slices)
    return {
        "rate": _rate(slices),
        "launches": launches,
        "uncounted": launches - seen["launches"],
        "lost": seen["lost"],
        "user_share": seen["user_share"],
        "system_share": seen["system_share"],
        "resident_mib": seen["resident_mib"],
        **_slowdown(slices, "overhead"),
    }


def flat_out(folder: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Let a process launch as often as it can, without the governor."""
    with _target(folder) as target, Agent(_library(folder), free=True) as agent:
        launches = target.flat_out(0, threads, seconds)
        seen = agent.end()
    return {
        "rate": launches / seconds,
        "launches": launches,
        "uncounted": launches - seen["launches"],
        "lost": seen["lost"],
    }


def estimated(seen: Mapping[str, Any], pid: int) -> list[dict[str, Any]]:
    """Give what the agent's records say of a process."""
    return [record for record in seen["records"] if record["pid"] == pid]


def count_error(
    slices: Sequence[Slices],
    periods: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Compare what was counted and estimated with the truth, while the process launched.

    The interval is of all records together; where one of them knows none, there is none.
    """
    begin_ns, end_ns = slices[0].begin_ns, max(slices[-1].end_ns, slices[-1].bare_end_ns)
    inside = [
        one
        for one in periods
        if one["begin_ns"] >= begin_ns and one["begin_ns"] + one["length_ns"] <= end_ns
    ]
    watched = [one for one in inside if one["share"] > 0.0]
    span_ns = sum(one["length_ns"] for one in watched)
    found: dict[str, Any] = {
        "periods": len(inside),
        "watched_periods": len(watched),
        "duty": sum(one["share"] * one["length_ns"] for one in watched) / max(span_ns, 1),
        "period_s": span_ns / 1e9 / max(len(watched), 1),
    }
    told = [
        one
        for one in records
        if one["begin_ns"] >= begin_ns and one["begin_ns"] + one["span_ns"] <= end_ns
    ]
    truth = sum(launched(slices, one["begin_ns"], one["begin_ns"] + one["span_ns"]) for one in told)
    if truth > 0.0:
        found["count_error"] = sum(one["value"] for one in told) / truth - 1.0
        found["count_interval"] = sum(one["high"] - one["low"] for one in told) / 2.0 / truth
    return found


def _target(folder: Path) -> Target:
    return Target(folder, [_library(folder), copy_library(folder, "push", "bare").resolve()])


def _library(folder: Path) -> Path:
    path = folder / "governed" / "libcudart.so.12"
    return path if path.exists() else copy_library(folder, "push", "governed").resolve()


def _rate(slices: Sequence[Slices]) -> float:
    """Launches a second through the probed library, over the whole time."""
    span_ns = max(slices[-1].end_ns, slices[-1].bare_end_ns) - min(
        slices[0].begin_ns, slices[0].bare_begin_ns
    )
    return 1e9 * sum(one.launches for one in slices) / span_ns


def _from(slices: Sequence[Slices], periods: Sequence[Mapping[str, Any]]) -> list[Slices]:
    """Give what came after the governor had settled; all, where it never did."""
    if len(periods) <= _SETTLED:
        return list(slices)
    begin_ns = periods[_SETTLED]["begin_ns"]
    return [one for one in slices if min(one.begin_ns, one.bare_begin_ns) >= begin_ns] or list(
        slices
    )


def _slowdown(slices: Sequence[Slices], name: str) -> dict[str, float]:
    """Give what probes took of the process's time on the wall, and its 95 % interval.

    The interval is by blocks of about a second: what one window costs is one event. On a busy
    machine the process waits for a CPU: of the time that it has one, probes take a larger share.
    """
    values = np.array(slices, dtype=np.float64)
    excess = values[:, 3] - values[:, 7]
    own = values[:, 3].sum() + values[:, 7].sum()
    wall = max(values[-1, 1], values[-1, 5]) - min(values[0, 0], values[0, 4])
    blocks = np.array_split(excess, max(2, int(wall / 1e9)))
    sums = np.array([block.sum() for block in blocks])
    half = 1.96 * sqrt(len(sums) * float(sums.var(ddof=1)))
    return {
        name: float(excess.sum() / wall),
        f"{name}_interval": half / wall,
        f"{name}_of_cpu": float(excess.sum() / own),
        f"{name}_ns_a_launch": float(excess.sum() / values[:, 2].sum()),
    }


def launched(slices: Sequence[Slices], begin_ns: int, end_ns: int) -> float:
    """Count launches of a span; of slices at its edges their share."""
    total = 0.0
    for one in slices:
        inside = min(one.end_ns, end_ns) - max(one.begin_ns, begin_ns)
        if inside > 0:
            total += one.launches * inside / (one.end_ns - one.begin_ns)
    return total
