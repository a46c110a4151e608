"""How much noise a plan needs, in integers alone: planner and agent agree to the bit.

Symbols as in the protocol: a, B, q bounds and step of a section in base units; T windows any week
touches; w weight in millionths; h honest hosts of an admitted batch. Sigmas are in 1/1024 steps.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import TYPE_CHECKING, Final

from .errors import ParameterError

if TYPE_CHECKING:
    import mpmath

WEEK_S: Final = 7 * 24 * 3600
SIGMA_UNIT: Final = 1024
MILLION: Final = 10**6
EPSILON_MILLIONTHS: Final = 2 * MILLION
DELTA_1E12: Final = 1_000
"""What a host spends in a week unless its operator says otherwise: epsilon 2 at delta 1e-9."""
MIN_SIGMA_1024: Final = 2 * SIGMA_UNIT
"""Below two steps a sum of discrete Gaussians is visibly not one (gap 7.2e-17 at sigma 2)."""

MAX_SIGMA_1024: Final = ((1 << 63) - 1) * 10 // (134 * SIGMA_UNIT)
"""Above it 13.4 sigma, the reach of a sampler, come near the ends of int64, where it saturates."""

_WORD_LIMIT: Final = 1 << 31
_TAIL_SIGMAS: Final = 12


def sensitivity_sq_steps(a: int, B: int, q: int) -> int:
    """Return the square of a host's greatest L2 norm, in steps, under zero-out adjacency.

    Delta^2 = floor(B/a) a^2 + (B mod a)^2, reached by as many full coordinates as the L1 bound
    pays for. A histogram has a = B; m indicators have a = q = 1 and B = m; k clipped means B = k a.
    Raises      ParameterError unless 0 < a <= B and both are multiples of q
    """
    if not 0 < a <= B:
        raise ParameterError("section bounds", "0 < coordinate cap <= L1 bound", (a, B))
    if q < 1 or a % q or B % q:
        expected = "coordinate cap and L1 bound are multiples of q >= 1"
        raise ParameterError("steps of a section", expected, (a, B, q))
    return (B // a) * (a // q) ** 2 + (B % a // q) ** 2


@lru_cache(maxsize=64)
def gdp_mu_1e9(epsilon_millionths: int, delta_1e12: int) -> int:
    """Return the largest mu, in 1e-9, whose Gaussian trade-off is within (epsilon, delta).

    delta(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
    Raises      ParameterError when epsilon is outside (0, 100] or delta outside (0, 1e-3]
    Source      Dong, Roth, Su 2019, corollary 2.13
    """
    if not 0 < epsilon_millionths <= 100 * MILLION:
        raise ParameterError("epsilon", "0 < epsilon <= 100", epsilon_millionths / MILLION)
    if not 0 < delta_1e12 <= 10**9:
        raise ParameterError("delta", "0 < delta <= 1e-3", delta_1e12 / 10**12)
    import mpmath  # a tenth of a second to load: most commands search for no bound

    low, high = 1, 10**11
    with mpmath.workdps(60):
        epsilon = mpmath.mpf(epsilon_millionths) / MILLION
        delta = mpmath.mpf(delta_1e12) / 10**12
        while high - low > 1:
            middle = (low + high) // 2
            if gaussian_delta(epsilon, mpmath.mpf(middle) / 10**9) <= delta:
                low = middle
            else:
                high = middle
    return low


def gaussian_delta(epsilon: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
    """Return delta at epsilon of a mu-GDP mechanism, at mpmath's working precision."""
    import mpmath

    beyond = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - beyond


def windows_touched(window_s: int, task_windows: int) -> int:
    """Return T: the most windows of a series that any 168 hours can touch.

    task_windows  windows of the series over all its versions
    """
    if window_s < 1 or task_windows < 1:
        raise ParameterError("windows", "window_s >= 1 and >= 1 window", (window_s, task_windows))
    return min(-(-WEEK_S // window_s) + 1, task_windows)


def sigma_local_1024(delta_sq: int, T: int, weight_millionths: int, mu_1e9: int, h: int) -> int:
    """Return one host's noise, the least multiple of 1/1024 step that carries its share.

    sigma_local^2 >= Delta^2 T / (w mu^2 h); h = 1 gives sigma_total, the scheme `local`
    Raises      ParameterError when an argument is not positive, w exceeds 1 or the noise is more
                than a sampler can draw
    """
    if min(delta_sq, T, mu_1e9, h) < 1:
        raise ParameterError("calibration", "Delta^2, T, mu and h >= 1", (delta_sq, T, mu_1e9, h))
    if not 0 < weight_millionths <= MILLION:
        raise ParameterError("section weight", "0 < weight <= 1", weight_millionths / MILLION)
    numerator = delta_sq * T * MILLION * 10**18 * SIGMA_UNIT**2
    denominator = weight_millionths * mu_1e9**2 * h
    sigma_1024 = isqrt(-(-numerator // denominator) - 1) + 1
    check_sigma_range(sigma_1024)
    return sigma_1024


def honest_hosts(n_max: int, n_min: int, t: int) -> int:
    """Return h = n_min - t after checking the cohort's bounds.

    n_max       hosts on the roster; n_min fewest hosts of a released batch; t hosts whose data and
                noise someone may know
    Raises      ParameterError when t is below 10 % of the roster, n_min exceeds the roster, or
                h < n_min / 2
    """
    if not 1 <= n_min <= n_max:
        raise ParameterError("n_min", f"1 .. {n_max} (the roster)", n_min)
    if 10 * t < n_max:
        raise ParameterError("corrupted hosts t", f"t >= 10 % of the roster ({n_max})", t)
    h = n_min - t
    if h < 1 or 2 * h < n_min:
        raise ParameterError("honest hosts h = n_min - t", f"h >= n_min/2 ({n_min / 2:g})", h)
    return h


def check_weights(weights_millionths: list[int]) -> None:
    """Raise ParameterError when the weights of all sections of all tasks of a host exceed 1."""
    total = sum(weights_millionths)
    if total > MILLION:
        raise ParameterError("sum of weights", "at most 1", total / MILLION)


def check_catalogue_sigma(sigma_1024: int) -> None:
    """Raise ParameterError when a section's noise is below two steps per coordinate."""
    if sigma_1024 < MIN_SIGMA_1024:
        raise ParameterError(
            "sigma_local", "at least 2 steps per coordinate", sigma_1024 / SIGMA_UNIT,
            "each host's own part of the noise is too small to be drawn safely: take a smaller "
            "epsilon, less weight for the section, or fewer hosts",
        )  # fmt: skip


def check_sigma_range(sigma_1024: int) -> None:
    """Raise ParameterError when a sampler's draws could reach the ends of int64.

    A draw that saturates there is no noise: the value under it shows.
    """
    if sigma_1024 > MAX_SIGMA_1024:
        raise ParameterError("sigma", f"at most {MAX_SIGMA_1024} (1/1024 steps)", sigma_1024)


def check_modulus(n_max: int, coordinate_steps: int, sigma_1024: int) -> None:
    """Raise ParameterError unless 2^32 > 2 (N_max C + 12 sigma_local sqrt(N_max)).

    coordinate_steps  C = a/q, the most steps one host adds to one coordinate
    """
    room = _WORD_LIMIT - n_max * coordinate_steps
    tail_sq = (_TAIL_SIGMAS * sigma_1024) ** 2 * n_max
    if room <= 0 or (room * SIGMA_UNIT) ** 2 <= tail_sq:
        raise ParameterError(
            "modulus",
            "2^32 > 2 (N_max C + 12 sigma_local sqrt(N_max))",
            f"N_max {n_max}, C {coordinate_steps}, sigma_local {sigma_1024 / SIGMA_UNIT:g}",
        )
