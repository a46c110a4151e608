"""Which released cells are significant: differ from zero, of all that are looked at together.

One cell in 44 that is truly empty passes two standard errors, so a table of many cells has rows
that are not there. The step-up rule bounds the share of such rows among those that are shown.
Families, and what the rate promises: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from wire.catalogue import NO_CLASSES

from .ratios import Floats

FALSE_DISCOVERY_RATE: Final = 0.01
"""Of every table, view and chart."""

_upper_tail = np.frompyfunc(lambda z: 0.5 * math.erfc(z / math.sqrt(2.0)), 1, 1)


def p_values(z: Floats) -> Floats:
    """Give the chance that noise alone is as high as z standard errors, one-sided."""
    return np.asarray(_upper_tail(z), np.float64)


def q_values(values: Floats, standard_errors: Floats, *, independent: bool = True) -> Floats:
    """Give each cell the smallest false-discovery rate at which it is significant.

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


def is_significant(q_value: float) -> bool:
    """Whether a cell differs from zero at the false-discovery rate of every table."""
    return q_value <= FALSE_DISCOVERY_RATE


_FAMILY: Final = (
    f"series, cohort, window_start, section, CASE WHEN cell IN {NO_CLASSES} THEN cell END"
)
"""How many hosts measured, and what they left out, is no class beside the others."""

_NEAR: Final = 0.46875
_FAR: Final = 4.0
_OF_NEAR: Final = (
    (3.20937758913846947e3, 3.77485237685302021e2, 1.13864154151050156e2, 3.16112374387056560e0,
     1.85777706184603153e-1),
    (2.84423683343917062e3, 1.28261652607737228e3, 2.44024637934444173e2, 2.36012909523441209e1,
     1.0),
)  # fmt: skip
_OF_MIDDLE: Final = (
    (1.23033935479799725e3, 2.05107837782607147e3, 1.71204761263407058e3, 8.81952221241769090e2,
     2.98635138197400131e2, 6.61191906371416295e1, 8.88314979438837594e0, 5.64188496988670089e-1,
     2.15311535474403846e-8),
    (1.23033935480374942e3, 3.43936767414372164e3, 4.36261909014324716e3, 3.29079923573345963e3,
     1.62138957456669019e3, 5.37181101862009858e2, 1.17693950891312499e2, 1.57449261107098347e1,
     1.0),
)  # fmt: skip
_OF_FAR: Final = (
    (6.58749161529837803e-4, 1.60837851487422766e-2, 1.25781726111229246e-1,
     3.60344899949804439e-1, 3.05326634961232344e-1, 1.63153871373020978e-2),
    (2.33520497626869185e-3, 6.05183413124413191e-2, 5.27905102951428412e-1,
     1.87295284992346725e0, 2.56852019228982242e0, 1.0),
)  # fmt: skip
"""Numerator and denominator of each rational approximation, constant terms first."""
_STEPS: Final = ("z", "reach", "square", "inverse", "tail", "p_value")


def upper_tail_sql(source: str) -> str:
    """Add to rows with `z` the chance that noise alone is as high: `p_value`.

    source      rows with z, in standard errors
    Returns     SQL of the same rows with the columns of `_STEPS` too; p_value is that of
                `discoveries.p_values` to 1e-12 of it
    Source      Cody 1969, rational Chebyshev approximations of erfc
    """
    return f"""
SELECT *, CASE WHEN z < 0 THEN 2.0::DOUBLE - tail ELSE tail END * 0.5::DOUBLE AS p_value FROM (
    SELECT *, CASE
        WHEN reach <= {_number(_NEAR)} THEN 1.0::DOUBLE - reach * {_ratio(_OF_NEAR, "square")}
        WHEN reach <= {_number(_FAR)} THEN exp(-square) * {_ratio(_OF_MIDDLE, "reach")}
        ELSE exp(-square) / reach * (
            {_number(1 / math.sqrt(math.pi))} - inverse * {_ratio(_OF_FAR, "inverse")}
        ) END AS tail
    FROM (
        SELECT *, reach * reach AS square, 1.0::DOUBLE / (reach * reach) AS inverse
        FROM (SELECT *, abs(z) * {_number(math.sqrt(0.5))} AS reach FROM ({source}))
    )
)
"""  # noqa: S608  (texts of this package)


def judged_sql(source: str, value: str, dependent: str, family: str = _FAMILY) -> str:
    """SQL that adds `q_value` to rows, as `q_values` does; families of other windows cost nothing.

    source      rows of cells; value: their column in errors of `standard_error`
    dependent   whether a row's error is correlated with the others of its family
    family      columns whose equal rows are judged together
    """
    scored = f"SELECT *, {value} / standard_error AS z FROM ({source})"  # noqa: S608
    return f"""
WITH tested AS (
    {upper_tail_sql(scored)}
), ordered AS (
    SELECT *, row_number() OVER (family ORDER BY p_value) AS place, count(*) OVER family AS size
    FROM tested WINDOW family AS (PARTITION BY {family})
), judged AS (
    SELECT *, CASE WHEN {dependent} THEN sum(1 / place) OVER family ELSE 1 END * min(
        p_value * size / place
    ) OVER (family ORDER BY place ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS scaled
    FROM ordered WINDOW family AS (PARTITION BY {family})
)
SELECT * EXCLUDE (place, size, scaled, {", ".join(_STEPS)}), least(scaled, 1.0) AS q_value
FROM judged
"""  # noqa: S608  (texts of this package)


def _ratio(parts: tuple[Sequence[float], Sequence[float]], x: str) -> str:
    texts = []
    for terms in parts:  # Horner's form, constant term first
        text = _number(terms[-1])
        for term in reversed(terms[:-1]):
            text = f"({text} * {x} + {_number(term)})"
        texts.append(text)
    return f"({texts[0]} / {texts[1]})"


def _number(value: float) -> str:
    """Write a number so that SQL reads it to the last bit: with an exponent it is no decimal."""
    return f"{value:.17e}"
