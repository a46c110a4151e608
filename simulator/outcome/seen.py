"""When has every application been seen? The published anchor, under a stated privacy.

An application is seen once the lower bound of the simultaneous 95 % interval of its daily
indicator, summed over days, or of its share of GPU time is above zero (docs/concepts.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.statistics.ratios import CONFIDENCE, normal_quantile
from privacy.calibrate import SIGMA_UNIT
from privacy.quantise import left_out_chance
from simulator.streams import philox
from wire.task import Task

from .attribution import DayRuns

Floats = NDArray[np.float64]

MS_PER_S: Final = 1_000
HOURS_A_DAY: Final = 24
WANTED_SHARE: Final = 0.99
INDICATOR, SHARE = "applications_seen", "application_mix"


class Sampling(StrEnum):
    """What a sampling rate is a rate of.

    WINDOWS     each host measures so many of its minute windows, by its own secret coin
    HOSTS       so many of the hosts measure, all day; the others report that they saw nothing
    """

    WINDOWS = "windows"
    HOSTS = "hosts"


@dataclass(frozen=True, slots=True)
class Design:
    """What a plan's tasks release about applications; None where they release none of it.

    m                   most cells of the daily indicator that one host sets
    indicator_sigma     hosts, one host's noise in a day
    share_sigma         GPU-s, one host's noise in an hour
    """

    m: int
    indicator_sigma: float | None
    share_sigma: float | None

    @staticmethod
    def of(tasks: Sequence[Task]) -> Design:
        m, indicator, share = 0, None, None
        for task in tasks:
            for spec in task.sections:
                sigma = spec.sigma_1024 / SIGMA_UNIT
                if spec.name == INDICATOR:
                    m, indicator = spec.m, sigma / spec.cap_steps
                    if task.window_s != HOURS_A_DAY * 3600:
                        raise ValueError(f"expected a daily indicator, got {task.window_s} s")
                elif spec.name == SHARE:
                    share = sigma * spec.q / MS_PER_S * sqrt(3600 / task.window_s)
        return Design(m, indicator, share)


@dataclass(frozen=True, slots=True)
class SeenCurve:
    """How the seen share grows at one sampling rate.

    hours           float64[steps], ends of the windows
    share           float64[steps], share of applications seen by then, median over draws
    hours_to_99     median over draws; None where it is not reached in the days that were lived
    low, high       5th and 95th percentile; None likewise
    within_a_day    share of draws in which 99 % are seen in 24 hours
    hosts_a_day     hosts that run an application in a day: least, median and most of them
    """

    applications: int
    sampling: str
    rate: float
    hours: tuple[float, ...]
    share: tuple[float, ...]
    hours_to_99: float | None
    low: float | None
    high: float | None
    within_a_day: float
    hosts_a_day: tuple[int, int, int]


def simultaneous_quantile(cells: int, confidence: float = CONFIDENCE) -> float:
    """Quantile at which all of so many two-sided intervals hold together (Bonferroni)."""
    if cells < 1:
        raise ValueError(f"expected at least one cell, got {cells}")
    return normal_quantile(1 - (1 - confidence) / cells)


def seen_curve(
    days: Sequence[DayRuns],
    design: Design,
    rate: float = 1.0,
    sampling: Sampling = Sampling.WINDOWS,
    draws: int = 40,
    seed: int = 0,
) -> SeenCurve:
    """Release the days of a fleet `draws` times over, with fresh coins and noise."""
    if not 0 < rate <= 1 or not days:
        raise ValueError(f"expected a rate of 0 < rate <= 1 and a day, got {rate}, {len(days)}")
    applications = days[0].gpu_s.shape[1]
    rng = philox(seed, "seen", sampling.value, f"{rate:.9f}")
    hours = np.arange(1, HOURS_A_DAY * len(days) + 1, dtype=np.float64)
    first = np.stack([first_seen(days, design, rate, sampling, rng) for _ in range(draws)])
    share = (first[:, None, :] <= hours[:, None]).mean(axis=2)
    enough = share >= WANTED_SHARE
    reached = np.where(enough.any(axis=1), hours[enough.argmax(axis=1)], np.inf)
    low, middle, high = np.quantile(reached, (0.05, 0.5, 0.95), method="inverted_cdf")
    ran = days[0].hosts_of
    return SeenCurve(
        applications,
        sampling.value,
        rate,
        tuple(hours.tolist()),
        tuple(np.median(share, axis=0).tolist()),
        _finite(middle),
        _finite(low),
        _finite(high),
        float((reached <= HOURS_A_DAY).mean()),
        (int(ran.min()), int(np.median(ran)), int(ran.max())),
    )


def first_seen(
    days: Sequence[DayRuns],
    design: Design,
    rate: float,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Floats:
    """Return float64[applications]: hours until each was seen, in one draw; inf for never."""
    applications = days[0].gpu_s.shape[1]
    reach = simultaneous_quantile(applications)
    found = np.full(applications, np.inf)
    count, share = np.zeros(applications), np.zeros(applications)
    variance = share_variance = 0.0
    for day, runs in enumerate(days):
        n = int(np.count_nonzero(runs.reporting))
        if design.share_sigma is not None:
            sigma = design.share_sigma * sqrt(n)
            for hour, worked in enumerate(runs.gpu_s):
                share += worked * rate + rng.normal(0.0, sigma, applications)
                share_variance += sigma**2
                _mark(found, share - reach * sqrt(share_variance), day * HOURS_A_DAY + hour + 1)
        if design.indicator_sigma is not None:
            sigma = design.indicator_sigma * sqrt(n)
            told, left_out = told_hosts(runs, design.m, rate, sampling, rng)
            count += told + rng.normal(0.0, sigma, applications)
            variance += sigma**2 + max(left_out + rng.normal(0.0, sigma), 0.0)
            _mark(found, count - reach * sqrt(variance), (day + 1) * HOURS_A_DAY)
    return found


def told_hosts(
    runs: DayRuns, m: int, rate: float, sampling: Sampling, rng: np.random.Generator
) -> tuple[Floats, int]:
    """Say which hosts tell of what in a day, as `privacy.quantise.choose_indicators` does.

    Returns     (float64[applications], hosts that tell of each; hosts that say they left some out)
    """
    if sampling is Sampling.HOSTS:
        measured = (rng.random(len(runs.reporting)) < rate)[runs.host]
    else:
        measured = rng.random(len(runs.host)) < 1 - (1 - rate) ** runs.windows
    known = np.flatnonzero(measured & runs.reporting[runs.host])
    known = known[np.argsort(rng.random(len(known)))]
    known = known[np.argsort(runs.host[known], kind="stable")]
    host = runs.host[known]
    # Place of each among its host's own: in random order, so the first m are chosen at random.
    begins = np.flatnonzero(np.diff(host, prepend=-1))
    lengths = np.diff(begins, append=len(host))
    place = np.arange(len(host)) - np.repeat(begins, lengths)
    left_out = rng.random(len(lengths)) < left_out_chance(lengths, m)
    most = np.minimum(lengths, m - left_out)
    told = runs.application[known[place < np.repeat(most, lengths)]]
    counts = np.bincount(told, minlength=runs.gpu_s.shape[1]).astype(np.float64)
    return counts, int(left_out.sum())


def _mark(found: Floats, low: Floats, hours: float) -> None:
    found[(low > 0) & np.isinf(found)] = hours


def _finite(hours: float) -> float | None:
    return float(hours) if np.isfinite(hours) else None
