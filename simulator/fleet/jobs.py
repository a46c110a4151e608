"""Jobs by published distributions: sizes, durations, how many run by the hour, which are slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import cos, pi
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import FleetLoad, ScenarioError
from transport.settings.config import read_table

Floats = NDArray[np.float64]

PUBLISHED: Final = Path(__file__).with_name("published.toml")
LONGEST_S: Final = 30 * 86_400.0
SHORTEST_S: Final = 1.0
_POINTS: Final = 1 << 14

_DAY_S: Final = 86_400
_THURSDAY: Final = 3
"""1 January 1970."""

FULL: Final = 0.98

LARGE_JOB_GPUS: Final = 512
"""Fail-slow was counted apart for jobs of this size (Greyhound)."""


@cache
def published() -> Mapping[str, Any]:
    """The committed figures."""
    return read_table(PUBLISHED)


@dataclass(frozen=True, slots=True)
class JobSizes:
    """GPUs of a job: powers of two times the smallest.

    sizes, chances  float[k]; the chances sum to 1
    """

    sizes: Floats
    chances: Floats

    @property
    def mean(self) -> float:
        return float(self.sizes @ self.chances)

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw so many sizes."""
        return rng.choice(self.sizes, size=count, p=self.chances)

    def at_most(self, largest: float) -> JobSizes:
        """The same without what is larger: drawn again."""
        kept = self.sizes <= max(largest, self.sizes[0])
        return JobSizes(self.sizes[kept], self.chances[kept] / self.chances[kept].sum())


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that a job runs, as a table of its quantile function at equal steps.

    seconds     float[points], rising: the middle of each of `points` equal parts of probability
    """

    seconds: Floats

    @property
    def mean(self) -> float:
        return float(self.seconds.mean())

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw so many durations of jobs that begin now."""
        places = rng.random(count) * len(self.seconds) - 0.5
        return np.interp(places, np.arange(len(self.seconds)), self.seconds)

    def sample_rest(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw how long jobs that are running now still run: the longer, the likelier met."""
        chances = self.seconds / self.seconds.sum()
        return rng.choice(self.seconds, size=count, p=chances) * rng.random(count)


def job_sizes(cluster: str) -> JobSizes:
    """Sizes of a published cluster: a power law over powers of two that has its median and mean.

    Where one law cannot have both, half of the jobs are of the median size and the law fits the
    rest. Raises ScenarioError for a cluster that is not there.
    """
    gpus = _of(cluster, "jobs.sizes", published()["cluster"])["gpus"]
    smallest, mean = gpus["median"], gpus["mean"]
    steps = np.arange(round(np.log2(gpus["largest"] / smallest)) + 1)
    sizes = smallest * 2.0**steps

    def law(exponent: float) -> Floats:
        weights = 2.0 ** (-exponent * steps)
        return np.asarray(weights / weights.sum())

    def pinned(exponent: float) -> Floats:
        rest = law(exponent)[1:]
        return np.concatenate([[0.5], 0.5 * rest / rest.sum()])

    chances = _solve(law, sizes, mean)
    if chances[0] < 0.5:
        chances = _solve(pinned, sizes, mean)
    return JobSizes(sizes, chances)


def _solve(law: Callable[[float], Floats], sizes: Floats, mean: float) -> Floats:
    from scipy.optimize import brentq  # takes long to load, and only this needs it

    return law(float(brentq(lambda at: float(law(at) @ sizes) - mean, -4.0, 12.0)))


def durations(source: str) -> Durations:
    """Durations of a published source: by its quantiles, or log-normal with its median and mean.

    Raises ScenarioError for a source that is not there.
    """
    tables = published()
    known = {**tables["cluster"], **tables["quantiles"]}
    figures = _of(source, "jobs.durations", known)["duration_s"]
    scores = np.array([NormalDist().inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)])
    if source in tables["quantiles"]:
        return Durations(_through(figures, scores))
    median, mean, longest = (figures[key] for key in ("median", "mean", "longest"))

    def table(spread: float) -> Floats:
        return np.asarray(np.clip(median * np.exp(spread * scores), SHORTEST_S, longest))

    from scipy.optimize import brentq  # as above

    spread = brentq(lambda at: float(table(at).mean()) - mean, 0.01, 6.0)
    return Durations(table(float(spread)))


def _through(quantiles: list[list[float]], scores: Floats) -> Floats:
    """Join quantiles by straight lines in log seconds over normal scores, on at both ends."""
    at = np.array([NormalDist().inv_cdf(share) for share, _ in quantiles])
    logs = np.log([seconds for _, seconds in quantiles])
    slopes = np.diff(logs) / np.diff(at)
    inner = np.interp(scores, at, logs)
    inner = np.where(scores < at[0], logs[0] + slopes[0] * (scores - at[0]), inner)
    inner = np.where(scores > at[-1], logs[-1] + slopes[-1] * (scores - at[-1]), inner)
    return np.clip(np.exp(inner), SHORTEST_S, LONGEST_S)


def _of(name: str, key: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise ScenarioError(f"{key}: expected one of {', '.join(known)}, got {name!r}")
    return known[name]


@dataclass(frozen=True, slots=True)
class SlowKind:
    """How often jobs of one kind meet an episode, and how long it lasts; chances are per job.

    mean_s      of an exponential; 0: as long as the job
    """

    name: str
    chance: float
    mean_s: float


# Greyhound (Wu et al., USENIX ATC 2025): computation under 2 % of jobs, 10 minutes in the mean;
# communication 40 %, 24 minutes; 16 of 27 large jobs, whose completion took 1.34 times as long.
COMPUTE: Final = SlowKind("compute", 0.015, 600.0)
COMMUNICATION: Final = SlowKind("communication", 0.40, 1440.0)
LARGE: Final = SlowKind("large", 16 / 27, 0.0)


def slow_kind(hosts: int, gpus: float) -> SlowKind:
    """Which of them a job of this size is."""
    if gpus >= LARGE_JOB_GPUS:
        return LARGE
    return COMMUNICATION if hosts > 1 else COMPUTE


def busy_target(load: FleetLoad, at_s: float) -> float:
    """Share of GPUs that jobs should hold at a time (Unix seconds); its weekly mean is busy_share.

    Where a peak would pass 98 %, it is cut off, and the mean is below.
    """
    hour = at_s % _DAY_S / 3600
    swing = 1 + load.diurnal_amplitude * cos(2 * pi * (hour - load.peak_hour_utc) / 24)
    weekday = (int(at_s // _DAY_S) + _THURSDAY) % 7
    weekend = 1 - load.weekend_drop if weekday >= 5 else 1.0
    mean = (5 + 2 * (1 - load.weekend_drop)) / 7
    return min(load.busy_share * swing * weekend / mean, FULL)


def overlap_share(begin: Floats, end: Floats, start_s: float, window_s: float) -> Floats:
    """Which part of a window each episode fills."""
    inside = np.minimum(end, start_s + window_s) - np.maximum(begin, start_s)
    return np.asarray(np.clip(inside, 0.0, None) / window_s)
