"""A fleet over minutes: every host goes on with the one recording that it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import Scenario
from simulator.streams import philox, stream
from wire.catalogue import Catalogue, Section

from .fleet_faults import event_rates
from .hosts import link_speeds, make_inventory
from .queue import Groups, make_groups
from .state import IDLE, SEEN_WORDS, FleetState, attendance, bits


class SteadyFleet:
    """`FleetStates` of a scenario whose windows are too short for jobs and load to change.

    A busy host runs one application on all of its GPUs, drawn by the scenario's shares and
    busy_share, and has the GPU model that this was recorded on. Rare events are those of a window
    of the shipped plan: a week of incidents and eight of hardware faults in each.
    """

    def __init__(self, scenario: Scenario, catalogue: Catalogue) -> None:
        """Lay out the fleet.

        Raises  ScenarioError for names that the catalogue or the tables do not have
        """
        groups = make_groups(scenario, catalogue)
        self.scenario, self.applications = scenario, groups.applications
        self._runs = _assigned(scenario, groups)
        self._idle = self._runs == IDLE
        models = catalogue.classes("gpu_model")
        recorded = np.array([models.index(one.workload.gpu_model) for one in self.applications])
        laid_out = make_inventory(scenario, catalogue)
        model = np.where(self._idle, laid_out.gpu_model, recorded[self._runs]).astype(np.int8)
        links = link_speeds(models)[model]
        self.inventory = replace(laid_out, gpu_model=model, link_gbit=links)
        cells = catalogue.section("applications_seen").cells
        places = np.array([cells.index(one.workload.application) for one in self.applications])
        self._seen = bits(np.where(self._idle, -1, places[self._runs]), SEEN_WORDS)
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
