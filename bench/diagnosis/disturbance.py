"""What else the machine did during a run: stolen time, and CPU time that was not the bench's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.diagnosis.cgroups import PARENT, ROOT

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MOST_STEAL_CORES: Final = 0.15
MOST_OTHERS_CORES: Final = 0.3
MOST_CALM_CORES: Final = 0.05
"""Beside a run without a fault, the nice included: what competes more is a fault."""


class Disturbance:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy_s, self._nice_s, self._steal_s = _machine_s()
        self._ours_s, self._own_s = _bench_s(), time.process_time()

    def document(self) -> dict[str, float]:
        """In cores since the beginning: stolen, the bench, its recorder, others, the nice."""
        elapsed_s = max(time.monotonic() - self._began, 1e-3)
        busy_s, nice_s, steal_s = _machine_s()
        ours_s = _bench_s() - self._ours_s
        own_s = time.process_time() - self._own_s
        others_s = busy_s - self._busy_s - ours_s - own_s
        return {
            "steal_cores": round((steal_s - self._steal_s) / elapsed_s, 4),
            "bench_cores": round(ours_s / elapsed_s, 4),
            "recorder_cores": round(own_s / elapsed_s, 4),
            "others_cores": round(max(0.0, others_s) / elapsed_s, 4),
            "nice_cores": round((nice_s - self._nice_s) / elapsed_s, 4),
        }


def too_much(found: Mapping[str, float], *, calm: bool = False) -> str:
    """Say what disturbed a run more than may be, or nothing.

    A fault is one cause only where the machine was otherwise at rest, and a run is without a fault
    only where nobody else takes the CPUs. What the host's disk and hypervisor do stays in it.

    calm    the run is to be without a fault
    """
    most_others = MOST_CALM_CORES if calm else MOST_OTHERS_CORES
    limits = {"steal_cores": MOST_STEAL_CORES, "others_cores": most_others}
    if calm:
        limits["nice_cores"] = MOST_CALM_CORES
    for name, most in limits.items():
        if found.get(name, 0.0) > most:
            return f"{name} {found[name]:.2f}, at most {most:g}"
    return ""


def _machine_s() -> tuple[float, float, float]:
    """Return (busy, nice, stolen) seconds of all CPUs; busy: neither waiting, idle nor nice."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    busy = user + system + irq + softirq
    return busy / _TICKS_PER_S, nice / _TICKS_PER_S, steal / _TICKS_PER_S


def _bench_s() -> float:
    usage = ROOT / "cpuacct" / PARENT / "cpuacct.usage"
    return int(usage.read_text()) / 1e9 if usage.exists() else 0.0
