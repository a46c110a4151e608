"""A number with its error, as every page shows one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts, and how it is written.

    factor    the number is written times this: 100 for percent of a share
    suffix    what stands after it, its space included
    decimals  at most
    between   what lies between `low` and `high` of a number
    """

    name: str
    factor: float = 1.0
    suffix: str = ""
    decimals: int = 2
    between: str = "95 % interval"


SHARE: Final = Unit("share", 100.0, " %")
POINTS: Final = Unit("points", 100.0, " points")
HOSTS: Final = Unit("hosts", decimals=0)
WINDOWS: Final = Unit("windows", decimals=0)
GPU_HOURS: Final = Unit("GPU hours", suffix=" GPU h", decimals=1)
PLAIN: Final = Unit("number")


@dataclass(frozen=True, slots=True)
class Number:
    """A released number, or why there is none.

    value           None where nothing is known
    low, high       of its 95 % interval, or of what else its unit says; None: it has no error
    told            whether it is told from zero; one that is not is drawn as mostly noise
    reason          why it is suppressed, in words
    coverage        of the windows that it is made of: released by expected, 0 to 1
    """

    value: float | None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    told: bool = True
    reason: str | None = None
    coverage: float | None = None

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return self.value is not None and math.isfinite(self.value)

    @property
    def exact(self) -> bool:
        """Whether it has no error: it was counted, not released."""
        return self.low is None and self.high is None

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval; the value twice where none is known."""
        at = self.value if self.value is not None else math.nan
        low = self.low if self.low is not None else at
        high = self.high if self.high is not None else at
        return low, high


SUPPRESSED: Final = Number(None, reason="suppressed")
