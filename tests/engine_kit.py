"""A small simulated fleet with a plan of its own, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.engine.exact import HONEST, ExactEngine, ExactParties, Tampering
from simulator.engine.fast import MaskedEngine, NoiseEngine
from simulator.engine.interface import EngineSettings, Noise, RowSource, WindowOutcome
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.fleet_rows import FleetRows
from simulator.fleet.hosts import FleetState
from simulator.scenario import Dropout, Scenario
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

CATALOGUE = Catalogue.load()
WEIGHTS: Mapping[str, int] = MappingProxyType(
    {"kernel_mix": 400_000, "host_cpu": 200_000, "incidents": 200_000}
)
SEEDED = EngineSettings(noise=Noise.SEEDED, seed=7, block_hosts=24)
SILENT = replace(SEEDED, noise=Noise.NONE)


def plan(window_s: int = 60, weights: Mapping[str, int] = WEIGHTS, hosts: int = 100) -> Plan:
    sections = tuple(PlannedSection(name, weight) for name, weight in weights.items())
    task = PlannedTask("minute", window_s, 30, 21_600, sections)
    return Plan("test", "masked", 2_000_000, 1_000, hosts, hosts * 4 // 5, hosts // 10, 3, (task,))


def scenario(hosts: int = 60, minutes: int = 3, **changes: object) -> Scenario:
    """A few minutes of a small fleet in which hosts drop out and are late."""
    made = Scenario(
        name="small",
        seed=7,
        hosts=hosts,
        duration_s=60 * minutes,
        operators=(1.0, 1.0, 1.0, 1.0, 1.0),
        dropout=Dropout(share=0.05, late_share=0.04),
    )
    return made.with_(**changes) if changes else made


@dataclass
class SmallFleet:
    scenario: Scenario
    planned: Plan

    def __post_init__(self) -> None:
        self.model = FleetModel(self.scenario, CATALOGUE)
        self.parties = ExactParties()
        self.span = self.scenario.start_s, self.scenario.end_s
        (self.task,) = fleet_tasks(
            self.planned, CATALOGUE, self.model.inventory, self.span, self.parties.public_keys
        )

    @cached_property
    def states(self) -> list[FleetState]:
        starts = range(*self.span, self.task.window_s)
        return [self.model.at(start, self.task.window_s) for start in starts]

    @cached_property
    def rows(self) -> FleetRows:
        return FleetRows(CATALOGUE, self.task, self.model.applications)

    def engine(
        self, fidelity: str, settings: EngineSettings, tampering: Tampering = HONEST
    ) -> ExactEngine | MaskedEngine | NoiseEngine:
        inventory = self.model.inventory
        if fidelity == "exact":
            return ExactEngine(self.parties, [self.task], inventory, self.span, settings, tampering)
        return (MaskedEngine if fidelity == "masked" else NoiseEngine)(inventory, settings)

    def play(
        self,
        fidelity: str,
        settings: EngineSettings,
        tampering: Tampering = HONEST,
        rows: RowSource | None = None,
    ) -> list[WindowOutcome]:
        return list(self._play(fidelity, settings, tampering, rows or self.rows))

    def _play(
        self, fidelity: str, settings: EngineSettings, tampering: Tampering, rows: RowSource
    ) -> Iterator[WindowOutcome]:
        with closing(self.engine(fidelity, settings, tampering)) as engine:
            for state in self.states:
                yield engine.window(self.task, state.start_s, state, rows)


def small_fleet(hosts: int = 60, minutes: int = 3, **changes: object) -> SmallFleet:
    """The usual one."""
    return SmallFleet(scenario(hosts, minutes, **changes), plan())


class SameRows:
    """Rows that every window repeats, drawn once: what is left is rounding and noise."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self._rows = rows

    def block(
        self,
        state: FleetState,
        lo: int,
        hi: int,
        rng: np.random.Generator,
        out: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        return self._rows[lo:hi]


def exact_steps(task: Task, truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """The truth in steps, unrounded; no section of these tests clips."""
    q = np.repeat([spec.q for spec in task.sections], [spec.length for spec in task.sections])
    scale = np.repeat(
        [spec.cap_steps if spec.m else 1 for spec in task.sections],
        [spec.length for spec in task.sections],
    )
    return np.asarray(truth / q * scale)


def errors(outcomes: list[WindowOutcome]) -> NDArray[np.float64]:
    """Released minus true of every cell and window, in predicted standard deviations of noise."""
    found = []
    for one in outcomes:
        assert one.released is not None
        sigma = one.task.sigma_vector_1024()[CHECK_WORDS:] / 1024 * np.sqrt(one.n)
        found.append((one.released[CHECK_WORDS:] - exact_steps(one.task, one.truth)) / sigma)
    return np.concatenate(found)
