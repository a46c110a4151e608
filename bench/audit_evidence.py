"""What trials show of a mechanism, and a two-sided verdict: neither too little noise nor too much.

The adversary sees the sum over the honest hosts. In world 0 one of them reports nothing, in world 1
the worst row there is. Every threshold on the best statistic gives a point of the trade-off curve
between the two errors; the exact curve follows from the pmf of a sum of discrete Gaussians, and
measured points must lie on it, not merely above it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from bench.audit_mechanism import BOUND, CAP, DELTA_SQ, HONEST, SIGMA_1024, WIDTH, Mechanism, Q
from privacy.noise_table import SeededBytes

IDLE: Final = (0, 0, 0)
WORST: Final = (CAP, CAP, 0)
OTHER: Final = (30, 10, 20)
"""Readings of the second honest host: whole steps, so that rounding adds nothing to the noise."""
PROBES: Final = ((35, 35, 10), (10**9, 10**9, 10**9), (39, 1, 40), (7, 13, 29))
"""Rows between steps, above the bound, and both: what rounding and clipping must survive."""

REACH: Final = 400
"""Statistics are counted from -REACH to REACH steps: 50 sigma."""
Z_LIMIT: Final = 6.5
P_LIMIT: Final = 1e-10
DIRECTIONS: Final = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])

Counts = NDArray[np.int64]


@dataclass(slots=True)
class Evidence:
    """Counts of trials; two of them add up, so that a cut-off run goes on.

    curve       int64[2 worlds, directions, 2 REACH + 1]
    noise       int64[2 REACH + 1], each host's own noise
    products    float64[3]: noise of two hosts, of two coordinates, of two windows
    probe_sums  int64[probes, WIDTH], steps
    faults      what must never happen, and did
    """

    trials: int = 0
    curve: Counts = field(
        default_factory=lambda: np.zeros((2, len(DIRECTIONS), 2 * REACH + 1), np.int64)
    )
    noise: Counts = field(default_factory=lambda: np.zeros(2 * REACH + 1, np.int64))
    products: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    probe_sums: Counts = field(default_factory=lambda: np.zeros((len(PROBES), WIDTH), np.int64))
    faults: set[str] = field(default_factory=set)

    def add(self, mechanism: Mechanism, trials: int, seed: int) -> Self:
        """Run `trials` trials of both worlds."""
        self.trials += trials
        noises = []
        for world, row in enumerate((IDLE, WORST)):
            rows = np.tile(np.array([row, OTHER], dtype=np.int64), (trials, 1))
            reported = mechanism.report(rows, mechanism.sampler(seed, world))
            self._check_type(reported)
            whole = reported.astype(np.int64).reshape(trials, HONEST, 2 + WIDTH)
            noises.append(self._count(world, whole, row))
        first, second = noises
        self.products += (
            (first[:, 0] * first[:, 1]).sum() / WIDTH,
            (first[:, :, 0] * first[:, :, 1]).sum() / HONEST,
            (first * second).sum() / (HONEST * WIDTH),
        )
        self._probe(mechanism, trials, seed)
        return self

    def _check_type(self, reported: NDArray[Any]) -> None:
        if reported.dtype.kind != "i":
            self.faults.add(f"reports are {reported.dtype}, not integers")
        if (reported[:, :2] != 1).any():
            self.faults.add("a check word is not 1")

    def _count(self, world: int, reported: Counts, row: tuple[int, ...]) -> Counts:
        for place, direction in enumerate(DIRECTIONS):
            seen = reported[:, :, 2:].sum(axis=1) @ direction - np.array(OTHER) // Q @ direction
            self.curve[world, place] += _histogram(seen)
        noise: Counts = reported[:, :, 2:] - np.array([row, OTHER]) // Q
        self.noise += _histogram(noise.ravel())
        return noise

    def _probe(self, mechanism: Mechanism, trials: int, seed: int) -> None:
        # Uniforms of their own for every run: runs that share them would count as one trial each
        # time, and their common deviation as a bias (15.8 sigma at fifty runs).
        for place, row in enumerate(PROBES):
            rows = np.tile(np.array(row, dtype=np.int64), (trials, 1))
            steps = mechanism.encode(rows, SeededBytes(seed, f"probe {place}"))
            self.probe_sums[place] += steps.sum(axis=0)
            if (steps**2).sum(axis=1).max() > DELTA_SQ or steps.sum(axis=1).max() > BOUND // Q:
                self.faults.add("a host passes its bound")

    def merge(self, other: Evidence) -> None:
        """Add another run's counts."""
        self.trials += other.trials
        self.curve += other.curve
        self.noise += other.noise
        self.products += other.products
        self.probe_sums += other.probe_sums
        self.faults |= other.faults

    def verdict(self) -> tuple[str, ...]:
        """Return why the mechanism is not the true one; empty when nothing speaks against it."""
        found = sorted(self.faults)
        checks = {
            "trade-off curve": curve_deviation(self),
            "dependence between draws": dependence(self),
            "bias of rounding": rounding_bias(self),
        }
        found += [f"{name}: {z:.1f} sigma" for name, z in checks.items() if z > Z_LIMIT]
        p = noise_p_value(self)
        return (*found, f"shape of the noise: p = {p:.1e}") if p < P_LIMIT else tuple(found)


def gaussian_pmf(sigma_1024: int, draws: int) -> NDArray[np.float64]:
    """Return the pmf of a sum of `draws` discrete Gaussians over -REACH..REACH."""
    x = np.arange(-REACH, REACH + 1, dtype=np.float64)
    one = np.exp(-(x**2) / (2 * (sigma_1024 / 1024) ** 2))
    one /= one.sum()
    total = one
    for _ in range(draws - 1):
        total = np.convolve(total, one, mode="same")
    return total


def curve_deviation(evidence: Evidence) -> float:
    """Return the greatest distance of a measured point from the exact curve, in standard errors."""
    worst = 0.0
    for place, direction in enumerate(DIRECTIONS):
        pmf = gaussian_pmf(SIGMA_1024, HONEST * int(direction.sum()))
        for world, row in enumerate((IDLE, WORST)):
            shift = int(np.array(row) // Q @ direction)
            exact = np.clip(np.cumsum(np.roll(pmf, shift)), 0, 1)
            measured = np.cumsum(evidence.curve[world, place]) / evidence.trials
            usable = (exact > 1e-3) & (exact < 1 - 1e-3)
            error = np.sqrt(exact * (1 - exact) / evidence.trials)[usable]
            worst = max(worst, float(np.abs((measured - exact)[usable] / error).max()))
    return worst


def noise_p_value(evidence: Evidence) -> float:
    """Chi-square of all draws against the exact pmf, cells below 20 expected joined into tails."""
    total = int(evidence.noise.sum())
    expected = gaussian_pmf(SIGMA_1024, 1) * total
    core = expected >= 20
    cells = np.append(expected[core], expected[~core].sum())
    counts = np.append(evidence.noise[core], evidence.noise[~core].sum())
    cells, counts = cells[cells > 1e-9], counts[cells > 1e-9]
    return float(chi2.sf(((counts - cells) ** 2 / cells).sum(), len(cells) - 1))


def dependence(evidence: Evidence) -> float:
    """Return the greatest correlation of draws that share nothing, in standard errors."""
    variance = (SIGMA_1024 / 1024) ** 2
    averaged = np.sqrt([WIDTH, HONEST, HONEST * WIDTH])
    deviations = evidence.products * averaged / (variance * np.sqrt(max(evidence.trials, 1)))
    return float(np.abs(deviations).max())


def rounding_bias(evidence: Evidence) -> float:
    """Return how far mean steps lie from the clipped readings, in standard errors."""
    worst = 0.0
    for place, row in enumerate(PROBES):
        clipped = np.minimum(np.array(row), CAP)
        if clipped.sum() > BOUND:
            clipped = clipped * BOUND // clipped.sum()
        mean = evidence.probe_sums[place] / evidence.trials
        part = clipped % Q / Q
        error = np.sqrt(np.maximum(part * (1 - part), 0.01) / evidence.trials)
        worst = max(worst, float(np.abs((mean - clipped / Q) / error).max()))
    return worst


def measured_mu(evidence: Evidence) -> float:
    """Return the mu that the middle of the measured curve shows; the true one is 1."""
    from scipy.stats import norm

    middle = int(np.array(WORST).sum()) // Q // 2 + REACH
    cumulative = np.cumsum(evidence.curve[:, -1], axis=1)[:, middle] / evidence.trials
    return float(norm.ppf(cumulative[0]) - norm.ppf(cumulative[1]))


def _histogram(values: Counts) -> Counts:
    inside = np.clip(values, -REACH, REACH) + REACH
    return np.bincount(inside, minlength=2 * REACH + 1)
