"""Starts jobs so that the load stays where the scenario wants it: a queue that is never empty."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import Scenario

from .fleet_events import RareEvents, WideJob
from .hosts import Floor
from .jobs import Groups, JobQueue, PlacementBatch, busy_target, member_of, slow_kind

Hosts = NDArray[np.int64]

_LARGEST_PART: Final = 0.125
"""Of an operator's hosts that one job may have."""

_KEPT_BATCHES: Final = 1 << 14


class Scheduler:
    """One queue per operator, first come first served; a wide job at its head waits for room."""

    def __init__(self, scenario: Scenario, groups: Groups, floor: Floor, rare: RareEvents) -> None:
        self._scenario, self._groups, self._floor, self._rare = scenario, groups, floor, rare
        operator = floor.inventory.operator
        count = len(scenario.operators)
        edges = np.searchsorted(operator, np.arange(count + 1))
        self._spans = [(int(lo), int(hi)) for lo, hi in pairwise(edges)]
        gpus = floor.inventory.gpus
        self._whole = [max(round(float(gpus[lo:hi].mean())), 1) if hi > lo else 1
                       for lo, hi in self._spans]  # fmt: skip
        self._queues = [
            JobQueue(scenario, groups, whole, max(_LARGEST_PART * (hi - lo) * whole, whole))
            for (lo, hi), whole in zip(self._spans, self._whole, strict=True)
        ]
        self._waiting: list[PlacementBatch | None] = [None] * count
        self._numbers = 0
        self.counts: Counter[str] = Counter()
        self.started: deque[PlacementBatch] = deque(maxlen=_KEPT_BATCHES)

    def fill(self, rng: np.random.Generator) -> None:
        """Fill the fleet at its start with jobs that began before it."""
        self._start_all(self._scenario.start_s, rng, running=True)
        # What is left over was drawn as met in the middle, and must not start as if it were new.
        self._waiting = [None] * len(self._waiting)

    def start_due(self, now_s: float, rng: np.random.Generator) -> None:
        """Start again what faults stopped, let jobs grow, and start jobs up to the load."""
        self._restart(now_s, rng)
        for job in self._rare.growing():
            if job.grows_at_s <= now_s:
                self._grow(job, now_s, rng)
        self._start_all(now_s, rng, running=False)

    def _start_all(self, now_s: float, rng: np.random.Generator, *, running: bool) -> None:
        share = busy_target(self._scenario.load, now_s)
        in_service = self._floor.down_until_s <= now_s
        gpus = self._floor.inventory.gpus
        for place, (lo, hi) in enumerate(self._spans):
            target = share * float(gpus[lo:hi][in_service[lo:hi]].sum(dtype=np.int64))
            while self._start_some(place, target, now_s, rng, running=running):
                pass

    def _start_some(
        self, place: int, target: float, now_s: float, rng: np.random.Generator, *, running: bool
    ) -> bool:
        lo, hi = self._spans[place]
        growing = [job for job in self._rare.growing() if lo <= job.hosts[0] < hi]
        promised = sum(job.gpus * (1 - len(job.hosts) / job.wanted) for job in growing)
        missing = target - self._floor.held_gpus(lo, hi) - promised
        if missing <= 0:
            return False
        queue, batch = self._queues[place], self._waiting[place]
        if batch is None:
            count = int(missing / queue.mean_gpus * 1.1) + 8
            hours = (now_s - self._scenario.start_s) / 3600
            batch = queue.draw(count, hours, rng, running=running)
        needed = np.ceil(batch.gpus / self._whole[place]).astype(np.int64)
        free = lo + np.flatnonzero(self._floor.free(now_s)[lo:hi])
        # A job starts when half of it is missing: the load is then right in the mean.
        halves = np.minimum(batch.gpus, target) / 2
        wanted = np.cumsum(batch.gpus) - batch.gpus + halves <= missing
        fits = wanted & (np.cumsum(needed) <= len(free))
        first = int(np.argmin(fits)) if not fits.all() else len(fits)
        self._waiting[place] = batch.part(first, len(fits)) if first < len(fits) else None
        if first and not running:
            self.started.append(batch.part(0, first))
        free = rng.permutation(free)
        free = self._start_wides(batch.part(0, first), needed[:first], free, now_s, rng, running)
        small = np.flatnonzero(needed[:first] == 1)
        if small.size:
            self._start_small(free[: small.size], batch, small, now_s, rng)
        return first > 0

    def _start_wides(
        self, batch: PlacementBatch, needed: Hosts, free: Hosts, now_s: float,
        rng: np.random.Generator, running: bool,
    ) -> Hosts:  # fmt: skip
        for wide in np.flatnonzero(needed > 1):
            taken = self._of_one_model(free, int(needed[wide]))
            free = free[~np.isin(free, taken)]
            self._start_wide(
                taken, int(batch.group[wide]), float(batch.gpus[wide]),
                float(batch.seconds[wide]), now_s, rng, grown=running,
            )  # fmt: skip
            self.counts["jobs"] += 1
        return free

    def _start_small(
        self,
        hosts: Hosts,
        batch: PlacementBatch,
        small: Hosts,
        now_s: float,
        rng: np.random.Generator,
    ) -> None:
        floor, count = self._floor, len(hosts)
        numbers = self._numbers + np.arange(count)
        self._numbers += count
        ranks = rng.random(count)
        members = [self._groups.members[group] for group in batch.group[small]]
        tables = [own[int(r * len(own))] for own, r in zip(members, ranks, strict=True)]
        busy = np.minimum(batch.gpus[small] / floor.inventory.gpus[hosts], 1.0)
        floor.start(hosts, numbers, np.array(tables, dtype=np.int64), busy, now_s)
        seconds = batch.seconds[small]
        floor.until_s[hosts] = now_s + seconds
        kind = slow_kind(1, 1)
        struck = np.flatnonzero(rng.random(count) < self._chance(kind.chance))
        begins = now_s + rng.random(len(struck)) * seconds[struck]
        ends = np.minimum(
            begins + rng.exponential(kind.mean_s, len(struck)), now_s + seconds[struck]
        )
        floor.slow_from_s[hosts[struck]], floor.slow_until_s[hosts[struck]] = begins, ends
        floor.slowdown[hosts[struck]] = self._scenario.fail_slow.slowdown
        self.counts["jobs"] += int(batch.jobs[small].sum())
        self.counts[f"placements {kind.name}"] += count
        self.counts[f"slow {kind.name}"] += len(struck)

    def _start_wide(
        self, hosts: Hosts, group: int, gpus: float, seconds: float, now_s: float,
        rng: np.random.Generator, *, grown: bool = True,
    ) -> None:  # fmt: skip
        jobs = self._scenario.jobs
        wanted, now_on = len(hosts), hosts
        if rng.random() < jobs.elastic_share and not grown:
            now_on = hosts[: max(wanted // 4, 1)]
        end_s = now_s + seconds
        job = WideJob(self._numbers, now_on, wanted, group, gpus, end_s)
        job.grows_at_s = now_s + jobs.growth_minutes * 60
        self._numbers += 1
        self._put(job, now_on, 0, now_s, rng)
        self._rare.start_wide(job)
        kind = slow_kind(wanted, gpus)
        self.counts[f"placements {kind.name}"] += 1
        if rng.random() < self._chance(kind.chance):
            self.counts[f"slow {kind.name}"] += 1
            self._slow(job, kind.mean_s, now_s, rng)

    def _slow(self, job: WideJob, mean_s: float, now_s: float, rng: np.random.Generator) -> None:
        """Give a wide job its episode: somewhere in it, or as long as it runs."""
        slowdown = self._scenario.fail_slow.slowdown
        if mean_s:
            begin_s = now_s + rng.random() * (job.end_s - now_s)
            end_s = min(begin_s + rng.exponential(mean_s), job.end_s)
        else:
            begin_s, end_s = now_s, job.end_s
            slowdown = 1 + rng.exponential(slowdown - 1)
        self._rare.slow_down(job, begin_s, end_s, slowdown)

    def _put(
        self, job: WideJob, hosts: Hosts, first: int, now_s: float, rng: np.random.Generator
    ) -> None:
        tables = member_of(self._groups.members[job.group], job.wanted, rng)
        tables = tables[first : first + len(hosts)]
        floor, gpus = self._floor, self._floor.inventory.gpus[hosts].astype(np.float64)
        held = np.clip(job.gpus - (first * gpus + np.cumsum(gpus) - gpus), 1.0, gpus)
        numbers = np.full(len(hosts), job.number)
        floor.start(hosts, numbers, tables, held / gpus, now_s)
        every = np.union1d(job.hosts, hosts)
        floor.pace[every] = floor.inventory.pace[every].min()

    def _grow(self, job: WideJob, now_s: float, rng: np.random.Generator) -> None:
        """Double a job's hosts where its operator has room, and look again later if not."""
        lo, hi = self._spans[int(self._floor.inventory.operator[job.hosts[0]])]
        more = min(len(job.hosts), job.wanted - len(job.hosts))
        free = lo + np.flatnonzero(self._floor.free(now_s)[lo:hi])
        job.grows_at_s = now_s + self._scenario.jobs.growth_minutes * 60
        if len(free) >= more:
            taken = self._of_one_model(rng.permutation(free), more)
            self._put(job, taken, len(job.hosts), now_s, rng)
            self._rare.grow(job, taken)
            self.counts["jobs grown"] += 1

    def _restart(self, now_s: float, rng: np.random.Generator) -> None:
        waiting, self._rare.interrupted = self._rare.interrupted, []
        for job in waiting:
            lo, hi = self._spans[job.operator]
            free = lo + np.flatnonzero(self._floor.free(now_s)[lo:hi])
            needed = int(np.ceil(job.gpus / self._whole[job.operator]))
            if len(free) < needed:
                self._rare.interrupted.append(job)
                continue
            taken = self._of_one_model(rng.permutation(free), needed)
            self._start_wide(taken, job.group, job.gpus, job.rest_s, now_s, rng)
            self.counts["jobs restarted"] += 1

    def _of_one_model(self, free: Hosts, needed: int) -> Hosts:
        """Take hosts with the same GPU model where there are enough, else any."""
        model = self._floor.inventory.gpu_model[free]
        for kind in np.argsort(-np.bincount(model), kind="stable"):
            same: Hosts = free[model == kind]
            if len(same) >= needed:
                return same[:needed]
        return free[:needed]

    def _chance(self, chance: float) -> float:
        return chance if self._scenario.fail_slow.enabled else 0.0
