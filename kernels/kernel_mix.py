"""How a program's launches, or its GPU time, divide over operations and families.

What tells programs apart must not change with the GPU: a product is `volta_sgemm` here and
`Cijk_...` there. So an operation is the family where a vendor's library names the kernel, else
the operation that a generic kernel was given, else the normalised name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final, Self

from .families import FamilyRules, normalise
from .launches.launch import Launch

TRANSFERS: Final = frozenset({"memcpy", "memset"})
"""Left out of a mix: some profiles do not list them, and they tell of the input alone."""

_LIBRARY_FAMILIES: Final = frozenset(
    {"gemm", "attention", "conv", "communication", "softmax", "layout", "norm", "fft", "sparse",
     "solver", "triton_fused"}
)  # fmt: skip

OPERATION_WEIGHT: Final = 0.25
"""Weight of operations beside families in a distance: bench/results/signatures.json has others."""


class MixMeasure(StrEnum):
    LAUNCHES = "launches"
    GPU_TIME = "gpu_time"


DECIDES: Final = MixMeasure.LAUNCHES
"""The measure whose answer is a process's class, whether GPU time is known or not: it was the
better one on held-out profiles (docs/kernels.md)."""


def operation(key: str, family: str) -> str:
    """Return the operation of a kernel, given its normalised name ("" where it has none)."""
    if not key or family in _LIBRARY_FAMILIES:
        return family
    _, given, word = key.partition("<")
    return word.rstrip(">") if given else key


@dataclass(frozen=True, slots=True)
class MixRow:
    """One operation of a program: both measures, in any unit; gpu_time None where unknown."""

    operation: str
    family: str
    launches: float
    gpu_time: float | None


@dataclass(frozen=True, slots=True)
class KernelMix:
    """Shares that sum to 1 over families, and over operations; empty for an empty program."""

    measure: MixMeasure
    families: Mapping[str, float]
    operations: Mapping[str, float]

    @classmethod
    def of(cls, rows: Iterable[MixRow], measure: MixMeasure) -> Self:
        """Divide what the rows hold; rows without the measure, and transfers, count nothing."""
        families: dict[str, float] = {}
        operations: dict[str, float] = {}
        for row in rows:
            weight = row.launches if measure is MixMeasure.LAUNCHES else row.gpu_time
            if weight and row.family not in TRANSFERS:
                families[row.family] = families.get(row.family, 0.0) + weight
                operations[row.operation] = operations.get(row.operation, 0.0) + weight
        return cls(measure, _shares(families), _shares(operations))


def hellinger(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Distance of two distributions, 0 .. 1."""
    overlap = sum(sqrt(share * other[name]) for name, share in one.items() if name in other)
    return sqrt(max(0.0, 1.0 - overlap))


def distance(one: KernelMix, other: KernelMix, weight: float = OPERATION_WEIGHT) -> float:
    """Distance of two mixes of one measure, 0 .. 1; an empty mix is 1 from everything."""
    if one.measure is not other.measure:
        raise ValueError(f"expected one measure, got {one.measure} and {other.measure}")
    by_family = hellinger(one.families, other.families)
    return weight * hellinger(one.operations, other.operations) + (1 - weight) * by_family


def mix_rows(kernels: Iterable[tuple[str, str, int, int | None]]) -> list[MixRow]:
    """Gather (kernel name, family, launches, GPU time in ns) into one row per operation."""
    launches: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    timed = True
    for name, family, count, time_ns in kernels:
        place = operation(normalise(name), family), family
        launches[place] += count
        times[place] += time_ns or 0
        timed = timed and time_ns is not None
    return [
        MixRow(*place, float(count), float(times[place]) if timed else None)
        for place, count in sorted(launches.items())
    ]


def _shares(amounts: Mapping[str, float]) -> dict[str, float]:
    whole = sum(amounts.values())
    return {name: amount / whole for name, amount in amounts.items()} if whole else {}


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
    for launch in launches:
        counts[launch.name] += launch.launches
        timed = timed and launch.gpu_time_ns is not None
        times[launch.name] += launch.gpu_time_ns or 0
    weights = times if timed else counts
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(rules.classify(name)[0], []).append(name)
    rows = []
    for family, names in sorted(groups.items()):
        number, time_ns = sum(counts[n] for n in names), sum(times[n] for n in names)
        share = FamilyShare(
            family=family,
            kernels=len({normalise(name) for name in names}),
            launches=number,
            launch_percent=100 * number / max(counts.total(), 1),
            gpu_time_ns=time_ns if timed else None,
            gpu_time_percent=100 * time_ns / max(times.total(), 1) if timed else None,
            heaviest=normalise(max(names, key=lambda name: (weights[name], name))),
        )
        rows.append((time_ns if timed else number, share))
    return [share for _, share in sorted(rows, key=lambda row: -row[0])]
