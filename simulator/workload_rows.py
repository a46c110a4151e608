"""Raw window rows of many hosts that each run one workload: what the demo's fleet reports.

The rows are those of `simulator.fleet.FleetRows`; jobs, faults and load over time are the business
of `simulator.fleet.FleetModel`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wire.catalogue import Catalogue, Section
from wire.task import Task

from .applications import Application
from .fleet import FleetRows, FleetState, HostInventory
from .fleet.fleet_faults import event_rates
from .fleet.hosts import link_speeds
from .fleet.state import IDLE, SEEN_WORDS, bits
from .workloads import Workload, check_classes

Rows = NDArray[np.int64]

IDLE_HOST = IDLE
"""Workload index of a host that runs nothing."""


class WorkloadSampler:
    """Draws raw rows for the sections of one task; simulator only, as its randomness is numpy's."""

    def __init__(self, catalogue: Catalogue, task: Task, workloads: Sequence[Workload]) -> None:
        """Precompute where each kernel row of each workload lands in each section.

        Raises  WorkloadError when a table names a class that the catalogue does not have
        """
        models = catalogue.classes("gpu_model")
        check_classes(
            workloads, catalogue.classes("family"), catalogue.classes("application"), models
        )
        self.workloads = tuple(workloads)
        self._rows = FleetRows(catalogue, task, [Application.recorded(w) for w in workloads])
        self._model = np.array([models.index(w.gpu_model) for w in workloads])
        self._link_gbit = link_speeds([w.gpu_model for w in workloads])
        classes = catalogue.section("applications_seen").cells
        self._place = np.array([classes.index(w.application) for w in workloads])
        self._incidents = catalogue.section("incidents")
        self._hardware = catalogue.section("hardware_faults")

    def sample_rows(
        self,
        workload_index: Rows,
        gpus: Rows,
        window_s: int,
        rng: np.random.Generator,
    ) -> Rows:
        """Draw one window of every host.

        workload_index  int64[hosts], index into `workloads`; IDLE_HOST: none (its GPUs are then of
                        the last workload's model)
        gpus            int64[hosts], GPUs of each host
        Returns         int64[hosts, k], base units of the task's sections in order. Mixes sum to
                        GPUs x window exactly; a host whose coin falls above a section's sampling
                        rate has it all as unmeasured
        """
        state = self._state(workload_index, gpus, window_s, rng)
        return self._rows.block(state, 0, len(gpus), rng)

    def _state(
        self, workload: Rows, gpus: Rows, window_s: int, rng: np.random.Generator
    ) -> FleetState:
        hosts = len(workload)
        inventory = HostInventory(
            operator=np.zeros(hosts, dtype=np.int16),
            gpu_model=self._model[workload].astype(np.int8),
            gpus=gpus.astype(np.int8),
            lemon=np.zeros(hosts, dtype=np.bool_),
            pace=np.ones(hosts, dtype=np.float32),
            leaf=np.zeros(hosts, dtype=np.int32),
            link_gbit=self._link_gbit[workload],
        )
        return FleetState(
            start_s=0,
            window_s=window_s,
            inventory=inventory,
            application=workload.astype(np.int16),
            job=np.where(workload == IDLE, IDLE, np.arange(hosts)).astype(np.int32),
            busy=(workload != IDLE).astype(np.float32),
            speed=inventory.pace,
            present=np.ones(hosts, dtype=np.bool_),
            late=np.zeros(hosts, dtype=np.bool_),
            incidents=_struck(self._incidents, hosts, rng),
            hardware=_struck(self._hardware, hosts, rng),
            seen=bits(np.where(workload == IDLE, -1, self._place[workload]), SEEN_WORDS),
        )


def _struck(section: Section, hosts: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Draw uint64[hosts]: which events of a section each host met, at `event_rates`."""
    chances = event_rates(section)
    words = np.zeros(hosts, dtype=np.uint64)
    for place in np.flatnonzero(chances):
        met = (rng.random(hosts) < chances[place]).astype(np.uint64)
        words |= met << np.uint64(place)
    return words
