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

from simulator.applications import Application, load_applications, numbered_applications
from simulator.scenario import FlashCrowd, FleetLoad, Scenario, ScenarioError
from transport.settings.config import read_table
from wire.catalogue import Catalogue

Floats = NDArray[np.float64]

PUBLISHED: Final = Path(__file__).with_name("published.toml")
CHOSEN: Final = read_table(PUBLISHED.with_name("chosen.toml"))
"""Levels and rates that are not published."""
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
    return read_table(PUBLISHED)


@dataclass(frozen=True, slots=True)
class JobSizes:
    """GPUs of a job, powers of two times the smallest, and their chances: float[k]."""

    sizes: Floats
    chances: Floats

    def at_most(self, largest: float) -> JobSizes:
        """The same without what is larger: drawn again."""
        kept = self.sizes <= max(largest, self.sizes[0])
        return JobSizes(self.sizes[kept], self.chances[kept] / self.chances[kept].sum())


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that a job runs: float[points], rising, the middles of equal parts of probability."""

    seconds: Floats

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        places = rng.random(count) * len(self.seconds) - 0.5
        return np.interp(places, np.arange(len(self.seconds)), self.seconds)

    def sample_rest(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw how long jobs that are running now still run: the longer, the likelier met."""
        chances = self.seconds / self.seconds.sum()
        return rng.choice(self.seconds, size=count, p=chances) * rng.random(count)


def job_sizes(cluster: str) -> JobSizes:
    """Sizes of a published cluster: a power law over powers of two that has its median and mean.

    Where one law cannot have both, half of the jobs are of the median size. Raises ScenarioError.
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
    """Durations by quantiles, or log-normal by median and mean. Raises ScenarioError."""
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
    """How often jobs meet an episode, and how long it lasts, exponential; 0: as long as the job."""

    name: str
    chance: float
    mean_s: float


# Greyhound (Wu et al., USENIX ATC 2025): computation under 2 % of jobs, 10 minutes in the mean;
# communication 40 %, 24 minutes; 16 of 27 large jobs, whose completion took 1.34 times as long.
COMPUTE: Final = SlowKind("compute", 0.015, 600.0)
COMMUNICATION: Final = SlowKind("communication", 0.40, 1440.0)
LARGE: Final = SlowKind("large", 16 / 27, 0.0)


def slow_kind(hosts: int, gpus: float) -> SlowKind:
    if gpus >= LARGE_JOB_GPUS:
        return LARGE
    return COMMUNICATION if hosts > 1 else COMPUTE


def busy_target(load: FleetLoad, at_s: float) -> float:
    """Share of GPUs that jobs should hold at a time; its weekly mean is busy_share, if not cut."""
    hour = at_s % _DAY_S / 3600
    swing = 1 + load.diurnal_amplitude * cos(2 * pi * (hour - load.peak_hour_utc) / 24)
    weekday = (int(at_s // _DAY_S) + _THURSDAY) % 7
    weekend = 1 - load.weekend_drop if weekday >= 5 else 1.0
    mean = (5 + 2 * (1 - load.weekend_drop)) / 7
    return min(load.busy_share * swing * weekend / mean, FULL)


def overlap_share(begin: Floats, end: Floats, start_s: float, window_s: float) -> Floats:
    inside = np.minimum(end, start_s + window_s) - np.maximum(begin, start_s)
    return np.asarray(np.clip(inside, 0.0, None) / window_s)


Places = NDArray[np.int64]

ALONE_SHARE: Final = 0.2
"""Jobs smaller than a host that have it alone; the others share it with siblings: chosen."""


@dataclass(frozen=True, slots=True)
class PlacementBatch:
    """Placements: a job over one or more hosts, or a small job and its siblings on one.

    gpus        float[n], of the whole placement
    jobs        int64[n], 1 or the number of siblings
    size        float[n], GPUs of one job
    group       int64[n], place in `groups` of the queue
    """

    gpus: Floats
    jobs: Places
    size: Floats
    seconds: Floats
    group: Places

    def part(self, first: int, last: int) -> PlacementBatch:
        part = slice(first, last)
        return PlacementBatch(
            self.gpus[part], self.jobs[part], self.size[part], self.seconds[part], self.group[part]
        )


@dataclass(frozen=True, slots=True)
class Groups:
    """The applications of a fleet: tables of one program, its ranks or stages, form a group."""

    applications: tuple[Application, ...]
    names: tuple[str, ...]
    members: tuple[Places, ...]
    shares: Floats

    def chances(self, crowd: FlashCrowd, hours: float) -> Floats:
        if crowd.application not in self.names:
            return self.shares
        new = self.names.index(crowd.application)
        ramp = (hours - crowd.begin_hours) / max(crowd.ramp_hours, 1e-9)
        share = crowd.share * float(np.clip(ramp, 0.0, 1.0))
        others = np.where(np.arange(len(self.names)) == new, 0.0, self.shares)
        mixed: Floats = others / others.sum() * (1 - share)
        mixed[new] = share
        return mixed


def make_groups(scenario: Scenario, catalogue: Catalogue) -> Groups:
    wanted = scenario.applications
    shipped = load_applications()
    if wanted.numbered:
        shipped = numbered_applications(catalogue, wanted.numbered)
    names = tuple(dict.fromkeys(application.group for application in shipped))
    for name in (*wanted.shares, wanted.flash_crowd.application):
        if name and name not in names:
            raise ScenarioError(
                f"applications: expected names out of {', '.join(names)}, got {name!r}"
            )
    shares = np.array([wanted.shares.get(n, 0.0) if wanted.shares else 1.0 for n in names])
    if shares.sum() <= 0:
        raise ScenarioError("applications.shares: expected one weight above 0 at least, got none")
    members = tuple(
        np.array([i for i, application in enumerate(shipped) if application.group == name])
        for name in names
    )
    return Groups(shipped, names, members, shares / shares.sum())


class JobQueue:
    def __init__(self, scenario: Scenario, groups: Groups, gpus_per_host: int, most: float) -> None:
        """Read the published distributions; no job has more GPUs than `most`."""
        jobs = scenario.jobs
        law = job_sizes(jobs.sizes).at_most(min(jobs.largest_gpus, most))
        self._durations = durations(jobs.durations)
        self._groups, self._crowd = groups, scenario.applications.flash_crowd
        self._whole = gpus_per_host
        self._sizes = law.sizes
        # Siblings are one placement of several jobs: met as seldom as they are many.
        self._siblings = np.maximum(np.floor(gpus_per_host / law.sizes), 1.0)
        together = law.chances * (1 - ALONE_SHARE) / self._siblings
        alone = law.chances * np.where(self._siblings > 1, ALONE_SHARE, 0.0)
        together = np.where(self._siblings > 1, together, law.chances)
        self._chances = np.concatenate([together, alone])
        self._chances /= self._chances.sum()
        kinds = np.concatenate([law.sizes * self._siblings, law.sizes])
        self.mean_gpus = float(self._chances @ kinds)

    def draw(
        self, count: int, hours: float, rng: np.random.Generator, *, running: bool = False
    ) -> PlacementBatch:
        """Draw so many placements, `hours` after the start.

        running     they are met in the middle: longer ones likelier, and only what is left of them
        """
        kind = rng.choice(len(self._chances), size=count, p=self._chances)
        place, alone = kind % len(self._sizes), kind >= len(self._sizes)
        jobs = np.where(alone, 1, self._siblings[place]).astype(np.int64)
        draw = self._durations.sample_rest if running else self._durations.sample
        chances = self._groups.chances(self._crowd, hours)
        return PlacementBatch(
            gpus=self._sizes[place] * jobs,
            jobs=jobs,
            size=self._sizes[place],
            seconds=draw(count, rng),
            group=rng.choice(len(chances), size=count, p=chances),
        )


def member_of(members: Places, hosts: int, rng: np.random.Generator) -> Places:
    """Say which table each host of a job runs: its stages in order, or any rank where it is one."""
    if hosts == 1 or len(members) == 1:
        return members[rng.integers(0, len(members), hosts)]
    return members[np.arange(hosts) * len(members) // hosts]
