"""The path from readings to noisy steps as hosts run it, and copies of it with a planted bug each.

The setting is as hard as it gets: mu = 1, T = 1, one section with the whole budget, three hosts of
which one is known to the adversary. So sigma_local is 4 steps, and one host moves the sum by as
much as the noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privacy.calibrate import MILLION, honest_hosts, sensitivity_sq_steps, sigma_local_1024
from privacy.noise import NoiseSampler
from privacy.noise_live import LiveSampler
from privacy.noise_table import SeededSampler
from privacy.quantise import RandomBytes, clip_rows, round_steps, uniform_below

Q: Final = 10
CAP: Final = 4 * Q
BOUND: Final = 8 * Q
WIDTH: Final = 3
N_MIN: Final = 3
CORRUPTED: Final = 1
HONEST: Final = honest_hosts(N_MIN, N_MIN, CORRUPTED)
DELTA_SQ: Final = sensitivity_sq_steps(CAP, BOUND, Q)
SIGMA_1024: Final = sigma_local_1024(DELTA_SQ, 1, MILLION, 10**9, HONEST)

Rows = NDArray[np.int64]
Encode = Callable[[Rows, RandomBytes], Rows]


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
    """Clip and round as every host does."""
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


def _sigma(name: str, sigma_1024: int, few: int) -> Mechanism:
    return replace(TRUE, name=name, sigma_1024=sigma_1024, few=few)


def _draws(name: str, fault: Callable[[NDArray[Any], int], Any], few: int) -> Mechanism:
    return replace(TRUE, name=name, sampler=_faulty(fault), few=few)


def _encodes(name: str, faulty_encode: Encode, few: int) -> Mechanism:
    return replace(TRUE, name=name, encode=faulty_encode, few=few)


_FEW: Final = 40_000
_MANY: Final = 2_000_000

PLANTED: Final = (
    _sigma("half of sigma", SIGMA_1024 // 2, _FEW),
    _sigma("sigma 5 % low", SIGMA_1024 * 95 // 100, _FEW),
    _sigma("sigma 1 % low", SIGMA_1024 * 99 // 100, _MANY),
    _sigma("sigma 5 % high", SIGMA_1024 * 105 // 100, _FEW),
    _sigma("a corrupted host counted as honest", sigma_local_1024(
        DELTA_SQ, 1, MILLION, 10**9, N_MIN), _FEW),
    _sigma("sensitivity off by a square root", sigma_local_1024(
        BOUND // Q, 1, MILLION, 10**9, HONEST), _FEW),
    _draws("no noise on one coordinate", _missing, _FEW),
    _draws("tail cut at three sigma", _truncated, _FEW),
    _draws("hosts share their noise", _shared, _FEW),
    _draws("coordinates share one draw", _one_draw, _FEW),
    _draws("noise on a check word", _on_check_words, _FEW),
    _draws("floating-point noise", _floats, _FEW),
    _draws("rounded floating-point noise", _rounded_floats, _MANY),
    _draws("Laplace noise of the same variance", _laplace, _FEW),
    _draws("twelve random bits a draw", _coarse, _FEW),
    _encodes("each coordinate rounded by its own coin", _each_rounds, _FEW),
    _encodes("rounding always down", _floors, _FEW),
    _encodes("no clipping", _unclipped, _FEW),
    _encodes("coordinates capped, their sum not", _cap_only, _FEW),
    replace(
        TRUE,
        name="seeded stream begun again in each window",
        sampler=lambda seed, _window: SeededSampler(seed),
        few=_FEW,
    ),
)  # fmt: skip
"""Every bug the audit must catch."""
