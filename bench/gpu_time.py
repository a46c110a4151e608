"""`make bench-gpu-time`: what counting launches through the driver's library costs.

As root: kernel programs, and bpftrace beside them in the same run. The called library has the
driver's first instructions; each part is kept in bench/.cache under the commit it measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from bench import probes_calls
from bench.parts import Part, Parts
from bench.probes import missing
from bench.probes_target import build
from bench.record import CACHE, Figure, commit, write_result

COMMAND: Final = "make bench-gpu-time"
_MOVED_GOAL_NS: Final = 1_000.0
_NAMES: Final = {"driver": "entry", "driver_behind": "moved"}


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


def main() -> int:
    """Measure what is missing, then write bench/results/gpu_time.json."""
    parser = argparse.ArgumentParser(prog="bench.gpu_time", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    reason = missing()
    options = parser.parse_args()
    if reason:
        print(f"bench-gpu-time: {reason}", file=sys.stderr)
        return 1
    parts = Parts(CACHE / "gpu_time" / commit()[:12], options.fresh)
    folder = CACHE / "probes" / "build"
    build(folder)
    measure = partial(probes_calls.measure, folder, probes_calls.ROUNDS, ("driver",))
    found = figures(parts.get("calls", measure))
    for figure in found:
        goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
        print(f"  {figure.name:48} {figure.value:12.1f} {figure.unit}{goal}")
    print(f"wrote {write_result('gpu_time', COMMAND, found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
