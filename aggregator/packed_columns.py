"""The columns of a release, in SQL, from what a pack keeps of it.

The same arithmetic as `statistics.estimate` and `ratios.fieller`, in the same order of operations,
so that a window reads the same to the last bit before and after it is packed; tests hold it.
"""

from __future__ import annotations

from typing import Final

from .ratios import BELOW_NOISE_ERRORS, normal_quantile

_Z: Final = f"'{normal_quantile()!r}'::DOUBLE"
_Z2: Final = f"'{normal_quantile() ** 2!r}'::DOUBLE"
"""Read from text: a bare number would be a decimal first, and rounded twice."""

_KNOWN: Final = f"""
SELECT *, steps * scale AS value, sqrt(variance) AS standard_error,
    whole > 0 AND whole * whole > {_Z2} * whole_variance AS known
FROM ({{packed}})
"""
_ROOTS: Final = f"""
SELECT *,
    whole * whole - {_Z2} * whole_variance AS a,
    value * whole - {_Z2} * covariance AS b,
    value * value - {_Z2} * variance AS c,
    whole * whole - {_Z2} * (whole_variance - sampling) AS wide_a,
    value * whole - {_Z2} * (covariance - sampling / 2) AS wide_b
FROM ({_KNOWN})
"""
_SPREADS: Final = f"""
SELECT *,
    sqrt(greatest(b * b - a * c, 0.0)) AS spread,
    sqrt(greatest(wide_b * wide_b - wide_a * c, 0.0)) AS wide_spread
FROM ({_ROOTS})
"""
_ENDS: Final = f"""
SELECT *,
    (b - spread) / a AS plain_low, (b + spread) / a AS plain_high,
    (wide_b - wide_spread) / wide_a AS wide_low, (wide_b + wide_spread) / wide_a AS wide_high
FROM ({_SPREADS})
"""
_MEETS: Final = "wide_high >= 0 AND wide_low <= 1"

DERIVED: Final = f"""
SELECT series, cohort, window_start, window_s, section, cell, unit, kind, value, standard_error,
    value - {_Z} * standard_error AS low,
    value + {_Z} * standard_error AS high,
    CASE WHEN known THEN value / whole END AS share,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN least(plain_low, greatest(least(wide_low, 1.0), 0.0)) ELSE plain_low END
    END AS share_low,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN greatest(plain_high, greatest(least(wide_high, 1.0), 0.0)) ELSE plain_high END
    END AS share_high,
    value < {BELOW_NOISE_ERRORS!r}::DOUBLE * standard_error AS below_noise,
    bias_bound, n_hosts, epsilon, delta, domain, released_at, rejections
FROM ({_ENDS})
"""
"""To be formatted with `packed`, which selects `series` and `pack_files.CELL_SCHEMA`."""
