"""GPU time by kernel family over time, out of rows of the local history, with what was covered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.records.estimated_time import EstimatedTime, summed

_NS_PER_S: Final = 1_000_000_000
_STEPS_S: Final = (10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
MOST_STEPS: Final = 20
COVERAGE: Final = "watched"
"""The metric by which a source says that it watched a GPU."""
SOURCE: Final = "gpu_time"


@dataclass(slots=True)
class FamilyStep:
    """One step of time.

    unix_ns, span_ns   when it begins, and how much of it rows or coverage lie in
    covered_ns         time of GPUs of which every process was measured, added up over GPUs
    busy_ns            time of GPUs in which measured processes used them, the same
    families           time of kernels by family, an estimate
    """

    unix_ns: int
    span_ns: int
    covered_ns: float = 0.0
    busy_ns: float = 0.0
    families: Counter[str] = field(default_factory=Counter)

    def document(self, gpus: int) -> dict[str, Any]:
        """Give it as JSON; shares are of the time of all GPUs."""
        whole_ns = max(self.span_ns * gpus, 1)
        return {
            "unix_ns": self.unix_ns,
            "span_ns": self.span_ns,
            "covered_share": min(self.covered_ns / whole_ns, 1.0),
            "busy_share": self.busy_ns / whole_ns,
            "family_shares": {
                family: time_ns / whole_ns for family, time_ns in self.families.most_common()
            },
        }


@dataclass(slots=True)
class KernelSums:
    """One kernel of one process over all of the rows."""

    launches: float = 0.0
    parts: list[EstimatedTime] = field(default_factory=list)

    def add(self, kernel: Mapping[str, Any]) -> None:
        """Add one row's entry."""
        self.launches += kernel["launches"]
        self.parts.append(
            EstimatedTime(
                kernel["gpu_time_ns"], kernel["variance"], kernel["windows"], kernel["estimated_ns"]
            )
        )

    @property
    def time(self) -> EstimatedTime:
        """Give its time in all of the rows."""
        return summed(self.parts)


KernelPlace = tuple[str, int, str, str]
"""Process, its id, family and kernel."""


@dataclass(frozen=True, slots=True)
class GpuTimeSeries:
    """What the rows say: in steps of time, and by kernel over all of it."""

    gpus: int
    steps: tuple[FamilyStep, ...]
    kernels: Mapping[KernelPlace, KernelSums]

    def documents(self) -> list[dict[str, Any]]:
        """Give the steps as JSON."""
        return [step.document(self.gpus) for step in self.steps]


def gpu_time_series(
    rows: Iterable[Mapping[str, Any]], coverage: Iterable[Mapping[str, Any]], gpus: int
) -> GpuTimeSeries:
    """Add up rows of `process_time`; each is spread evenly over its span.

    coverage   rows of the metric COVERAGE
    """
    kept, kernels = list(rows), defaultdict[KernelPlace, KernelSums](KernelSums)
    watched = [row for row in coverage if row["source"] == SOURCE]
    for row in kept:
        for kernel in row["kernels"]:
            place = row["name"], row["pid"], kernel["family"], kernel["kernel"]
            kernels[place].add(kernel)
    steps = _steps(kept)
    for row in watched:
        for step, share in _spread(steps, row):
            step.covered_ns += share * row["value"]
    for row in kept:
        for step, share in _spread(steps, row):
            step.busy_ns += share * sum(gpu["busy_ns"] for gpu in row["gpus"])
            for family in row["families"]:
                step.families[family["family"]] += share * family["gpu_time_ns"]
    return GpuTimeSeries(gpus, tuple(steps.values()), dict(kernels))


def _steps(rows: list[Mapping[str, Any]]) -> dict[int, FamilyStep]:
    """Lay out steps of a round length, by their number; at most MOST_STEPS and two begun ones.

    They end with the rows: coverage is told at once, work some seconds later.
    """
    if not rows:
        return {}
    begin = min(row["unix_ns"] for row in rows)
    end = max(row["unix_ns"] + row["span_ns"] for row in rows)
    length_s = next(
        (s for s in _STEPS_S if (end - begin) <= s * MOST_STEPS * _NS_PER_S), _STEPS_S[-1]
    )
    length = length_s * _NS_PER_S
    first, last = begin // length, max(end - 1, begin) // length
    return {
        number: FamilyStep(
            max(number * length, begin),
            min((number + 1) * length, end) - max(number * length, begin),
        )
        for number in range(first, last + 1)
    }


def _spread(
    steps: Mapping[int, FamilyStep], row: Mapping[str, Any]
) -> Iterator[tuple[FamilyStep, float]]:
    """Yield the steps that a row lies in, each with the share of the row."""
    begin, span = row["unix_ns"], max(row["span_ns"], 1)
    for step in steps.values():
        inside = min(begin + span, step.unix_ns + step.span_ns) - max(begin, step.unix_ns)
        if inside > 0:
            yield step, inside / span
