"""What else the machine did during a run: stolen time, and CPU time that was not the bench's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from bench.diagnosis.cgroups import PARENT, ROOT

_LOOKS: Final = 2
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MOST_STEAL_CORES: Final = 0.15
MOST_OTHERS_CORES: Final = 0.3
MOST_CALM_CORES: Final = 0.05
"""Beside a run without a fault, the nice included: what competes more is a fault."""
MOST_AT_ONCE_CORES: Final = 0.4
"""Over two seconds, by others, the nice included."""
MOST_STOLEN_AT_ONCE_CORES: Final = 0.25


class Disturbance:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._began = _Spent.now()
        self._looks = [self._began]
        self._worst_others = self._worst_steal = 0.0

    def look(self) -> None:
        """Look once a second: two of them together are compared with the limits."""
        now = _Spent.now()
        since = now.since(self._looks[0])
        if len(self._looks) == _LOOKS:
            self._worst_others = max(self._worst_others, since.others_s + since.nice_s)
            self._worst_steal = max(self._worst_steal, since.steal_s)
        self._looks = [*self._looks, now][-_LOOKS:]

    def document(self) -> dict[str, float]:
        """In cores since the beginning: stolen, the bench, its recorder, others, the nice.

        `worst_others_cores` (the nice included) and `worst_steal_cores`: of any two seconds.
        """
        spent = _Spent.now().since(self._began)
        found = {
            "steal_cores": spent.steal_s,
            "bench_cores": spent.ours_s,
            "recorder_cores": spent.own_s,
            "others_cores": spent.others_s,
            "nice_cores": spent.nice_s,
            "worst_others_cores": self._worst_others,
            "worst_steal_cores": self._worst_steal,
        }
        return {name: round(cores, 4) for name, cores in found.items()}


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU seconds at a moment; `since` an earlier one, cores between the two."""

    at_s: float
    busy_s: float
    nice_s: float
    steal_s: float
    ours_s: float
    own_s: float

    @classmethod
    def now(cls) -> _Spent:
        return cls(time.monotonic(), *_machine_s(), _bench_s(), time.process_time())

    @property
    def others_s(self) -> float:
        return max(0.0, self.busy_s - self.ours_s - self.own_s)

    def since(self, before: _Spent) -> _Spent:
        elapsed_s = max(self.at_s - before.at_s, 1e-3)
        mine, theirs = astuple(self)[1:], astuple(before)[1:]
        cores = [(a - b) / elapsed_s for a, b in zip(mine, theirs, strict=True)]
        return _Spent(elapsed_s, *cores)


def too_much(found: Mapping[str, float], *, calm: bool = False) -> str:
    """Say what disturbed a run more than may be, or nothing.

    A fault is one cause only where the machine was otherwise at rest, and a run is without a fault
    only where nobody else takes the CPUs. What the host's disk and hypervisor do stays in it.

    calm    the run is to be without a fault
    """
    most_others = MOST_CALM_CORES if calm else MOST_OTHERS_CORES
    limits = {
        "steal_cores": MOST_STEAL_CORES,
        "others_cores": most_others,
        "worst_others_cores": MOST_AT_ONCE_CORES,
        "worst_steal_cores": MOST_STOLEN_AT_ONCE_CORES,
    }
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
