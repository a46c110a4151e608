"""What else the machine did during a run: stolen time, and CPU time that was not the bench's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.diagnosis.cgroups import PARENT, ROOT

_LOOKS: Final = 2
"""Seconds that are compared together."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MOST_STEAL_CORES: Final = 0.15
MOST_OTHERS_CORES: Final = 0.3
MOST_CALM_CORES: Final = 0.05
"""Beside a run without a fault, the nice included: what competes more is a fault."""
MOST_AT_ONCE_CORES: Final = 0.4
"""Over two seconds, by others, the nice included."""
MOST_STOLEN_AT_ONCE_CORES: Final = 0.25


class Disturbance:
    """Measures from its making on; two seconds at once from its first look on."""

    def __init__(self) -> None:
        self._began = Spent.now()
        self._looks: list[Spent] = []
        self._worst_others = self._worst_steal = 0.0

    def look(self) -> None:
        """Look once a second: two of them together are compared with the limits."""
        now = Spent.now()
        if len(self._looks) == _LOOKS:
            cores = now.cores_since(self._looks[0])
            self._worst_others = max(self._worst_others, cores.others + cores.nice)
            self._worst_steal = max(self._worst_steal, cores.steal)
        self._looks = [*self._looks, now][-_LOOKS:]

    def document(self) -> dict[str, float]:
        """In cores since the beginning: stolen, the bench, its recorder, others, the nice.

        `worst_others_cores` (the nice included) and `worst_steal_cores`: of any two seconds.
        """
        cores = Spent.now().cores_since(self._began)
        found = {
            "steal_cores": cores.steal,
            "bench_cores": cores.bench,
            "recorder_cores": cores.recorder,
            "others_cores": cores.others,
            "nice_cores": cores.nice,
            "worst_others_cores": self._worst_others,
            "worst_steal_cores": self._worst_steal,
        }
        return {name: round(value, 4) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Cores:
    """Who used how many cores over some time."""

    steal: float
    bench: float
    recorder: float
    others: float
    nice: float


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds spent until a moment; busy: neither waiting, idle nor nice."""

    at_s: float
    busy_s: float
    nice_s: float
    steal_s: float
    bench_s: float
    recorder_s: float

    @classmethod
    def now(cls) -> Spent:
        """Look."""
        return cls(time.monotonic(), *_machine_s(), _bench_s(), time.process_time())

    def cores_since(self, before: Spent) -> Cores:
        """Give the cores between an earlier moment and this one."""
        elapsed_s = max(self.at_s - before.at_s, 1e-3)
        bench = (self.bench_s - before.bench_s) / elapsed_s
        recorder = (self.recorder_s - before.recorder_s) / elapsed_s
        busy = (self.busy_s - before.busy_s) / elapsed_s
        return Cores(
            steal=(self.steal_s - before.steal_s) / elapsed_s,
            bench=bench,
            recorder=recorder,
            others=max(0.0, busy - bench - recorder),
            nice=(self.nice_s - before.nice_s) / elapsed_s,
        )


def too_much(found: Mapping[str, float], *, calm: bool = False) -> str:
    """Say what disturbed a run more than may be, or nothing.

    A fault is one cause only where the machine was otherwise at rest, and a run is without a fault
    only where nobody else takes the CPUs. What the host's disk and hypervisor do to a run without
    a fault stays in it. Threads of the kernel count as others.

    calm    the run is to be without a fault
    """
    others = found["others_cores"] + (found["nice_cores"] if calm else 0.0)
    seen = [("others", others, MOST_CALM_CORES if calm else MOST_OTHERS_CORES)]
    seen.append(("others at once", found["worst_others_cores"], MOST_AT_ONCE_CORES))
    if not calm:
        seen.append(("the hypervisor", found["steal_cores"], MOST_STEAL_CORES))
        at_once = found["worst_steal_cores"]
        seen.append(("the hypervisor at once", at_once, MOST_STOLEN_AT_ONCE_CORES))
    return next(
        (f"{who} took {n:.2f} cores, at most {most:g}" for who, n, most in seen if n > most), ""
    )


def _machine_s() -> tuple[float, float, float]:
    """Return (busy, nice, stolen) seconds of all CPUs; busy: neither waiting, idle nor nice."""
    fields = [
        int(ticks)
        for ticks in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    ]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    busy = user + system + irq + softirq
    return busy / _TICKS_PER_S, nice / _TICKS_PER_S, steal / _TICKS_PER_S


def _bench_s() -> float:
    usage = ROOT / "cpuacct" / PARENT / "cpuacct.usage"
    return int(usage.read_text()) / 1e9 if usage.exists() else 0.0
