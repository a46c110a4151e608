"""What the next jobs are: sizes, durations and applications, drawn a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.applications import Application, load_applications, numbered_applications
from simulator.scenario import FlashCrowd, Scenario, ScenarioError
from wire.catalogue import Catalogue

from .jobs import durations, job_sizes

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

ALONE_SHARE: Final = 0.2
"""Jobs smaller than a host that have it alone; the others share it with siblings: chosen."""


@dataclass(frozen=True, slots=True)
class PlacementBatch:
    """Placements: a job over one or more hosts, or a small job and its siblings on one.

    gpus        float[n], of the whole placement
    jobs        int64[n], 1 or the number of siblings
    size        float[n], GPUs of one job
    seconds     float[n]
    group       int64[n], place in `groups` of the queue
    """

    gpus: Floats
    jobs: Places
    size: Floats
    seconds: Floats
    group: Places

    def part(self, first: int, last: int) -> PlacementBatch:
        """Placements first .. last - 1."""
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
        """Share of each group among new jobs, so many hours after the start."""
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
    """Find a scenario's applications and their shares. Raises ScenarioError."""
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
    """Draws placements, in the order in which they are to start."""

    def __init__(self, scenario: Scenario, groups: Groups, gpus_per_host: int, most: float) -> None:
        """Read the published distributions.

        gpus_per_host   of a host of this queue
        most            GPUs of the largest job that it may hold
        """
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
        """Draw so many placements.

        hours       since the start: the mix may change with time
        running     they are met in the middle, as at the start of the simulation: longer ones
                    likelier, and only what is left of them
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
