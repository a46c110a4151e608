"""The sampler audit at length: make bench-audit.

The true mechanism must pass a two-sided trade-off test over ten million trials, from a seeded
stream and from the operating system's generator; every planted bug must be caught.

The adversary sees the sum over the honest hosts. In world 0 one of them reports nothing, in world 1
the worst row there is. Every threshold on the best statistic gives a point of the trade-off curve
between the two errors; the exact curve follows from the pmf of a sum of discrete Gaussians, and
measured points must lie on it, not merely above it.

The setting is as hard as it gets: mu = 1, T = 1, one section with the whole budget, three hosts of
which one is known to the adversary. So sigma_local is 4 steps, and one host moves the sum by as
much as the noise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from privacy.calibrate import MILLION, honest_hosts, sensitivity_sq_steps, sigma_local_1024
from privacy.noise import NoiseSampler
from privacy.noise_table import LiveSampler, SeededBytes, SeededSampler
from privacy.quantise import RandomBytes, clip_rows, round_steps, uniform_below

Q: Final = 10
CAP: Final = 4 * Q
BOUND: Final = 8 * Q
WIDTH: Final = 3
N_MIN: Final = 3
CORRUPTED: Final = 1
HONEST: Final = honest_hosts(N_MIN, N_MIN, CORRUPTED)
DELTA_SQ: Final = sensitivity_sq_steps(CAP, BOUND, Q)


def _sigma_of(delta_sq: int, hosts: int) -> int:
    return sigma_local_1024(delta_sq, 1, MILLION, 10**9, hosts)


SIGMA_1024: Final = _sigma_of(DELTA_SQ, HONEST)
Rows = NDArray[np.int64]
Encode = Callable[[Rows, RandomBytes], Rows]
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
TRIALS: Final = 10_000_000
CHUNK: Final = 200_000
SEED: Final = 20_251_121


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How hosts encode and draw.

    sigma_1024  what each host believes its noise must be
    encode      rows in base units -> steps
    sampler     seed and window -> the sampler of that window
    few         trials that show its bug beyond doubt; None for the true one
    """

    name: str
    sigma_1024: int
    encode: Encode
    sampler: Callable[[int, int], NoiseSampler]
    few: int | None = None

    def report(self, rows: Rows, sampler: NoiseSampler) -> NDArray[Any]:
        """Return int64[hosts, 2 + WIDTH]: two check words, then noisy steps."""
        steps = self.encode(rows, os.urandom)
        words = np.ones((len(rows), 2), dtype=np.int64)
        sigmas = np.array([0, 0, *[self.sigma_1024] * WIDTH], dtype=np.int64)
        return np.hstack((words, steps)) + sampler.sample(len(rows), sigmas)


def encode(rows: Rows, random_bytes: RandomBytes) -> Rows:
    clipped = clip_rows(rows, CAP, BOUND)
    return round_steps(clipped, Q, uniform_below(Q, len(rows), random_bytes))


def seeded(seed: int, window: int) -> NoiseSampler:
    """One stream per window, as the demo and the simulator draw."""
    return SeededSampler(seed, f"window {window}")


def from_system(seed: int, window: int) -> NoiseSampler:
    """Noise from the operating system: what a live agent draws."""
    del seed, window
    return LiveSampler(os.urandom)


TRUE: Final = Mechanism("no bug", SIGMA_1024, encode, seeded)


class _Wrapped:
    """The table sampler with a fault put over what it draws."""

    seeded = True

    def __init__(self, seed: int, window: int, fault: Callable[[NDArray[Any], int], Any]) -> None:
        self._inner = SeededSampler(seed, f"window {window}")
        self._fault = fault

    def sample(self, hosts: int, sigma_1024: Rows) -> Rows:
        noise = self._inner.sample(hosts, sigma_1024)
        faulty: Rows = self._fault(noise, int(sigma_1024.max()))
        return faulty


def _faulty(fault: Callable[[NDArray[Any], int], Any]) -> Callable[[int, int], NoiseSampler]:
    return lambda seed, window: _Wrapped(seed, window, fault)


def _missing(noise: NDArray[Any], _sigma: int) -> NDArray[Any]:
    noise[:, 3] = 0
    return noise


def _truncated(noise: NDArray[Any], sigma: int) -> NDArray[Any]:
    limit = 3 * sigma // 1024
    return noise.clip(-limit, limit)


def _shared(noise: NDArray[Any], _sigma: int) -> NDArray[Any]:
    """All hosts of one window draw the same: the colluder knows its own, and so the others'."""
    noise[1::HONEST] = noise[0::HONEST]
    return noise


def _one_draw(noise: NDArray[Any], _sigma: int) -> NDArray[Any]:
    noise[:, 2:] = noise[:, 2:3]
    return noise


def _on_check_words(noise: NDArray[Any], _sigma: int) -> NDArray[Any]:
    noise[:, 0] = noise[:, 2] // 4
    return noise


def _floats(noise: NDArray[Any], sigma: int) -> NDArray[Any]:
    drawn = np.random.default_rng(int(abs(noise).sum())).normal(0, sigma / 1024, noise.shape)
    drawn[:, :2] = 0
    return drawn


def _rounded_floats(noise: NDArray[Any], sigma: int) -> NDArray[Any]:
    drawn: NDArray[Any] = np.rint(_floats(noise, sigma)).astype(np.int64)
    return drawn


def _laplace(noise: NDArray[Any], sigma: int) -> NDArray[Any]:
    rng = np.random.default_rng(int(abs(noise).sum()))
    drawn = np.rint(rng.laplace(0, sigma / 1024 / np.sqrt(2), noise.shape)).astype(np.int64)
    drawn[:, :2] = 0
    return drawn


def _coarse(noise: NDArray[Any], sigma: int) -> NDArray[Any]:
    """Draws by 12 random bits each: the tail ends where 1/4096 does."""
    from scipy.stats import norm

    rng = np.random.default_rng(int(abs(noise).sum()))
    uniform = (rng.integers(0, 1 << 12, noise.shape) + 0.5) / (1 << 12)
    drawn = np.rint(norm.ppf(uniform) * sigma / 1024).astype(np.int64)
    drawn[:, :2] = 0
    return drawn


def _each_rounds(rows: Rows, random_bytes: RandomBytes) -> Rows:
    """Unbiased, but each coordinate by its own coin: sums may pass the bound."""
    clipped = clip_rows(rows, CAP, BOUND)
    coins = uniform_below(Q, rows.size, random_bytes).reshape(rows.shape)
    return (clipped + coins) // Q


def _floors(rows: Rows, _random_bytes: RandomBytes) -> Rows:
    return clip_rows(rows, CAP, BOUND) // Q


def _unclipped(rows: Rows, random_bytes: RandomBytes) -> Rows:
    return round_steps(rows, Q, uniform_below(Q, len(rows), random_bytes))


def _cap_only(rows: Rows, random_bytes: RandomBytes) -> Rows:
    clipped = clip_rows(rows, CAP, WIDTH * CAP)
    return round_steps(clipped, Q, uniform_below(Q, len(rows), random_bytes))


_FEW: Final = 40_000


def _sigma(name: str, sigma_1024: int, few: int = _FEW) -> Mechanism:
    return replace(TRUE, name=name, sigma_1024=sigma_1024, few=few)


def _draws(name: str, fault: Callable[[NDArray[Any], int], Any], few: int = _FEW) -> Mechanism:
    return replace(TRUE, name=name, sampler=_faulty(fault), few=few)


def _encodes(name: str, faulty_encode: Encode) -> Mechanism:
    return replace(TRUE, name=name, encode=faulty_encode, few=_FEW)


_MANY: Final = 2_000_000
PLANTED: Final = (
    _sigma("half of sigma", SIGMA_1024 // 2),
    _sigma("sigma 5 % low", SIGMA_1024 * 95 // 100),
    _sigma("sigma 1 % low", SIGMA_1024 * 99 // 100, _MANY),
    _sigma("sigma 5 % high", SIGMA_1024 * 105 // 100),
    _sigma("a corrupted host counted as honest", _sigma_of(DELTA_SQ, N_MIN)),
    _sigma("sensitivity off by a square root", _sigma_of(BOUND // Q, HONEST)),
    _draws("no noise on one coordinate", _missing),
    _draws("tail cut at three sigma", _truncated),
    _draws("hosts share their noise", _shared),
    _draws("coordinates share one draw", _one_draw),
    _draws("noise on a check word", _on_check_words),
    _draws("floating-point noise", _floats),
    _draws("rounded floating-point noise", _rounded_floats, _MANY),
    _draws("Laplace noise of the same variance", _laplace),
    _draws("twelve random bits a draw", _coarse),
    _encodes("each coordinate rounded by its own coin", _each_rounds),
    _encodes("rounding always down", _floors),
    _encodes("no clipping", _unclipped),
    _encodes("coordinates capped, their sum not", _cap_only),
    replace(
        TRUE,
        name="seeded stream begun again in each window",
        sampler=lambda seed, _window: SeededSampler(seed),
        few=_FEW,
    ),
)
"""Every bug the audit must catch."""


@dataclass(slots=True)
class Evidence:
    """Counts of trials; several runs add up.

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


TRUE_ONES: Final = (
    replace(TRUE, name="table sampler, seeded"),
    replace(TRUE, name="live agent's sampler", sampler=from_system),
)


def measure(kept: Parts) -> Measured:
    """Run the audit: the true mechanism must pass, and every planted bug must be caught."""
    trials = kept.scaled(TRIALS)

    def reasons(mechanism: Mechanism) -> Sequence[str]:
        of = min(mechanism.few or trials, trials)
        name = re.sub("[^a-z0-9]+", "-", mechanism.name.lower())
        found: Sequence[str] = kept.get(name, partial(_examine, mechanism, of))["reasons"]
        return found

    passed = [not reasons(one) for one in TRUE_ONES]
    caught = [bool(reasons(bug)) for bug in PLANTED]
    print(f"{sum(passed)} of {len(passed)} true mechanisms pass, "
          f"{sum(caught)} of {len(caught)} planted bugs caught")  # fmt: skip
    if not all(passed):
        raise SystemExit("expected the true mechanism to pass: nothing is written")
    figures = [
        Figure("audit_planted_bugs_caught", sum(caught), "bugs", goal=len(PLANTED)),
        Figure("audit_planted_bugs", len(PLANTED), "bugs"),
        Figure("audit_trials", trials, "trials of each true mechanism", goal=TRIALS),
    ]
    return Measured(figures, wrong=() if all(caught) else ("a planted bug was not caught",))


def _examine(mechanism: Mechanism, trials: int) -> Part:
    evidence = Evidence()
    while evidence.trials < trials:
        evidence.add(mechanism, min(CHUNK, trials - evidence.trials), SEED + evidence.trials)
    return {"reasons": evidence.verdict(), "mu": measured_mu(evidence)}
