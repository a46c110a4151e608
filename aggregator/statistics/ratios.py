"""Ratios of released sums: Fieller intervals, coverage.

A share divides one noisy sum by another. Its interval is found by inverting a test (Fieller 1954):
the set of shares r for which numerator - r x denominator could be pure noise. There is no bounded
set where the denominator itself could be noise: the share is then suppressed, not drawn with a
huge bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
"""Of every interval in a release."""

BELOW_NOISE_ERRORS = 2.0
"""A value under this many standard errors is below noise."""


@dataclass(frozen=True, slots=True)
class CellRatios:
    """Shares with their intervals; all NaN where the denominator is noise.

    value, low, high    float64[k]
    """

    value: Floats
    low: Floats
    high: Floats


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of the standard normal: 1.96 at 95 %."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def wilson_low(hits: npt.NDArray[np.int64], trials: npt.NDArray[np.int64]) -> Floats:
    """Lower ends of the 95 % score intervals of proportions; 0 without trials. Source: Wilson 1927.

    hits, trials    int64[k]
    """
    n, z2 = np.maximum(trials, 1).astype(np.float64), normal_quantile() ** 2
    share = hits / n
    half = np.sqrt(z2 * share * (1 - share) / n + (z2 / (2 * n)) ** 2)
    low = (share + z2 / (2 * n) - half) / (1 + z2 / n)
    return np.where(trials > 0, np.maximum(low, 0.0), 0.0)


def expected_by_chance(cells: int) -> float:
    """How many of so many cells rise above two standard errors by chance, if all are empty."""
    return cells * NormalDist().cdf(-BELOW_NOISE_ERRORS)


def fieller(
    numerator: Floats,
    denominator: Floats,
    var_numerator: Floats,
    var_denominator: Floats,
    covariance: Floats,
    sampling: Floats | float = 0.0,
    bound: Floats | float = 0.0,
) -> CellRatios:
    """Return numerator / denominator with its interval, suppressed where the denominator is noise.

    numerator ... covariance    float64[k], broadcast together; variances in the unit's square
    sampling    variance of numerator - r x denominator from measuring only some hosts, divided by
                r (1 - r), which bounds the spread between hosts of a share r (Bhatia and Davis
                2000); 0 when every host measured
    bound       what the denominator may be off by, beyond its noise: the interval holds those of
                all denominators within it
    Source      Fieller 1954; `sampling` adds one term to the same quadratic, as in Wilson's
                interval of a proportion
    """
    z2 = normal_quantile() ** 2
    given = (numerator, denominator, var_numerator, var_denominator, covariance, sampling, bound)
    arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in given))
    x, d, vx, vd, cov, extra, off = arrays
    known = (d > off) & ((d - off) ** 2 > z2 * vd)
    safe, off = np.where(known, d, 1.0), np.where(known, off, 0.0)
    value = np.where(known, x / safe, np.nan)
    c = x**2 - z2 * vx
    # An end moves away from zero as the denominator shrinks; at zero none of it counts.
    clear = np.sqrt(z2 * vx)
    least = safe + np.where(x > clear, off, -off)
    most = safe + np.where(x > -clear, -off, off)
    low, _ = _roots(least**2 - z2 * vd, x * least - z2 * cov, c, known)
    _, high = _roots(most**2 - z2 * vd, x * most - z2 * cov, c, known)
    wide_low, _ = _roots(least**2 - z2 * (vd - extra), x * least - z2 * (cov - extra / 2), c, known)
    _, wide_high = _roots(most**2 - z2 * (vd - extra), x * most - z2 * (cov - extra / 2), c, known)
    # The sampling term is a variance only for shares in [0, 1]; outside it the plain set stands.
    meets = known & (wide_high >= 0) & (wide_low <= 1)
    low = np.where(meets, np.fmin(low, np.clip(wide_low, 0, 1)), low)
    high = np.where(meets, np.fmax(high, np.clip(wide_high, 0, 1)), high)
    return CellRatios(value, low, high)


def _roots(
    a: Floats, half_b: Floats, c: Floats, known: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Both roots of a r^2 - 2 half_b r + c, NaN where unknown.

    A discriminant below zero by a rounding error counts as a double root.
    """
    leading = np.where(known, a, 1.0)
    spread = np.sqrt(np.maximum(half_b**2 - leading * c, 0.0))
    low = np.where(known, (half_b - spread) / leading, np.nan)
    high = np.where(known, (half_b + spread) / leading, np.nan)
    return low, high


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often intervals held the truth, with the exact binomial bounds of that rate."""

    hits: int
    trials: int
    rate: float
    low: float
    high: float

    def consistent_with(self, nominal: float) -> bool:
        """Whether the nominal rate lies within the bounds."""
        return self.low <= nominal <= self.high


def coverage(hits: int, trials: int, confidence: float = 0.99) -> Coverage:
    """Bound the coverage of intervals of which `hits` of `trials` held the truth.

    Source      Clopper and Pearson 1934: exact binomial bounds
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"need 0 <= hits <= trials and one trial at least, got {hits} of {trials}")
    from scipy.special import betaincinv  # not scipy.stats, which takes a second to load

    tail, misses = (1 - confidence) / 2, trials - hits
    low = float(betaincinv(hits, misses + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - tail)) if misses else 1.0
    return Coverage(hits, trials, hits / trials, low, high)


Z: Final = f"'{normal_quantile()!r}'::DOUBLE"
_Z2: Final = f"'{normal_quantile() ** 2!r}'::DOUBLE"
"""Read from text: a bare number would be a decimal first, and rounded twice."""

_INPUTS: Final = ("x", "d", "vx", "vd", "cov", "extra", "off")
_ENDS: Final = ("low", "high", "wide_low", "wide_high")
_STEPS: Final = (
    "known", "c", "least", "most",
    *(f"{part}_{end}" for part in ("a", "b", "plain") for end in _ENDS),
)  # fmt: skip
_MEETS: Final = "plain_wide_high >= 0 AND plain_wide_low <= 1"


def shares_sql(source: str) -> str:
    """Add `share`, `share_low` and `share_high` to rows, NULL where the denominator is noise.

    The arithmetic of `fieller` in the same order of operations: the same to the last bit.
    source      rows with numerator x, denominator d, their variances vx and vd, their covariance
                cov, and extra and off, as the `sampling` and `bound` of `ratios.fieller`; none NULL
    Returns     SQL of the same rows, without these seven
    """
    spread = "sqrt(greatest(b_{0} * b_{0} - a_{0} * c, 0.0))"
    ends = ", ".join(
        f"(b_{end} {'-' if end.endswith('low') else '+'} {spread.format(end)}) / a_{end} "
        f"AS plain_{end}"
        for end in _ENDS
    )
    terms = ", ".join(
        f"{of} * {of} - {_Z2} * {vd} AS a_{wide}{end}, x * {of} - {_Z2} * {cov} AS b_{wide}{end}"
        for end, of in (("low", "least"), ("high", "most"))
        for wide, vd, cov in (("", "vd", "cov"), ("wide_", "(vd - extra)", "(cov - extra / 2)"))
    )
    return f"""
SELECT * EXCLUDE ({", ".join((*_INPUTS, *_STEPS))}),
    CASE WHEN known THEN x / d END AS share,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN least(plain_low, greatest(least(plain_wide_low, 1.0), 0.0)) ELSE plain_low END
    END AS share_low,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN greatest(plain_high, greatest(least(plain_wide_high, 1.0), 0.0)) ELSE plain_high END
    END AS share_high
FROM (
    SELECT *, {ends}
    FROM (
        SELECT *, {terms}
        FROM (
            SELECT *, d > off AND (d - off) * (d - off) > {_Z2} * vd AS known,
                x * x - {_Z2} * vx AS c,
                d + CASE WHEN x > sqrt({_Z2} * vx) THEN off ELSE -off END AS least,
                d + CASE WHEN x > -sqrt({_Z2} * vx) THEN -off ELSE off END AS most
            FROM ({source})
        )
    )
)
"""  # noqa: S608  (texts of this package)
