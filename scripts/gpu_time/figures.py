"""Turn what `python3 -m scripts.gpu_time` wrote into bench/results/gpu.json.

    python3 -m scripts.gpu_time.figures FOLDER/gpu_time.json [MORE...]

A machine is lent for minutes: parts may come from several runs, the last file that has one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.record import Figure, write_result

DEVICE: Final = "NVIDIA H100 80GB HBM3, driver 580.159.04, CUPTI 13.0, 16 vCPUs of a shared host"
_COSTS: Final = {"launches": ("launch_bound", 0.5), "training": ("training", 0.1)}
TIME_ERROR_GOAL: Final = 1.0
"""Percent of the profiler's GPU time."""
_RAW: Final = frozenset({"header", "records", "kernels", "rounds"})
"""What is too long for a result file."""


def figures(parts: Mapping[str, Any]) -> Iterator[Figure]:
    """Give the figures of the parts that were run."""
    for part, (name, goal) in _COSTS.items():
        costs = parts.get(part, {}).get("costs")
        if costs:
            governed, everything = costs["governed"], costs["recording_all"]
            yield Figure(f"slowdown_percent_{name}", governed["mean_percent"], "%", goal)
            yield Figure(f"slowdown_interval_{name}", governed["interval_percent"], "+- %")
            yield Figure(f"slowdown_median_{name}", governed["median_percent"], "%")
            yield Figure(f"slowdown_recording_all_{name}", everything["mean_percent"], "%")
    idle = parts.get("attached_for_ever", {}).get("after")
    if idle:  # of a library that stayed: why this one leaves
        yield Figure("slowdown_percent_attached_idle", idle["mean_percent"], "%")
        yield Figure("slowdown_interval_attached_idle", idle["interval_percent"], "+- %")
    truths = {part: of["truth"] for part, of in parts.items() if "truth" in of}
    if truths:
        errors = {part: abs(of["time_error_percent"]) for part, of in truths.items()}
        yield Figure("kernel_time_error_percent", max(errors.values()), "%", TIME_ERROR_GOAL)
        for part, error in errors.items():
            yield Figure(f"kernel_time_error_percent_{part}", error, "%", TIME_ERROR_GOAL)
    if "memory" in parts:
        grown = parts["memory"]["host_mib"] + parts["memory"]["device_mib"]
        yield Figure("memory_growth_mib_10m_launches", grown, "MiB")
    for part, run in parts.get("governed", {}).items():
        error = 100 * (run["estimated"] / run["launched"] - 1)
        yield Figure(f"launch_count_error_percent_{part}", error, "%")
    for part, of in parts.items():
        if "switching" in of:
            header = of["switching"]["header"]
            yield Figure(f"switch_on_seconds_{part}", max(of["switching"]["on_s"]), "s", 1.0)
            yield Figure(f"switch_off_seconds_{part}", max(of["switching"]["off_s"]), "s", 1.0)
            yield Figure(f"leave_ms_{part}", header["detach_longest_ns"] / 1e6, "ms")


def differences(parts: Mapping[str, Any]) -> Iterator[str]:
    """Name what is not as the profiler has it: counts of launches, and times above the goal."""
    for part, of in parts.items():
        truth = of.get("truth")
        if truth is None:
            continue
        if not truth["profiler_counts_graphs"]:
            for number, counted in enumerate(truth["rounds"], 1):
                if counted["launches"] != counted["profiler_launches"]:
                    yield (
                        f"{part}, round {number}: {counted['launches']} launches, "
                        f"the profiler has {counted['profiler_launches']}"
                    )
        if abs(truth["time_error_percent"]) > TIME_ERROR_GOAL:
            yield f"{part}: GPU time {truth['time_error_percent']:+.2f} % off the profiler's"


def shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items() if key not in _RAW}
    return value


def main() -> int:
    parts: dict[str, Any] = {}
    for name in sys.argv[1:]:
        parts |= json.loads(Path(name).read_text(encoding="utf-8"))
    found = list(figures(parts))
    for figure in found:
        print(f"{figure.name:44} {figure.value:10.3f} {figure.unit}")
    path = write_result("gpu", "make gpu-check", found, DEVICE, {"parts": shortened(parts)})
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
