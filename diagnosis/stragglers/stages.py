"""Pipeline stages beside one another: which has more work, which has uneven input; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .peers import MAD_TO_SIGMA, MEDIAN_ERROR, PeerRules, Times, missing_median

_UNEVEN_INPUT: Final = 0.1
"""Spread from step to step, a share, from which the input counts as uneven."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One pipeline stage.

    work_s         median over steps of its ranks' median own work
    over_others    median over steps of that work over the median of the other stages' in the same
                   step; None where there is no other, or nothing to compare
    uneven         whether it has more work than the others: these wait for it, whoever runs it
    uneven_input   whether each rank's work varies from step to step, and no machine is slow
    """

    stage: int
    work_s: float
    over_others: float | None
    uneven: bool
    uneven_input: bool


def compare_stages(
    times: Times, stages: NDArray[np.int32], spreads: Mapping[int, float], rules: PeerRules
) -> tuple[StageWork, ...]:
    """Compare the stages of a job step by step, so that a longer step of all accuses none.

    A stage is uneven by the conditions of a slow rank: beyond the margin, and beyond what steps
    scatter.

    times     float64[ranks, steps], seconds of own work; NaN: not seen, or of a slow rank
    stages    int32[ranks]
    spreads   how much the ranks of a stage typically vary from step to step, a share
    """
    names = np.unique(stages)
    work = np.stack([missing_median(times[stages == stage], axis=0) for stage in names])
    found = []
    for place, stage in enumerate(names):
        over = _over(work[place], np.delete(work, place, axis=0))
        found.append(
            StageWork(
                int(stage),
                float(np.nan_to_num(missing_median(work[place], axis=0))),
                float(np.median(over)) if len(over) else None,
                _is_uneven(over, rules),
                spreads[int(stage)] >= _UNEVEN_INPUT,
            )
        )
    return tuple(found)


def _over(own: Times, others: Times) -> Times:
    """Work over the other stages' typical one, in each step where both are known."""
    if not len(others):
        return np.zeros(0)
    typical = missing_median(others, axis=0)
    known = ~np.isnan(own) & (typical > 0)
    return np.asarray(own[known] / typical[known])


def _is_uneven(over: Times, rules: PeerRules) -> bool:
    if len(over) < rules.steps_min:
        return False
    excess = float(np.median(over)) - 1
    spread = MAD_TO_SIGMA * float(np.median(np.abs(over - np.median(over))))
    noise = MEDIAN_ERROR * spread / len(over) ** 0.5
    return excess >= rules.margin and excess > _limit(rules.z_limit, len(over)) * noise


def _limit(z: float, steps: int) -> float:
    """A limit for a spread that so many steps told: Student's t for z (Abramowitz, Stegun 26.7.5).

    A few steps may happen to agree.
    """
    free = steps - 1
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return z + (z**3 + z) / (4 * free) + second
