"""From a released vector to cells that people can read: value, error, interval, share.

Docs: docs/statistics.md. Four things separate a released cell from the true sum over the accepted
hosts: the noise, whose size is known exactly; rounding, at most 1/4 step^2 a host; clipping, which
is part of what a section means (a mean is that of min(x, full scale)); and indicators that hosts
left out, of which the release has a bound. What separates a share from the fleet's is, on top,
that only some hosts measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from privacy.calibrate import SIGMA_UNIT
from wire.catalogue import Catalogue
from wire.section import LEFT_OUT, MS_PER_S, Bound, Section
from wire.task import CHECK_WORDS, SectionKind, SectionSpec, Task

from .ratios import BELOW_NOISE_ERRORS, Floats, fieller, normal_quantile
from .released import Capacity

ROUNDING_VARIANCE: Final = 0.25
"""Most that rounding one host's coordinate adds, in steps^2: f (1 - f) of a fraction f."""

UNMEASURED: Final = "unmeasured"
RESERVED: Final = "reserved_"
BIAS_CONFIDENCE: Final = 0.95
"""Of the one-sided bound on what indicators lack."""

MODEL_AXIS: Final = "gpu_model"
MEAN_FULL_SCALE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One released number.

    value           sum over the accepted hosts, in `unit`, noise included; may be negative
    standard_error  of value
    low, high       95 % interval of value
    share           value as a fraction of a whole, None where that whole is itself noise:
                    mix, of measured wall time; histogram, of the section's sum; indicators, of
                    the accepted hosts; mean, of full scale
    below_noise     value is under 2 standard errors: kept for means over windows, never drawn
                    (discoveries.py says what else is not)
    bias_bound      how many hosts value may be low by on average, as hosts with more indicators
                    than they may report left some out: upper 95 % bound, in no interval; 0 for
                    other kinds
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


def estimate(
    task: Task,
    catalogue: Catalogue,
    vector: npt.NDArray[np.int64],
    n: int,
    capacity: Capacity | None = None,
) -> list[Cell]:
    """Turn one released vector, or the sum of several windows of one task, into cells.

    vector      int64[d], steps, check words included
    n           accepted hosts; of a sum of windows, the sum of theirs
    capacity    GPUs of the accepted hosts; without it a mix divides by the sum of its own cells
    Returns     cells in the order of the vector, without places kept for later classes
    Raises      ValueError when the vector is not the task's or its check words are not n
    """
    if vector.shape != (task.d,):
        raise ValueError(f"expected a vector of {task.d} words, got shape {vector.shape}")
    if n < 1 or not (vector[:CHECK_WORDS] == n).all():
        raise ValueError(f"expected check words of {n} accepted hosts, got others")
    cells: list[Cell] = []
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        section = catalogue.section(spec.name)
        released = _Released.of(section, spec, vector[place], n, capacity, task.window_s)
        cells.extend(released.cells())
    return cells


def released_units(section: Section, spec: SectionSpec) -> list[tuple[str, float]]:
    """Return (readable unit, readable units per base unit) of every cell of a section."""
    if spec.kind is SectionKind.INDICATORS:
        return [("hosts", 1 / spec.coordinate_cap)] * spec.length
    if section.coordinates:
        by_name = {coordinate.name: coordinate for coordinate in section.coordinates}
        leaves = [by_name[leaf_of(cell)] for cell in section.cells]
        return [(leaf.unit, leaf.full_scale / MEAN_FULL_SCALE) for leaf in leaves]
    if section.bound is Bound.PER_GPU_MS:
        return [("GPU-s", 1 / MS_PER_S)] * spec.length
    return [(section.unit, 1.0)] * spec.length


@dataclass(slots=True)
class RunningSum:
    """The sum of a task's windows so far; noise adds in quadrature, so means over windows sharpen.

    n           sum of the windows' accepted hosts
    capacity    None once a window came without
    """

    task: Task
    catalogue: Catalogue
    windows: int = 0
    n: int = 0
    capacity: Capacity | None = None
    _vector: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._vector = np.zeros(self.task.d, dtype=np.int64)

    def add(self, vector: npt.NDArray[np.int64], n: int, capacity: Capacity | None = None) -> None:
        """Add one released window."""
        if self.windows == 0:
            self.capacity = capacity
        elif self.capacity is not None:
            self.capacity = None if capacity is None else self.capacity + capacity
        self._vector += vector
        self.windows += 1
        self.n += n

    def estimate(self) -> list[Cell]:
        """Return the cells of the sum: values over all windows, shares of the whole time."""
        return estimate(self.task, self.catalogue, self._vector, self.n, self.capacity)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What each cell of a section is a share of; float64[k] in readable units.

    covariance    of the cell with its whole
    sampling      see ratios.fieller
    """

    value: Floats
    variance: Floats
    covariance: Floats
    sampling: Floats


@dataclass(frozen=True, slots=True)
class _Released:
    """One section of one vector in readable units; arrays float64[k]."""

    section: Section
    spec: SectionSpec
    n: int
    capacity: Capacity | None
    window_s: int
    scale: Floats
    units: list[str]
    value: Floats
    variance: Floats
    rounding: Floats

    @staticmethod
    def of(
        section: Section,
        spec: SectionSpec,
        steps: npt.NDArray[np.int64],
        n: int,
        capacity: Capacity | None,
        window_s: int,
    ) -> _Released:
        units = released_units(section, spec)
        scale = spec.q * np.array([per_base for _, per_base in units])
        # Whole multiples of a step are never rounded.
        rounding = ROUNDING_VARIANCE * n if spec.q > 1 else 0.0
        noise = (spec.sigma_1024 / SIGMA_UNIT) ** 2 * n * scale**2
        value = steps * scale
        return _Released(
            section,
            spec,
            n,
            capacity,
            window_s,
            scale,
            [unit for unit, _ in units],
            value,
            noise + rounding * scale**2 + _choice_variance(section, value),
            rounding * scale**2,
        )

    def cells(self) -> list[Cell]:
        """Build the cells of the named classes."""
        error = np.sqrt(self.variance)
        reach = normal_quantile() * error
        whole = self._whole()
        shares = fieller(
            self.value, whole.value, self.variance, whole.variance, whole.covariance, whole.sampling
        )
        below = self.value < BELOW_NOISE_ERRORS * error
        bias_bound = 0.0
        if self.spec.kind is SectionKind.INDICATORS:
            left_out = self.section.index(LEFT_OUT)
            bias_bound = _upper_bound(float(self.value[left_out]), float(error[left_out]), self.n)
        return [
            Cell(
                self.spec.name,
                name,
                self.units[i],
                self.spec.kind.value,
                float(self.value[i]),
                float(error[i]),
                float(self.value[i] - reach[i]),
                float(self.value[i] + reach[i]),
                _known(shares.value[i]),
                _known(shares.low[i]),
                _known(shares.high[i]),
                bool(below[i]),
                bias_bound,
            )
            for i, name in enumerate(self.section.cells)
            if not is_reserved(name)
        ]

    def _whole(self) -> _Whole:
        if self.spec.kind is SectionKind.INDICATORS:
            return self._exact(self.n * np.ones_like(self.value))
        if self.spec.kind is SectionKind.MEAN:
            return self._exact(self.n * self.spec.coordinate_cap / self.spec.q * self.scale)
        partition = any(leaf_of(cell) == UNMEASURED for cell in self.section.cells)
        if partition and self.capacity is not None:
            return self._measured_wall_time(self.capacity)
        return self._own_sum()

    def _exact(self, value: Floats) -> _Whole:
        return _Whole(value, np.zeros_like(value), np.zeros_like(value), np.zeros_like(value))

    def _own_sum(self) -> _Whole:
        """Sum of the named cells, what was not measured left out; it contains the cell itself."""
        counted = np.array(
            [not is_reserved(c) and leaf_of(c) != UNMEASURED for c in self.section.cells]
        )
        groups = model_groups(self.section)
        value, variance = np.full_like(self.value, np.nan), np.zeros_like(self.value)
        for group in set(groups):
            members = np.array([g == group for g in groups])
            chosen = members & counted
            value[chosen] = self.value[chosen].sum()
            variance[chosen] = self.variance[chosen].sum()
        covariance = np.where(counted, self.variance, 0.0)
        return _Whole(value, variance, covariance, np.zeros_like(self.value))

    def _measured_wall_time(self, capacity: Capacity) -> _Whole:
        """Wall time, known from the roster, less what the hosts say they did not measure.

        Numerator and unmeasured time share one rounding uniform per host; their covariance is at
        most the rounding variance, and is taken at its worst. The unmeasured cell itself is a share
        of all wall time, which is exact.
        """
        whole = self._exact(np.full_like(self.value, np.nan))
        groups = model_groups(self.section)
        for group in dict.fromkeys(groups):
            members = np.array([g == group for g in groups])
            hole = self.section.index(f"{group}/{UNMEASURED}" if group else UNMEASURED)
            wall, squares = self._wall(capacity, group)
            measured = wall - self.value[hole]
            part = float(np.clip(measured / wall, 0, 1)) if wall else 0.0
            whole.value[members] = measured
            whole.variance[members] = self.variance[hole]
            whole.covariance[members] = -self.rounding[members]
            whole.sampling[members] = part * (1 - part) * squares
            whole.value[hole], whole.variance[hole] = wall, 0.0
            whole.covariance[hole] = whole.sampling[hole] = 0.0
        return whole

    def _wall(self, capacity: Capacity, group: str) -> tuple[float, float]:
        """Wall time in GPU-s of a group of cells, and the sum over hosts of its square."""
        squares = capacity.squares
        if group:
            squares = capacity.squares_by_model.get(_model(self.section, group), 0)
        return gpus_of(capacity, self.section, group) * self.window_s, squares * self.window_s**2


def _choice_variance(section: Section, value: Floats) -> float:
    """Bound what the choice among a host's indicators adds to a cell's variance, in hosts^2.

    A host that leaves each of its own out with probability p adds p (1 - p) <= p, and the p of all
    hosts are what LEFT_OUT counts on average.
    """
    if section.kind is not SectionKind.INDICATORS:
        return 0.0
    return max(float(value[section.index(LEFT_OUT)]), 0.0)


def _upper_bound(left_out: float, standard_error: float, n: int) -> float:
    """Bound from above the mean of a released LEFT_OUT: what any cell beside it may lack.

    left_out, standard_error    as released, hosts
    n                           accepted hosts; no cell lacks more
    """
    reach = normal_quantile(2 * BIAS_CONFIDENCE - 1) * standard_error
    return min(max(left_out + reach, 0.0), float(n))


@lru_cache(maxsize=256)
def model_groups(section: Section) -> tuple[str, ...]:
    """Group of each cell: its GPU model where the section is by model, else "" for all."""
    if section.axes[0] != MODEL_AXIS or len(section.axes) == 1:
        return ("",) * section.length
    return tuple(cell.split("/", 1)[0] for cell in section.cells)


def gpus_of(capacity: Capacity, section: Section, group: str) -> int:
    """Count the GPUs of a group of cells."""
    return capacity.gpus_by_model.get(_model(section, group), 0) if group else capacity.gpus


def _model(section: Section, group: str) -> int:
    return list(dict.fromkeys(model_groups(section))).index(group)


@lru_cache(maxsize=256)
def reserved_cells(section: Section) -> tuple[int, ...]:
    """Indexes of the cells that are kept for later classes."""
    return tuple(i for i, cell in enumerate(section.cells) if is_reserved(cell))


def leaf_of(cell: str) -> str:
    """Last part of a cell's name."""
    return cell.rsplit("/", 1)[-1]


def is_reserved(cell: str) -> bool:
    """Whether a part of a cell's name is a place kept for a later class: zero, so all noise."""
    return any(part.startswith(RESERVED) for part in cell.split("/"))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
