"""Which released cells differ from zero, of all that are looked at together.

One cell in 44 that is truly empty passes two standard errors, so a table of many cells has rows
that are not there. The step-up rule bounds the share of such rows among those that are shown.
Families, and what the rate promises: docs/statistics.md.
"""

from __future__ import annotations

import math
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from .ratios import Floats

FALSE_DISCOVERY_RATE: Final = 0.01
"""Of every table, view and chart."""

_upper_tail = np.frompyfunc(lambda z: 0.5 * math.erfc(z / math.sqrt(2.0)), 1, 1)


def p_values(z: npt.ArrayLike) -> Floats:
    """Give the chance that noise alone is as high: one-sided, by the normal distribution.

    z           float[...], values in standard errors
    """
    return np.asarray(_upper_tail(np.asarray(z, np.float64)), np.float64)


def q_values(values: Floats, standard_errors: Floats, *, independent: bool = True) -> Floats:
    """Give each cell the smallest false-discovery rate at which it is told from zero.

    values, standard_errors    float64[k], one family, same unit; a cell without an error is as
                               exact as its sign: q is 0 above zero, else 1
    independent     whether the errors are so from cell to cell; else the rate holds under any
                    dependence, at 1 + 1/2 + ... + 1/k times the q-value
    Returns         float64[k], 0 .. 1
    Source          Benjamini and Hochberg 1995; Benjamini and Yekutieli 2001. SciPy has the same
                    as false_discovery_control, in a package that takes seconds to load.
    """
    values, errors = np.asarray(values, np.float64), np.asarray(standard_errors, np.float64)
    exact = np.where(values > 0, np.inf, -np.inf)
    z = np.where(errors > 0, values / np.where(errors > 0, errors, 1.0), exact)
    ranks = np.arange(1, len(z) + 1)
    order = np.argsort(-z, kind="stable")
    scaled = p_values(z[order]) * len(z) / ranks
    if not independent:
        scaled *= (1 / ranks).sum()
    q = np.empty(len(z))
    q[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(q, 1.0)


@overload
def told_from_zero(q_value: float) -> bool: ...
@overload
def told_from_zero(q_value: Floats) -> npt.NDArray[np.bool_]: ...
def told_from_zero(q_value: float | Floats) -> bool | npt.NDArray[np.bool_]:
    """Whether a cell differs from zero at the false-discovery rate of every table."""
    return q_value <= FALSE_DISCOVERY_RATE
