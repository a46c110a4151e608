"""Kernels by family: launches and GPU time of a list of names or of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .families import FamilyRules
from .kernel_name import normalise
from .launches.launch import Launch


@dataclass(frozen=True, slots=True)
class FamilyShare:
    """One family.

    kernels             different normalised names
    gpu_time_ns         None where only names are known
    gpu_time_percent    of all families together
    heaviest            normalised name of the kernel with most GPU time, else most launches
    """

    family: str
    kernels: int
    launches: int
    launch_percent: float
    gpu_time_ns: int | None
    gpu_time_percent: float | None
    heaviest: str


def family_shares(launches: Iterable[Launch], rules: FamilyRules) -> list[FamilyShare]:
    """Sum launches by family, heaviest family first; where one has no time, none is given."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    timed = True
    for one in launches:
        counts[one.name] += one.launches
        timed = timed and one.gpu_time_ns is not None
        times[one.name] += one.gpu_time_ns or 0
    weights = times if timed else counts
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(rules.classify(name)[0], []).append(name)
    rows = [_row(family, names, counts, times, timed) for family, names in groups.items()]
    return sorted(rows, key=lambda row: (-sum(weights[n] for n in groups[row.family]), row.family))


def _row(
    family: str, names: list[str], counts: Counter[str], times: Counter[str], timed: bool
) -> FamilyShare:
    weights = times if timed else counts
    launches, time_ns = sum(counts[n] for n in names), sum(times[n] for n in names)
    return FamilyShare(
        family=family,
        kernels=len({normalise(name) for name in names}),
        launches=launches,
        launch_percent=100 * launches / max(counts.total(), 1),
        gpu_time_ns=time_ns if timed else None,
        gpu_time_percent=100 * time_ns / max(times.total(), 1) if timed else None,
        heaviest=normalise(max(names, key=lambda name: (weights[name], name))),
    )
