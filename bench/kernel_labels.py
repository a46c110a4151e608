"""Kernels of public traces with the family that a person gave them, and how right the rules are.

The file lies beside the checkout, as the traces do; it is no part of the product.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernels.families import FamilyRules

LABELS: Final = "kernel-labels/labels.csv"
LEARNED_FROM: Final = ("ds-", "hta-", "kineto-", "pub-", "tl-norm-", "tl-mi300-Falconsai")
"""Traces whose names were looked at while rules were written; the others' were first judged."""

_LONGEST_FIELD: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LabelledKernel:
    """One kernel of one trace.

    families    the family that the labeller gave, and others that a careful person may give
    time_us     GPU time of all its launches; 0 where it was published without
    """

    trace: str
    name: str
    families: frozenset[str]
    time_us: float

    @property
    def held_out(self) -> bool:
        """Whether its trace was first judged, and not learned from."""
        return not self.trace.startswith(LEARNED_FROM)


def read_labels(path: Path) -> tuple[LabelledKernel, ...]:
    """Read a table of trace, name, family, also (alternatives between bars) and time_us."""
    csv.field_size_limit(_LONGEST_FIELD)
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            LabelledKernel(
                row["trace"],
                row["name"],
                frozenset(filter(None, (row["family"], *row["also"].split("|")))),
                float(row["time_us"]),
            )
            for row in csv.DictReader(file)
        )


def accuracy_by_time(kernels: Iterable[LabelledKernel], rules: FamilyRules) -> Mapping[str, float]:
    """Percent of each trace's GPU time in a right family; traces without times are left out."""
    whole: defaultdict[str, float] = defaultdict(float)
    right: defaultdict[str, float] = defaultdict(float)
    for one in kernels:
        whole[one.trace] += one.time_us
        right[one.trace] += one.time_us * (rules.classify(one.name)[0] in one.families)
    return {trace: 100 * right[trace] / time for trace, time in whole.items() if time}
