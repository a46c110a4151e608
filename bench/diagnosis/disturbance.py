"""What else the machine did during a run: stolen time, and CPU time that was not the bench's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import psutil

from bench.diagnosis.cgroups import PARENT, ROOT

_LOOKS: Final = 2
"""Seconds that are compared together."""
MOST_STEAL_CORES: Final = 0.15
MOST_OTHERS_CORES: Final = 0.3
MOST_CALM_CORES: Final = 0.05
"""Beside a run without a fault, the nice included: what competes more is a fault."""
MOST_AT_ONCE_CORES: Final = 0.4
"""Over two seconds, by others, the nice included."""
MOST_STOLEN_AT_ONCE_CORES: Final = 0.25


class Spent(NamedTuple):
    """CPU seconds spent until a moment; busy: neither waiting, idle nor nice."""

    at_s: float
    busy_s: float
    nice_s: float
    steal_s: float
    bench_s: float
    recorder_s: float

    @classmethod
    def now(cls) -> Spent:
        all_cpus = psutil.cpu_times()
        busy_s = all_cpus.user + all_cpus.system + all_cpus.irq + all_cpus.softirq
        usage = ROOT / "cpuacct" / PARENT / "cpuacct.usage"
        bench_s = int(usage.read_text()) / 1e9 if usage.exists() else 0.0
        spent = busy_s, all_cpus.nice, all_cpus.steal, bench_s, time.process_time()
        return cls(time.monotonic(), *spent)

    def cores_since(self, before: Spent) -> dict[str, float]:
        """Give the cores between an earlier moment and this one, by who used them."""
        elapsed_s, *spent_s = (now - then for now, then in zip(self, before, strict=True))
        busy, nice, steal, bench, recorder = (one / max(elapsed_s, 1e-3) for one in spent_s)
        others = max(0.0, busy - bench - recorder)
        return {
            "steal": steal, "bench": bench, "recorder": recorder, "others": others, "nice": nice,
        }  # fmt: skip


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
            self._worst_others = max(self._worst_others, cores["others"] + cores["nice"])
            self._worst_steal = max(self._worst_steal, cores["steal"])
        self._looks = [*self._looks, now][-_LOOKS:]

    def document(self) -> dict[str, float]:
        """In cores since the beginning: stolen, the bench, its recorder, others, the nice.

        `worst_others_cores` (the nice included) and `worst_steal_cores`: of any two seconds.
        """
        found = Spent.now().cores_since(self._began)
        found |= {"worst_others": self._worst_others, "worst_steal": self._worst_steal}
        return {f"{name}_cores": round(value, 4) for name, value in found.items()}


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
