"""From a released vector to cells that people can read: value, error, interval, share.

Docs: docs/statistics.md. Four things separate a released cell from the true sum over the accepted
hosts: the noise, whose size is known exactly; rounding, at most 1/4 step^2 a host; clipping, which
is part of what a section means (a mean is that of min(x, full scale)); and indicators that hosts
left out, of which the release has a bound. What separates a share from the fleet's is, on top,
that only some hosts measured. Means and indicators are of those hosts alone: they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import isnan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aggregator.protocol.released import Capacity, CoarseCapacity, CoarseCounts
from privacy.calibrate import SIGMA_UNIT
from wire.catalogue import LEFT_OUT, MS_PER_S, UNMEASURED, Bound, Catalogue, Section
from wire.task import CHECK_WORDS, SectionKind, SectionSpec, Task

from .ratios import BELOW_NOISE_ERRORS, Floats, fieller, normal_quantile

RESERVED: Final = "reserved_"
MODEL_AXIS: Final = "gpu_model"


@lru_cache(maxsize=256)
def model_groups(section: Section) -> tuple[str, ...]:
    """Group of each cell: its GPU model where the section is by model, else "" for all."""
    if section.axes[0] != MODEL_AXIS or len(section.axes) == 1:
        return ("",) * section.length
    return tuple(cell.split("/", 1)[0] for cell in section.cells)


@lru_cache(maxsize=1)
def model_sql() -> str:
    """The GPU model of a cell where its section is by model, else '', in SQL."""
    sections = (s for s in Catalogue.load().sections if s.axes[0] == MODEL_AXIS and len(s.axes) > 1)
    names = ", ".join(f"'{section.name}'" for section in sections) or "NULL"
    return f"CASE WHEN section IN ({names}) THEN split_part(cell, '/', 1) ELSE '' END"


@lru_cache(maxsize=256)
def group_members(section: Section) -> dict[str, npt.NDArray[np.bool_]]:
    groups = np.array(model_groups(section))
    return {group: groups == group for group in dict.fromkeys(model_groups(section))}


@lru_cache(maxsize=256)
def is_partition(section: Section) -> bool:
    """Whether the cells and what was not measured are all of the wall time."""
    whole = not section.counts_unmeasured
    return whole and any(leaf_of(cell) == UNMEASURED for cell in section.cells)


@lru_cache(maxsize=256)
def named_cells(section: Section) -> npt.NDArray[np.intp]:
    """Places of the cells that are no places kept for later classes."""
    return np.array([i for i, cell in enumerate(section.cells) if not is_reserved(cell)])


@lru_cache(maxsize=256)
def measured_cells(section: Section) -> npt.NDArray[np.bool_]:
    return np.array([not is_reserved(c) and leaf_of(c) != UNMEASURED for c in section.cells])


def gpus_of(capacity: Capacity, section: Section, group: str) -> int:
    return capacity.gpus_by_model.get(model_of(section, group), 0) if group else capacity.gpus


def model_of(section: Section, group: str) -> int:
    return list(group_members(section)).index(group)


@lru_cache(maxsize=256)
def reserved_cells(section: Section) -> tuple[int, ...]:
    """Indexes of the cells that are kept for later classes."""
    return tuple(i for i, cell in enumerate(section.cells) if is_reserved(cell))


def leaf_of(cell: str) -> str:
    return cell.rsplit("/", 1)[-1]


def is_reserved(cell: str) -> bool:
    """Whether a part of a cell's name is a place kept for a later class: zero, so all noise."""
    return any(part.startswith(RESERVED) for part in cell.split("/"))


ROUNDING_VARIANCE: Final = 0.25
"""Most that rounding one host's coordinate adds, in steps^2: f (1 - f) of a fraction f."""

BIAS_CONFIDENCE: Final = 0.95
"""Of the one-sided bound on what indicators lack."""

MEAN_FULL_SCALE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One released number.

    value           sum over the accepted hosts, in `unit`, noise included; may be negative
    standard_error  of value
    low, high       95 % interval of value
    share           value as a fraction of a whole, None where that whole is itself noise:
                    mix, of measured wall time; histogram, of the section's sum; indicators, of
                    the hosts that measured; mean, of full scale on these hosts
    below_noise     value is under 2 standard errors: kept for means over windows, never drawn
                    (discoveries.py says what else is not)
    bias_bound      how many hosts value may be low by on average, as hosts with more indicators
                    than they may report left some out: upper 95 % bound, in no interval; 0 for
                    other kinds
    steps ... whole_bound   what all of these but bias_bound follow from: `CellBasis`
    """

    section: str
    cell: str
    unit: str
    kind: str
    value: float
    standard_error: float
    low: float
    high: float
    share: float | None
    share_low: float | None
    share_high: float | None
    below_noise: bool
    bias_bound: float
    steps: int
    scale: float
    variance: float
    whole: float | None
    whole_variance: float
    covariance: float
    sampling: float
    whole_bound: float


@dataclass(frozen=True, slots=True)
class CellBasis:
    """What the numbers of a section's named cells follow from; arrays of k cells.

    steps           int64, released sum; times `scale` it is the value
    scale           float64, readable units of a step
    variance        float64, of the value, unit^2; of as many hosts as there can have been
    whole           float64, what the value is a share of; NaN where there is no such thing
    whole_variance  float64, of the whole; covariance: of value and whole; sampling: see
                    ratios.fieller
    whole_bound     float64, what the whole may be off by as hosts are told on a grid; of a model of
                    few hosts, which has none, the most that it can be
    bias_bound      of each cell: see `Cell`
    """

    section: str
    steps: npt.NDArray[np.int64]
    scale: Floats
    variance: Floats
    whole: Floats
    whole_variance: Floats
    covariance: Floats
    sampling: Floats
    whole_bound: Floats
    bias_bound: float


CELL_ARRAYS: Final = tuple(field.name for field in fields(CellBasis))[1:-1]


def estimate(
    task: Task,
    catalogue: Catalogue,
    vector: npt.NDArray[np.int64],
    counts: CoarseCounts,
) -> list[Cell]:
    """Turn one released vector, or the sum of several windows of one task, into cells.

    vector      int64[d], steps, check words included
    counts      of the accepted hosts; of a sum of windows, the sum of theirs. Without their GPUs a
                mix divides by the sum of its own cells
    Returns     cells in the order of the vector, without places kept for later classes
    Raises      ValueError when the vector is not the task's or its check words are other hosts'
    """
    sections = _sections(task, catalogue, vector, counts)
    return [cell for released in sections for cell in released.cells()]


def basis_of(
    task: Task,
    catalogue: Catalogue,
    vector: npt.NDArray[np.int64],
    counts: CoarseCounts,
) -> list[CellBasis]:
    """Give what the cells of `estimate` follow from, by section; arguments as there."""
    return [released.basis() for released in _sections(task, catalogue, vector, counts)]


def _sections(
    task: Task,
    catalogue: Catalogue,
    vector: npt.NDArray[np.int64],
    counts: CoarseCounts,
) -> Iterator[_Released]:
    if vector.shape != (task.d,):
        raise ValueError(f"expected a vector of {task.d} words, got shape {vector.shape}")
    hosts = counts.hosts
    if not (np.abs(vector[:CHECK_WORDS] - hosts.value) <= hosts.bound).all():
        raise ValueError(f"expected check words of {hosts.value} accepted hosts, got others")
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        section, check_word = catalogue.section_of(spec), int(vector[0])
        yield _Released(section, spec, vector[place], check_word, counts, task.window_s)


def released_units(section: Section, spec: SectionSpec) -> list[tuple[str, float]]:
    """Return (readable unit, readable units per base unit) of every cell of a section."""
    hosts = ("hosts", 1 / spec.coordinate_cap)
    if spec.kind is SectionKind.INDICATORS:
        return [hosts] * spec.length
    if section.coordinates:
        by_name = {
            coordinate.name: (coordinate.unit, coordinate.full_scale / MEAN_FULL_SCALE)
            for coordinate in section.coordinates
        }
        return [by_name.get(leaf_of(cell), hosts) for cell in section.cells]
    if section.bound is Bound.PER_GPU_MS:
        return [("GPU-s", 1 / MS_PER_S)] * spec.length
    return [(section.unit, 1.0)] * spec.length


def full_scale(section: Section, spec: SectionSpec) -> int:
    """Return what a mean is a share of, in base units; the cap is rounded up to whole steps."""
    return MEAN_FULL_SCALE if section.coordinates else spec.coordinate_cap


@lru_cache(maxsize=256)
def _scale(section: Section, spec: SectionSpec) -> Floats:
    return spec.q * np.array([per_base for _, per_base in released_units(section, spec)])


class _Released:
    """One section of one vector in readable units; arrays float64[k]."""

    def __init__(
        self,
        section: Section,
        spec: SectionSpec,
        steps: npt.NDArray[np.int64],
        check_word: int,
        counts: CoarseCounts,
        window_s: int,
    ) -> None:
        self.section, self.spec, self.steps = section, spec, steps
        hole = section.index(UNMEASURED) if section.counts_unmeasured else None
        if hole is not None:
            self.steps = steps.copy()
            self.steps[hole] = check_word * spec.cap_steps - steps[hole]
        self.hole = hole
        self.hosts, self.capacity, self.window_s = counts.hosts, counts.capacity, window_s
        n = self.most = counts.hosts.value + counts.hosts.bound
        self.scale = _scale(section, spec)
        self.value = self.steps * self.scale
        # Whole multiples of a step are never rounded.
        self.rounding = (ROUNDING_VARIANCE * n if spec.q > 1 else 0.0) * self.scale**2
        noise = (spec.sigma_1024 / SIGMA_UNIT) ** 2 * n * self.scale**2
        choice = 0.0
        if spec.kind is SectionKind.INDICATORS:
            # A host that leaves each of its own out with probability p adds p (1 - p) <= p, hosts^2
            # to a cell's variance, and the p of all hosts are what LEFT_OUT counts on average.
            choice = max(float(self.value[section.index(LEFT_OUT)]), 0.0)
        self.variance = noise + self.rounding + choice
        if hole is not None:  # a host that did not measure sets this cell alone, by whole steps
            self.variance[hole] = noise[hole]

    def basis(self) -> CellBasis:
        """Give what the named classes' numbers follow from."""
        whole, places, bias_bound = self._whole(), named_cells(self.section), 0.0
        if self.spec.kind is SectionKind.INDICATORS:
            left_out = self.section.index(LEFT_OUT)
            error = float(np.sqrt(self.variance[left_out]))
            most = float(self.value[left_out]) + normal_quantile(2 * BIAS_CONFIDENCE - 1) * error
            bias_bound = min(max(most, 0.0), float(self.most))
        chosen = {name: getattr(whole, name)[places] for name in CELL_ARRAYS}
        return CellBasis(self.spec.name, **chosen, bias_bound=bias_bound)

    def cells(self) -> list[Cell]:
        basis = self.basis()
        value, error = basis.steps * basis.scale, np.sqrt(basis.variance)
        reach = normal_quantile() * error
        shares = fieller(
            value, basis.whole, basis.variance, basis.whole_variance, basis.covariance,
            basis.sampling, basis.whole_bound,
        )  # fmt: skip
        columns = (
            *(value, error, value - reach, value + reach, shares.value, shares.low, shares.high),
            *(value < BELOW_NOISE_ERRORS * error, np.full_like(value, basis.bias_bound)),
            *(getattr(basis, name) for name in CELL_ARRAYS),
        )
        numbers = zip(*(column.tolist() for column in columns), strict=True)
        names, kind = self.section.released_cells, self.spec.kind.value
        units = released_units(self.section, self.spec)
        return [
            Cell(self.spec.name, names[place], units[place][0], kind, *map(_known, row))
            for place, row in zip(named_cells(self.section).tolist(), numbers, strict=True)
        ]

    def _whole(self) -> CellBasis:
        if self.spec.kind is SectionKind.INDICATORS:
            return self._of_hosts(np.ones_like(self.value))
        if self.spec.kind is SectionKind.MEAN:
            return self._of_hosts(full_scale(self.section, self.spec) / self.spec.q * self.scale)
        if is_partition(self.section) and self.capacity is not None:
            return self._measured_wall_time(self.capacity)
        return self._own_sum()

    def _exact(self, whole: Floats) -> CellBasis:
        """Give the basis of all cells with a whole that is known."""
        spec, steps, scale = self.spec.name, self.steps, self.scale
        none, covariance, sampling, bound = np.zeros((4, len(whole)))
        return CellBasis(
            spec, steps, scale, self.variance, whole, none, covariance, sampling, bound, 0.0
        )

    def _of_hosts(self, each: Floats) -> CellBasis:
        """Give the basis of cells that are shares of so much a host, of those that measured.

        Both sums have noise of their own: it is independent from cell to cell.
        """
        if self.hole is None:
            basis = self._exact(self.hosts.value * each)
            return replace(basis, whole_bound=self.hosts.bound * each)
        basis = self._exact(self.value[self.hole] * each)
        basis.whole_variance[:] = self.variance[self.hole] * each**2
        basis.whole[self.hole], basis.whole_variance[self.hole] = np.nan, 0.0
        return basis

    def _own_sum(self) -> CellBasis:
        """Sum of the named cells, what was not measured left out; it contains the cell itself."""
        counted = measured_cells(self.section)
        value, variance = np.full_like(self.value, np.nan), np.zeros_like(self.value)
        for members in group_members(self.section).values():
            chosen = members & counted
            value[chosen] = self.value[chosen].sum()
            variance[chosen] = self.variance[chosen].sum()
        covariance = np.where(counted, self.variance, 0.0)
        return replace(self._exact(value), whole_variance=variance, covariance=covariance)

    def _measured_wall_time(self, capacity: CoarseCapacity) -> CellBasis:
        """Wall time, known from the roster, less what the hosts say they did not measure.

        Numerator and unmeasured time share one rounding uniform per host; their covariance is at
        most the rounding variance, and is taken at its worst. The unmeasured cell itself is a share
        of all wall time. Cells of a model of few hosts have no whole: it would tell who is there.
        """
        basis = self._exact(np.full_like(self.value, np.nan))
        for group, members in group_members(self.section).items():
            gpus, squares = capacity.gpus, capacity.squares
            if group:
                model = model_of(self.section, group)
                if model not in capacity.by_model:
                    basis.whole_bound[members] = capacity.few_gpus * self.window_s
                    continue
                gpus, squares = capacity.by_model[model], capacity.squares_by_model[model]
            hole = self.section.index(f"{group}/{UNMEASURED}" if group else UNMEASURED)
            squares *= self.window_s**2  # of hosts' wall time in GPU-s
            wall = gpus.value * self.window_s
            measured = wall - self.value[hole]
            part = float(np.clip(measured / wall, 0, 1)) if wall else 0.0
            basis.whole[members] = measured
            basis.whole_variance[members] = self.variance[hole]
            basis.covariance[members] = -self.rounding[members]
            basis.sampling[members] = part * (1 - part) * squares
            basis.whole_bound[members] = gpus.bound * self.window_s
            basis.whole[hole], basis.whole_variance[hole] = wall, 0.0
            basis.covariance[hole] = basis.sampling[hole] = 0.0
        return basis


def _known(number: Any) -> Any:
    return None if isnan(number) else number
