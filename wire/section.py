"""A section of the catalogue: one metric, its cells and its bounds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .task import SectionKind

MS_PER_S: Final = 1000

LEFT_OUT: Final = "left_out"
"""Last cell of every indicator section: what hosts with more than m set did not report."""


class Bound(StrEnum):
    """Where a section's L1 bound comes from."""

    PER_GPU_MS = "per_gpu_ms"
    PER_GPU_SAMPLE = "per_gpu_sample"
    FIXED = "fixed"
    INDICATORS = "indicators"


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of a value: [first + i width, ...) or, log2, [2^(first+i), ...); the ends are open."""

    scale: str
    unit: str
    first: int
    width: int
    count: int

    def index(self, value: float) -> int:
        """Return the bin of a value, clamped to the first and last."""
        whole = max(int(value), 0)
        if self.scale == "log2":
            place = max(whole.bit_length() - 1, 0) - self.first
        else:
            place = (whole - self.first) // self.width
        return min(max(place, 0), self.count - 1)

    @property
    def edges(self) -> tuple[int, ...]:
        """Lower edges of the bins, in `unit`."""
        steps = range(self.first, self.first + self.count)
        if self.scale == "log2":
            return tuple(1 << step for step in steps)
        return tuple(self.first + self.width * step for step in range(self.count))

    @property
    def names(self) -> tuple[str, ...]:
        if self.scale == "log2":
            edges = [f"2^{step}" for step in range(self.first, self.first + self.count)]
        else:
            edges = [str(edge) for edge in self.edges]
        inner = [f"{low}..{high} {self.unit}" for low, high in itertools.pairwise(edges)]
        return (*inner, f"{edges[-1]}.. {self.unit}")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One mean: raw values are millionths of full_scale, which is in `unit`."""

    name: str
    full_scale: int
    unit: str


@dataclass(frozen=True, slots=True)
class Section:
    """One metric of the catalogue.

    unit            base unit of raw values
    axes            names of class tables, partitions, "bins" or "coordinates"
    cells           readable names, the product of the axes, first axis slowest; of indicators,
                    LEFT_OUT after them
    bound           where the L1 bound comes from
    coordinate_cap  base units; 0 unless bound is `fixed`; so l1_bound
    m               most cells that a host sets, LEFT_OUT among them; 0 for other kinds
    steps_per_unit  steps per section bound; per indicator for an indicator set
    """

    id: int
    name: str
    about: str
    kind: SectionKind
    unit: str
    axes: tuple[str, ...]
    cells: tuple[str, ...]
    bins: Bins | None
    coordinates: tuple[Coordinate, ...]
    bound: Bound
    coordinate_cap: int
    l1_bound: int
    sample_period_s: int
    m: int
    steps_per_unit: int

    @property
    def length(self) -> int:
        return len(self.cells)

    def index(self, cell: str) -> int:
        """Return the place of a cell; KeyError names the section when there is none."""
        try:
            return self.cells.index(cell)
        except ValueError:
            raise KeyError(f"section {self.name} has no cell {cell!r}") from None

    def resolve(self, gpus: int, window_s: int) -> tuple[int, int, int]:
        """Return coordinate cap a, L1 bound B and step q in base units, for the largest host.

        gpus      GPUs of the largest host of the cohort, >= 1
        window_s  length of the window, seconds
        Returns   a <= B, both multiples of q; q is the smallest step that gives at most
                  steps_per_unit steps to the bound
        Raises    ValueError when gpus or window_s is below 1
        """
        if gpus < 1 or window_s < 1:
            raise ValueError(f"gpus and window_s are at least 1, got {gpus} and {window_s}")
        if self.bound is Bound.INDICATORS:
            return self.steps_per_unit, self.m * self.steps_per_unit, 1
        cap, total = self._raw_bounds(gpus, window_s)
        q = -(-total // self.steps_per_unit)
        return _round_up(cap, q), _round_up(total, q), q

    def _raw_bounds(self, gpus: int, window_s: int) -> tuple[int, int]:
        if self.bound is Bound.FIXED:
            return self.coordinate_cap, self.l1_bound
        if self.bound is Bound.PER_GPU_MS:
            total = gpus * window_s * MS_PER_S
        else:
            total = gpus * max(window_s // self.sample_period_s, 1)
        return total, total


def _round_up(value: int, q: int) -> int:
    return -(-value // q) * q
