"""What hosts leave out of indicator sections: the m that keeps it small beside the noise.

How many indicators hosts have set is known of simulated fleets alone; a release says of its own
hosts how many it lacks at most (`aggregator.statistics.statistics`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .quantise import left_out_chance

BIAS_ERRORS: Final = 0.4
"""Standard errors by which a cell that every crowded host has may be low: its 95 % interval then
holds the truth 93.2 times in 100, that of a cell which half of them have 94.5 times."""

ONE_SIDED_ERRORS: Final = 1.645
"""Standard errors above an estimate at which its upper 95 % bound lies."""

Counts = NDArray[np.int64]
"""int64[k]: host-windows by how many indicators they have set."""


@dataclass(frozen=True, slots=True)
class SectionCrowding:
    """One indicator section of a plan, where hosts have most to tell.

    scenario        simulated fleet of which that is, and of which the next two are
    above_m         host-windows with more than m set, of all
    bias_hosts      hosts that a cell lacks on average, if every crowded host has it
    bias_bound_hosts    what a release would say that it lacks at most, where it lacks that many
    least_m         least m that keeps the bias of every scenario within BIAS_ERRORS
    """

    section: str
    m: int
    scenario: str
    above_m: float
    bias_hosts: float
    bias_bound_hosts: float
    least_m: int


def left_out_hosts(counts: Counts, m: int) -> float:
    """Return how many hosts a cell lacks on average, if every crowded host has it."""
    return float(counts @ left_out_chance(np.arange(len(counts)), m))


def crowding(
    section: str,
    m: int,
    hosts: int,
    counts: Mapping[str, Counts],
    error_hosts: Callable[[int], float],
) -> SectionCrowding:
    """Say how much of a section hosts would leave out, in the worst of some fleets.

    hosts       of the cohort
    counts      scenario -> host-windows
    error_hosts m -> standard error of a released count, in hosts
    """

    def bias(scenario: str, m: int) -> float:
        return hosts * left_out_hosts(counts[scenario], m) / int(counts[scenario].sum())

    def fits(m: int) -> bool:
        return all(bias(scenario, m) <= BIAS_ERRORS * error_hosts(m) for scenario in counts)

    worst = max(counts, key=lambda scenario: bias(scenario, m))
    most = max(len(one) for one in counts.values())
    return SectionCrowding(
        section,
        m,
        worst,
        float(counts[worst][m + 1 :].sum() / counts[worst].sum()),
        bias(worst, m),
        min(bias(worst, m) + ONE_SIDED_ERRORS * error_hosts(m), hosts),
        next(least for least in range(1, most + 1) if fits(least)),
    )
