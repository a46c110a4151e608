"""Shares with their Fieller intervals, in SQL.

The same arithmetic as `ratios.fieller`, in the same order of operations, so that a number reads the
same to the last bit wherever it is made; tests hold it.
"""

from __future__ import annotations

from typing import Final

from .ratios import normal_quantile

Z: Final = f"'{normal_quantile()!r}'::DOUBLE"
_Z2: Final = f"'{normal_quantile() ** 2!r}'::DOUBLE"
"""Read from text: a bare number would be a decimal first, and rounded twice."""

_INPUTS: Final = ("x", "d", "vx", "vd", "cov", "extra")
_STEPS: Final = (
    "known", "a", "b", "c", "wide_a", "wide_b", "spread", "wide_spread", "plain_low", "plain_high",
    "wide_low", "wide_high",
)  # fmt: skip
_MEETS: Final = "wide_high >= 0 AND wide_low <= 1"


def shares_sql(source: str) -> str:
    """Add `share`, `share_low` and `share_high` to rows, NULL where the denominator is noise.

    source      rows with numerator x, denominator d, their variances vx and vd, their covariance
                cov, and extra, as the `sampling` of `ratios.fieller`; none NULL
    Returns     SQL of the same rows, without these six
    """
    return f"""
SELECT * EXCLUDE ({", ".join((*_INPUTS, *_STEPS))}),
    CASE WHEN known THEN x / d END AS share,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN least(plain_low, greatest(least(wide_low, 1.0), 0.0)) ELSE plain_low END
    END AS share_low,
    CASE WHEN known THEN CASE WHEN {_MEETS}
        THEN greatest(plain_high, greatest(least(wide_high, 1.0), 0.0)) ELSE plain_high END
    END AS share_high
FROM (
    SELECT *,
        (b - spread) / a AS plain_low, (b + spread) / a AS plain_high,
        (wide_b - wide_spread) / wide_a AS wide_low, (wide_b + wide_spread) / wide_a AS wide_high
    FROM (
        SELECT *,
            sqrt(greatest(b * b - a * c, 0.0)) AS spread,
            sqrt(greatest(wide_b * wide_b - wide_a * c, 0.0)) AS wide_spread
        FROM (
            SELECT *, d > 0 AND d * d > {_Z2} * vd AS known,
                d * d - {_Z2} * vd AS a, x * d - {_Z2} * cov AS b, x * x - {_Z2} * vx AS c,
                d * d - {_Z2} * (vd - extra) AS wide_a,
                x * d - {_Z2} * (cov - extra / 2) AS wide_b
            FROM ({source})
        )
    )
)
"""  # noqa: S608  (texts of this package)
