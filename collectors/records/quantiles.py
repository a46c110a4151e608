"""97.5 % quantiles, which half of a 95 % interval is made of; agents load no statistics package."""

from __future__ import annotations

from typing import Final

NORMAL: Final = 1.959964
"""Of the normal distribution."""

_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042, 2.040,
)  # fmt: skip
"""Of Student's distribution, by degrees of freedom from 1 on."""


def student(windows: int) -> float:
    """Give the quantile where so many windows taught the spread; below 2, the normal one."""
    degrees = windows - 1
    return _STUDENT[degrees - 1] if 0 < degrees <= len(_STUDENT) else NORMAL
