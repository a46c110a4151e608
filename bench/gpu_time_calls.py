"""What a probe adds to a launch through the driver's library, by place and by prober; as root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench import probes_calls
from bench.parts import Measured, Part, Parts
from bench.probes import missing
from bench.probes_target import build
from bench.record import CACHE, Figure

_MOVED_GOAL_NS: Final = 1_000.0
_NAMES: Final = {"driver": "entry", "driver_behind": "moved"}


def measure(kept: Parts) -> Measured:
    """Time calls of a library that has the driver's first instructions."""
    if reason := missing():
        raise SystemExit(f"bench-gpu-time: {reason}")
    folder = CACHE / "probes" / "build"
    build(folder)
    rounds = kept.scaled(probes_calls.ROUNDS, 3)
    calls = kept.get("calls", lambda: probes_calls.measure(folder, rounds, ("driver",)))
    return Measured(figures(calls))


def figures(calls: Mapping[str, Part]) -> list[Figure]:
    """What a probe adds to a call, at the entry and behind it, by who probes."""
    bare = calls["driver_none"]["1"]["median"]
    found = []
    for entry, name in _NAMES.items():
        for loader in ("libbpf", "bcc", "bpftrace"):
            if f"{entry}_{loader}" not in calls:
                continue  # bpftrace probes entries alone
            of = calls[f"{entry}_{loader}"]
            goal = _MOVED_GOAL_NS if (entry, loader) == ("driver_behind", "libbpf") else None
            suffix = "" if loader == "libbpf" else f"_{loader}"
            label = f"ns_per_launch_driver_{name}{suffix}"
            found.append(Figure(label, of["1"]["median"] - bare, "CPU-ns", goal))
            spread = of["1"]["high"] - of["1"]["low"]
            found.append(Figure(f"{label}_quartiles", spread, "CPU-ns between quartiles"))
            found.append(Figure(f"{label}_4_threads", of["4"]["median"] - bare, "CPU-ns"))
    returned = calls["driver_behind_libbpf_return"]["1"]["median"]
    found.append(Figure("ns_per_launch_driver_moved_with_return", returned - bare, "CPU-ns"))
    return found
