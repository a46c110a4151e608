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

Floats = NDArray[np.float64]

DAY_S: Final = 86_400
WEEK_S: Final = 604_800
FAULT_WINDOW_S: Final = 8 * WEEK_S

CAUSE_COUNTS: Final = np.array([count for _, count in LLAMA3_INTERRUPTIONS], dtype=np.float64)
"""By place in the catalogue's table of hardware faults, whose first classes are these causes."""

_WITHOUT_REPAIR: Final = frozenset(
    {"software_bug", "nccl_watchdog_timeout", "silent_data_corruption", "dependency"}
)
"""After these a job is started again on the same hosts."""

_FAULT_INCIDENTS: Final = {
    "faulty_gpu": "gpu_hardware_fault",
    "gpu_hbm3_memory": "gpu_hardware_fault",
    "gpu_sram_memory": "gpu_hardware_fault",
    "gpu_system_processor": "gpu_hardware_fault",
    "network_switch_or_cable": "nic_limit_or_loss",
    "nic": "nic_limit_or_loss",
    "gpu_thermal_interface_and_sensor": "gpu_thermal_or_power_limit",
    "power_supply": "gpu_thermal_or_power_limit",
    "ssd": "disk_io",
    "system_memory": "memory_pressure",
}
"""The cause of tail latency that a fault shows as."""

INCIDENTS_A_WEEK: Final = {
    "cpu_contention": 0.06, "cgroup_throttling": 0.03, "memory_pressure": 0.025, "disk_io": 0.04,
    "nic_cross_traffic": 0.05, "nic_limit_or_loss": 0.02, "pcie_pressure": 0.015,
    "gpu_thermal_or_power_limit": 0.07, "gpu_hardware_fault": 0.01, "gpu_shared": 0.02,
    "communication_wait": 0.10, "input_starvation": 0.06, "unknown": 0.02,
}  # fmt: skip
"""Chance that a host meets a cause of tail latency in one week; chosen, for want of published
rates, and so low that few hosts meet more than a host may report."""


def needs_repair(catalogue: Catalogue) -> NDArray[np.bool_]:
    """Say for each published cause, by place, whether its host leaves service."""
    names = catalogue.classes("hardware_fault")[: len(CAUSE_COUNTS)]
    return np.array([name not in _WITHOUT_REPAIR for name in names])


def incident_of_fault(catalogue: Catalogue) -> NDArray[np.int64]:
    """Give for each published cause the place of the incident that it shows as, -1 for none."""
    names = catalogue.classes("hardware_fault")[: len(CAUSE_COUNTS)]
    incidents = list(catalogue.classes("incident"))
    shown = [_FAULT_INCIDENTS.get(name) for name in names]
    return np.array([-1 if incident is None else incidents.index(incident) for incident in shown])


def incident_rates(catalogue: Catalogue, scale: float) -> Floats:
    names = catalogue.classes("incident")
    chances = np.array([INCIDENTS_A_WEEK.get(name, 0.0) for name in names]) * scale
    return np.asarray(-np.log1p(-np.minimum(chances, 0.999)) / WEEK_S)


def draw_causes(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.choice(len(CAUSE_COUNTS), size=count, p=CAUSE_COUNTS / CAUSE_COUNTS.sum())


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
        expected = np.array([INCIDENTS_A_WEEK.get(c, 0.0) for c in section.cells])
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
        self._repair = needs_repair(catalogue)
        self._shown = incident_of_fault(catalogue)
        self._switch = catalogue.classes("hardware_fault").index("network_switch_or_cable")
        self._congested = catalogue.classes("incident").index("nic_cross_traffic")
        self._causes = catalogue.classes("hardware_fault")
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
        cause = int(draw_causes(1, self._rng)[0])
        where = np.array([host])
        self.hardware.add_events(where, np.array([cause]), np.array([now]))
        if self._shown[cause] >= 0:
            self._show(int(self._shown[cause]), self._hit(host, cause))
        self.counts[f"fault {self._causes[cause]}"] += 1
        self._interrupt(host)
        if self._repair[cause]:
            floor.down_until_s[host] = now + self._rng.exponential(faults.repair_hours * 3600)
        if floor.inventory.lemon[host]:
            self._watch_lemon(host)

    def _hit(self, host: int, cause: int) -> Hosts:
        """Hosts that notice a fault: all under a switch, else the one."""
        leaf = self._floor.inventory.leaf
        if cause == self._switch:
            return np.flatnonzero(leaf == leaf[host])
        return np.array([host])

    def _show(self, incident: int, hosts: Hosts) -> None:
        codes = np.full(len(hosts), incident)
        self.incidents.add_events(hosts, codes, np.full(len(hosts), self.now_s))

    def _watch_lemon(self, host: int) -> None:
        self._lemon_faults[host] += 1
        if self._lemon_faults[host] == self._scenario.faults.lemon_quarantine_faults:
            self._rates[host] = self._scenario.faults.per_1000_node_days / 1000 / 86_400
            self.counts["lemons exchanged"] += 1

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
