"""The columns of a release, in SQL, from what a pack keeps of it.

The same arithmetic as `statistics.estimate`, in the same order of operations, so that a window
reads the same to the last bit before and after it is packed; tests hold it.
"""

from __future__ import annotations

from typing import Final

from aggregator.statistics.ratios import BELOW_NOISE_ERRORS
from aggregator.statistics.ratios_sql import Z, shares_sql

_UNITS: Final = "SELECT *, steps * scale AS value, sqrt(variance) AS standard_error FROM ({packed})"
_INPUTS: Final = f"""
SELECT *, value AS x, whole AS d, variance AS vx, whole_variance AS vd, covariance AS cov,
    sampling AS extra
FROM ({_UNITS})
"""

DERIVED: Final = f"""
SELECT series, cohort, window_start, window_s, section, cell, unit, kind, value, standard_error,
    value - {Z} * standard_error AS low,
    value + {Z} * standard_error AS high,
    share, share_low, share_high,
    value < {BELOW_NOISE_ERRORS!r}::DOUBLE * standard_error AS below_noise,
    bias_bound, n_hosts, epsilon, delta, domain, released_at, rejections
FROM ({shares_sql(_INPUTS)})
"""
"""To be formatted with `packed`, which selects `series` and `pack_files.CELL_SCHEMA`."""
