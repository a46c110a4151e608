"""The rare, in an event queue: wide jobs, faults by published causes and rates, upgrades."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np
import simpy
from numpy.typing import NDArray

from privacy.plan import LLAMA3_DAYS, LLAMA3_HOSTS, LLAMA3_INTERRUPTIONS
from simulator.scenario import Faults, Scenario
from simulator.streams import stream
from wire.catalogue import Catalogue, Section

from .hosts import IDLE, NEVER, Floor, HostInventory, HostLog
from .jobs import CHOSEN

Floats = NDArray[np.float64]

DAY_S: Final = 86_400
WEEK_S: Final = 604_800
FAULT_WINDOW_S: Final = 8 * WEEK_S

CAUSE_COUNTS: Final = np.array([count for _, count in LLAMA3_INTERRUPTIONS], dtype=np.float64)
"""By place in the catalogue's table of hardware faults, whose first classes are these causes."""


def incident_rates(catalogue: Catalogue, scale: float) -> Floats:
    names = catalogue.classes("incident")
    chances = np.array([CHOSEN["incident_a_week"].get(name, 0.0) for name in names]) * scale
    return np.asarray(-np.log1p(-np.minimum(chances, 0.999)) / WEEK_S)


def fault_rates(faults: Faults, inventory: HostInventory) -> Floats:
    healthy = faults.per_1000_node_days / 1000
    daily = np.where(inventory.lemon, faults.lemon_faults_per_day, healthy)
    return np.asarray(daily / DAY_S)


def event_rates(section: Section) -> Floats:
    """Return float[cells]: chances on one host in a window of the shipped plan."""
    if section.name == "hardware_faults":
        host_seconds = LLAMA3_HOSTS * LLAMA3_DAYS * DAY_S
        expected = np.zeros(section.length)
        expected[: len(CAUSE_COUNTS)] = CAUSE_COUNTS * FAULT_WINDOW_S / host_seconds
    elif section.name == "incidents":
        expected = np.array([CHOSEN["incident_a_week"].get(c, 0.0) for c in section.cells])
    else:
        expected = np.zeros(section.length)
    return np.minimum(expected, 1.0)


Hosts = NDArray[np.int64]
Steps = Generator[simpy.Event, object, None]

_RESTART_S = 300.0


@dataclass(slots=True)
class WideJob:
    """A job over more hosts than one.

    hosts       those that it runs on now; wanted: all that it asked for, in order
    end_s       when it will have done its work
    grows_at_s  when it may have more hosts
    """

    number: int
    hosts: Hosts
    wanted: int
    group: int
    gpus: float
    end_s: float
    grows_at_s: float = NEVER


@dataclass(frozen=True, slots=True)
class Interrupted:
    group: int
    gpus: float
    rest_s: float
    operator: int


class RareEvents:
    """Runs the event queue beside the ticks; counts by kind and cause, jobs to start again."""

    def __init__(self, scenario: Scenario, catalogue: Catalogue, floor: Floor) -> None:
        self._scenario, self._floor = scenario, floor
        self._rng = stream(scenario.seed, "rare events")
        self._causes, incidents = catalogue.classes("hardware_fault"), catalogue.classes("incident")
        self._shown = {
            self._causes.index(fault): incidents.index(incident)
            for fault, incident in CHOSEN["fault_shows_as"].items()
        }
        self._switch = self._causes.index("network_switch_or_cable")
        self._congested = incidents.index("nic_cross_traffic")
        self._rates = fault_rates(scenario.faults, floor.inventory)
        self._lemon_faults: Counter[int] = Counter()
        self._wide: dict[int, WideJob] = {}
        self.hardware, self.incidents = HostLog(), HostLog()
        self.counts: Counter[str] = Counter()
        self.interrupted: list[Interrupted] = []
        self._env = simpy.Environment(initial_time=scenario.start_s)
        self._env.process(self._faults())
        if scenario.upgrades.every_hours > 0:
            self._env.process(self._upgrades())
        if scenario.adversaries.mass_restart_hour >= 0:
            self._env.process(self._mass_restart())

    @property
    def now_s(self) -> float:
        return float(self._env.now)

    def advance(self, until_s: float) -> None:
        if until_s > self._env.now:
            self._env.run(until=until_s)

    def start_wide(self, job: WideJob) -> None:
        """Begin a job over many hosts; the floor has it already on `job.hosts`."""
        self._wide[job.number] = job
        self._env.process(self._wide_job(job))

    def grow(self, job: WideJob, more: Hosts) -> None:
        """Give a job more hosts; the floor has it already on them."""
        job.hosts = np.concatenate([job.hosts, more])

    def growing(self) -> list[WideJob]:
        return [job for job in self._wide.values() if len(job.hosts) < job.wanted]

    def _wide_job(self, job: WideJob) -> Steps:
        yield self._env.timeout(max(job.end_s - self.now_s, 0.0))
        if self._wide.get(job.number) is job:
            del self._wide[job.number]
            self._floor.stop(job.hosts, self.now_s)

    def slow_down(self, job: WideJob, begin_s: float, end_s: float, slowdown: float) -> None:
        """Plan a wide job's episode: its steps take longer, and one of its hosts is congested."""
        self._env.process(self._episode(job, begin_s, end_s, slowdown))

    def _episode(self, job: WideJob, begin_s: float, end_s: float, slowdown: float) -> Steps:
        yield self._env.timeout(max(begin_s - self.now_s, 0.0))
        if self._wide.get(job.number) is job:
            self._floor.slow(job.hosts, begin_s, end_s, slowdown)
            self._show(self._congested, self._rng.choice(job.hosts, 1))

    def _faults(self) -> Steps:
        """Faults of all hosts are one stream at the sum of their rates."""
        while True:
            total = float(self._rates.sum())
            if total <= 0:
                return
            yield self._env.timeout(self._rng.exponential(1 / total))
            chances = np.cumsum(self._rates)
            host = int(np.searchsorted(chances, self._rng.random() * chances[-1], side="right"))
            if self._floor.down_until_s[host] <= self.now_s:
                self._strike(host)

    def _strike(self, host: int) -> None:
        now, floor, faults = self.now_s, self._floor, self._scenario.faults
        shares = CAUSE_COUNTS / CAUSE_COUNTS.sum()
        cause = int(self._rng.choice(len(CAUSE_COUNTS), size=1, p=shares)[0])
        where = np.array([host])
        self.hardware.add_events(where, np.array([cause]), np.array([now]))
        if cause in self._shown:
            leaf = floor.inventory.leaf  # all under a switch notice, else the one
            hit = np.flatnonzero(leaf == leaf[host]) if cause == self._switch else where
            self._show(self._shown[cause], hit)
        self.counts[f"fault {self._causes[cause]}"] += 1
        self._interrupt(host)
        if self._causes[cause] not in CHOSEN["without_repair"]["faults"]:
            floor.down_until_s[host] = now + self._rng.exponential(faults.repair_hours * 3600)
        if floor.inventory.lemon[host]:
            self._lemon_faults[host] += 1
            if self._lemon_faults[host] == faults.lemon_quarantine_faults:
                self._rates[host] = faults.per_1000_node_days / 1000 / 86_400
                self.counts["lemons exchanged"] += 1

    def _show(self, incident: int, hosts: Hosts) -> None:
        codes = np.full(len(hosts), incident)
        self.incidents.add_events(hosts, codes, np.full(len(hosts), self.now_s))

    def _interrupt(self, host: int) -> None:
        number = int(self._floor.job[host])
        if number == IDLE:
            return
        job = self._wide.pop(number, None)
        if job is None:
            self._floor.stop(np.array([host]), self.now_s)
            return
        self._floor.stop(job.hosts, self.now_s)
        self.counts["wide jobs interrupted"] += 1
        rest_s, operator = job.end_s - self.now_s, int(self._floor.inventory.operator[host])
        self.interrupted.append(Interrupted(job.group, job.gpus, rest_s, operator))

    def _upgrades(self) -> Steps:
        upgrades, hosts = self._scenario.upgrades, self._floor.inventory.hosts
        while True:
            yield self._env.timeout(upgrades.every_hours * 3600)
            order = self._rng.permutation(hosts)
            size = max(round(upgrades.wave_share * hosts), 1)
            for first in range(0, hosts, size):
                wave = order[first : first + size]
                self._silence(wave, upgrades.down_minutes * 60)
                self.counts["hosts upgraded"] += len(wave)
                yield self._env.timeout(upgrades.wave_minutes * 60)

    def _mass_restart(self) -> Steps:
        yield self._env.timeout(self._scenario.adversaries.mass_restart_hour * 3600)
        self._silence(np.flatnonzero(self._floor.inventory.operator == 0), _RESTART_S)
        self.counts["mass restarts"] += 1

    def _silence(self, hosts: Hosts, seconds: float) -> None:
        until = self._floor.silent_until_s
        until[hosts] = np.maximum(until[hosts], self.now_s + seconds)
