"""Whose work it is: a batch job, a pod, a container; how many of them are kept apart is bounded.

All three come from the path of a control group, which a user with a group of his own may choose;
each is a number, a uid or 64 hexadecimal digits, so that none is longer or other than that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, NamedTuple

from collectors.records.gpu_calls import CountedCalls, ProcessLabels
from collectors.records.gpu_time import NO_TIME, EstimatedTime, summed

MOST_WORKLOADS: Final = 64
KEPT_NS: Final = 600_000_000_000
"""So long after its last work a workload keeps its rows: several scrapes see its end."""


class HostWorkload(NamedTuple):
    """What a process belongs to; "" where it belongs to none, or where that is not to be seen.

    hpc_job        number of Slurm's job, under dcgm-exporter's name of the label
    pod_uid        Kubernetes' uid of the pod
    container_id   64 hexadecimal digits
    """

    hpc_job: str = ""
    pod_uid: str = ""
    container_id: str = ""


NO_WORKLOAD: Final = HostWorkload()
OTHER: Final = HostWorkload("other")
"""Those beyond MOST_WORKLOADS together; no job has a word for a number."""


def workload_of(labels: ProcessLabels) -> HostWorkload:
    """Give what a process belongs to."""
    return HostWorkload(labels.slurm_job, labels.pod, labels.container)


@dataclass(slots=True)
class FamilyTotal:
    """What a workload's kernels of one family came to, since it was first seen.

    launches            estimate; infinite variance: part of it has none
    time                estimate on all GPUs together
    shown_s             highest value of `time`: estimates of single windows may be below 0
    """

    launches: CountedCalls = field(default_factory=lambda: CountedCalls.exactly(0))
    time: EstimatedTime = NO_TIME
    shown_s: float = 0.0


class FamilyRow(NamedTuple):
    """One row of totals; None: that source told nothing of it.

    launches_variance, time_variance_s2   of random errors; None where a part has no error
    launches_below, launches_above        bounds of what all launches share, beside the variance
    """

    workload: HostWorkload
    family: str
    launches: float | None
    launches_variance: float | None
    time_s: float | None
    time_variance_s2: float | None
    launches_below: float | None = None
    launches_above: float | None = None


class WorkTotals:
    """Launches and time by workload and family; both only grow while a workload is kept."""

    def __init__(self) -> None:
        self._totals: OrderedDict[HostWorkload, dict[str, FamilyTotal]] = OrderedDict()
        self._seen_ns: dict[HostWorkload, int] = {}

    def add_launches(
        self, workload: HostWorkload, family: str, launches: CountedCalls, now_ns: int
    ) -> None:
        """Add launches of one kernel."""
        total = self._total(workload, family, now_ns)
        total.launches = CountedCalls.total((total.launches, launches), launches.share)

    def add_time(
        self, workload: HostWorkload, family: str, time: EstimatedTime, now_ns: int
    ) -> None:
        """Add time on GPUs."""
        total = self._total(workload, family, now_ns)
        total.time = summed((total.time, time)) if total.time is not NO_TIME else time
        total.shown_s = max(total.shown_s, total.time.value_ns / 1e9)

    def rows(self, now_ns: int) -> Iterator[FamilyRow]:
        """Give all rows, and forget workloads that have been still for long."""
        for workload in [w for w, at_ns in self._seen_ns.items() if now_ns - at_ns > KEPT_NS]:
            del self._totals[workload], self._seen_ns[workload]
        for workload, families in self._totals.items():
            for family, total in families.items():
                yield _row(workload, family, total)

    def _total(self, workload: HostWorkload, family: str, now_ns: int) -> FamilyTotal:
        if workload not in self._totals and len(self._totals) >= MOST_WORKLOADS:
            workload = OTHER
        self._seen_ns[workload] = now_ns
        return self._totals.setdefault(workload, {}).setdefault(family, FamilyTotal())


def _row(workload: HostWorkload, family: str, total: FamilyTotal) -> FamilyRow:
    launches, time = total.launches, total.time
    counted = launches.value > 0
    timed = time is not NO_TIME
    errors = (launches.variance, launches.below, launches.above)
    variance, below, above = (error if counted and isfinite(error) else None for error in errors)
    return FamilyRow(
        workload,
        family,
        launches.value if counted else None,
        variance,
        total.shown_s if timed else None,
        time.variance / 1e18 if timed and time.variance is not None else None,
        below,
        above,
    )
