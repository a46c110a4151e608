"""The fleet over time: closed-loop load and rare events, or minutes in which nobody changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.applications import class_places
from simulator.scenario import Scenario
from simulator.streams import philox, stream
from wire.catalogue import Catalogue, Section

from .fleet_events import RareEvents, event_rates, incident_rates
from .hosts import (
    IDLE,
    SEEN_WORDS,
    FleetState,
    Floor,
    HostInventory,
    attendance,
    gather_bits,
    link_speeds,
    make_inventory,
)
from .jobs import Groups, PlacementBatch, make_groups, overlap_share
from .scheduler import Scheduler

Bits = NDArray[np.uint64]

KEEP_S: Final = 8 * 604_800
"""How far back the event bits of a state reach: the longest window of the shipped plan."""


class FleetModel:
    """Who runs what, window by window; it depends on the scenario alone, not on what was asked."""

    def __init__(self, scenario: Scenario, catalogue: Catalogue, keep_s: int = KEEP_S) -> None:
        """Lay out the fleet and fill it with jobs met in the middle of their lives.

        keep_s  seconds of history that windows may reach back over
        Raises  ScenarioError for names that the catalogue or the tables do not have
        """
        self.scenario, self._catalogue, self._keep_s = scenario, catalogue, keep_s
        self.inventory: HostInventory = make_inventory(scenario, catalogue)
        self.groups = make_groups(scenario, catalogue)
        self.applications = self.groups.applications
        self._floor = Floor(self.inventory, class_places(self.applications, catalogue))
        self._rare = RareEvents(scenario, catalogue, self._floor)
        self._scheduler = Scheduler(scenario, self.groups, self._floor, self._rare)
        self._incident_rates = incident_rates(catalogue, scenario.faults.incidents_scale)
        self._ticks = 0
        self._scheduler.fill(stream(scenario.seed, "first jobs"))

    @property
    def now_s(self) -> int:
        return self.scenario.start_s + self._ticks * self.scenario.step_s

    @property
    def counts(self) -> Counter[str]:
        return self._rare.counts + self._scheduler.counts

    @property
    def started(self) -> tuple[PlacementBatch, ...]:
        """Jobs that were started of late, in order; without those of the first fill."""
        return tuple(self._scheduler.started)

    def at(self, start_s: int, window_s: int) -> FleetState:
        """Simulate up to a window's end and say what every host did in it.

        Jobs, speed and presence are those of its end, bits of all of it. Ask in ascending order of
        ends: earlier windows get today's jobs. Raises ValueError before the start or what is kept.
        """
        end_s = start_s + window_s
        oldest = max(self.scenario.start_s, self.now_s - self._keep_s)
        if start_s < oldest or window_s < 1:
            raise ValueError(f"expected a window from {oldest} on, got {start_s} + {window_s} s")
        self.advance(end_s)
        return self._state(start_s, window_s)

    def advance(self, until_s: int) -> None:
        """Simulate up to a time at least: how a run that was stopped comes back to where it was."""
        while self.now_s < until_s:
            self._tick()

    def recorded_share(self, state: FleetState) -> float:
        """Share of the busy GPUs that run a recording on its GPU model; the rest are variants."""
        models = self._catalogue.classes("gpu_model")
        recorded = np.array(
            [
                models.index(a.workload.gpu_model) if a.is_recording else -1
                for a in self.applications
            ]
        )
        held = state.busy * self.inventory.gpus
        same = recorded[state.application] == self.inventory.gpu_model
        whole = float(held.sum())
        return float(held[same & (state.application != IDLE)].sum()) / whole if whole else 0.0

    def _tick(self) -> None:
        now_s = self.now_s
        rng = philox(self.scenario.seed, "tick", self._ticks)
        self._floor.stop_ended(now_s)
        self._scheduler.start_due(now_s, rng)
        self._strike_incidents(now_s, rng)
        self._rare.advance(now_s + self.scenario.step_s)
        self._ticks += 1
        if self._ticks % 1024 == 0:
            for log in (self._floor.runs, self._rare.hardware, self._rare.incidents):
                log.forget_before(now_s - self._keep_s)

    def _strike_incidents(self, now_s: int, rng: np.random.Generator) -> None:
        hosts, step_s = self.inventory.hosts, self.scenario.step_s
        struck = rng.poisson(self._incident_rates * hosts * step_s)
        codes = np.repeat(np.arange(len(struck)), struck)
        where = rng.integers(0, hosts, len(codes))
        times = now_s + rng.random(len(codes)) * step_s
        self._rare.incidents.add_events(where, codes, times)

    def _state(self, start_s: int, window_s: int) -> FleetState:
        floor, end_s = self._floor, start_s + window_s
        comes, late = attendance(self.scenario, start_s, window_s)
        slow = overlap_share(floor.slow_from_s, floor.slow_until_s, start_s, window_s)
        out = (floor.down_until_s >= end_s) | (floor.silent_until_s >= end_s)
        return FleetState(
            start_s=start_s,
            window_s=window_s,
            inventory=self.inventory,
            application=floor.application.copy(),
            job=floor.job.copy(),
            busy=floor.busy.copy(),
            speed=(floor.pace * (1 - slow * (1 - 1 / floor.slowdown))).astype(np.float32),
            present=~out & comes,
            late=late,
            incidents=self._struck(self._rare.incidents.between(start_s, end_s)),
            hardware=self._struck(self._rare.hardware.between(start_s, end_s)),
            seen=self._seen(start_s, end_s),
        )

    def _struck(self, events: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Bits:
        return gather_bits(self.inventory.hosts, 1, *events)[:, 0]

    def _seen(self, start_s: int, end_s: int) -> Bits:
        floor, hosts = self._floor, self.inventory.hosts
        seen = gather_bits(hosts, SEEN_WORDS, *floor.runs.between(start_s, end_s))
        running = np.flatnonzero((floor.job != IDLE) & (floor.since_s < end_s))
        places = floor.places[floor.application[running]]
        return np.asarray(seen | gather_bits(hosts, SEEN_WORDS, running, places))


class SteadyFleet:
    """`FleetStates` of a scenario whose windows are too short for jobs and load to change.

    A busy host runs one application on all of its GPUs, of the model that this was recorded on.
    Rare events are those of a week of incidents and eight of hardware faults in each window.
    """

    def __init__(self, scenario: Scenario, catalogue: Catalogue) -> None:
        """Raises ScenarioError for names that the catalogue or the tables do not have."""
        groups = make_groups(scenario, catalogue)
        self.scenario, self.applications = scenario, groups.applications
        self._runs = _assigned(scenario, groups)
        self._idle = self._runs == IDLE
        models = catalogue.classes("gpu_model")
        recorded = np.array(
            [models.index(application.workload.gpu_model) for application in self.applications]
        )
        laid_out = make_inventory(scenario, catalogue)
        model = np.where(self._idle, laid_out.gpu_model, recorded[self._runs]).astype(np.int8)
        links = link_speeds(models)[model]
        self.inventory = replace(laid_out, gpu_model=model, link_gbit=links)
        busy, places = np.flatnonzero(~self._idle), class_places(self.applications, catalogue)
        self._seen = gather_bits(scenario.hosts, SEEN_WORDS, busy, places[self._runs[busy]])
        self._incidents = catalogue.section("incidents")
        self._hardware = catalogue.section("hardware_faults")

    def at(self, start_s: int, window_s: int) -> FleetState:
        """See `FleetStates.at`; windows may be asked for in any order."""
        present, late = attendance(self.scenario, start_s, window_s)
        rng = philox(self.scenario.seed, "events", window_s, start_s)
        hosts = self.scenario.hosts
        return FleetState(
            start_s=start_s,
            window_s=window_s,
            inventory=self.inventory,
            application=self._runs,
            job=np.where(self._idle, IDLE, np.arange(hosts)).astype(np.int32),
            busy=(~self._idle).astype(np.float32),
            speed=self.inventory.pace,
            present=present,
            late=late,
            incidents=_struck(self._incidents, hosts, rng),
            hardware=_struck(self._hardware, hosts, rng),
            seen=self._seen,
        )


def _assigned(scenario: Scenario, groups: Groups) -> NDArray[np.int16]:
    """Draw int16[hosts]: the application of each host, IDLE for none."""
    chances = np.zeros(len(groups.applications))
    for members, share in zip(groups.members, groups.shares, strict=True):
        chances[members] = share / len(members)
    busy = scenario.load.busy_share
    kinds = np.append(np.arange(len(chances)), IDLE)
    chances = np.append(chances * busy, 1 - busy)
    rng = stream(scenario.seed, "work")
    return rng.choice(kinds, size=scenario.hosts, p=chances).astype(np.int16)


def _struck(section: Section, hosts: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Draw uint64[hosts]: which events of a section each host met, at `event_rates`."""
    chances = event_rates(section)
    words = np.zeros(hosts, dtype=np.uint64)
    for place in np.flatnonzero(chances):
        met = (rng.random(hosts) < chances[place]).astype(np.uint64)
        words |= met << np.uint64(place)
    return words
