"""The hosts of a fleet: whose they are, their GPUs and links, and which of them are lemons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import Scenario, ScenarioError
from simulator.streams import stream
from wire.catalogue import Catalogue

LEAF_HOSTS: Final = 32
LINK_GBIT: Final = {
    "V100": 100, "A100": 200, "H100": 400, "H200": 400, "B200": 400, "MI300X": 400, "L40S": 200,
}  # fmt: skip
"""What machines of that generation are commonly sold with; chosen."""


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What a fleet consists of; it does not change.

    operator    int16[hosts], index of the operator; each operator's hosts lie together
    gpu_model   int8[hosts], place in the catalogue's table of GPU models
    gpus        int8[hosts]
    lemon       bool[hosts], hosts that fail again and again (until exchanged)
    pace        float32[hosts], speed of the host on its own; 1 is a healthy one of its model
    leaf        int32[hosts], the switch that it hangs on
    link_gbit   int16[hosts], speed of one of its links to it
    """

    operator: NDArray[np.int16]
    gpu_model: NDArray[np.int8]
    gpus: NDArray[np.int8]
    lemon: NDArray[np.bool_]
    pace: NDArray[np.float32]
    leaf: NDArray[np.int32]
    link_gbit: NDArray[np.int16]

    @property
    def hosts(self) -> int:
        return len(self.gpus)

    @property
    def total_gpus(self) -> int:
        return int(self.gpus.sum(dtype=np.int64))


def make_inventory(scenario: Scenario, catalogue: Catalogue) -> HostInventory:
    """Lay out a scenario's hosts: operators and shapes by their shares, exactly to one host.

    Raises  ScenarioError for a GPU model that the catalogue does not have
    """
    models = catalogue.classes("gpu_model")
    for shape in scenario.shapes:
        if shape.gpu_model not in models:
            raise ScenarioError(
                f"shape.gpu_model: expected one of {', '.join(models)}, got {shape.gpu_model!r}"
            )
    hosts, rng = scenario.hosts, stream(scenario.seed, "inventory")
    operator = np.repeat(np.arange(len(scenario.operators)), split(hosts, scenario.operators))
    parts = split(hosts, [shape.share for shape in scenario.shapes])
    kind = rng.permutation(np.repeat(np.arange(len(parts)), parts))
    model = np.array([models.index(shape.gpu_model) for shape in scenario.shapes])
    gpus = np.array([shape.gpus for shape in scenario.shapes])
    lemon = rng.random(hosts) < scenario.faults.lemon_share
    return HostInventory(
        operator.astype(np.int16),
        model[kind].astype(np.int8),
        gpus[kind].astype(np.int8),
        lemon,
        _paces(scenario, rng),
        (np.arange(hosts) // LEAF_HOSTS).astype(np.int32),
        link_speeds(models)[model[kind]],
    )


def link_speeds(models: Sequence[str]) -> NDArray[np.int16]:
    """Gbit/s of a link of a host with each GPU model; an unknown one has the slowest."""
    return np.array([LINK_GBIT.get(model, min(LINK_GBIT.values())) for model in models], np.int16)


def _paces(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.float32]:
    load = scenario.load
    pace = np.exp(-np.abs(rng.normal(0.0, load.speed_spread, scenario.hosts)))
    straggles = rng.random(scenario.hosts) < load.straggler_share
    return np.where(straggles, pace * load.straggler_speed, pace).astype(np.float32)


def split(whole: int, shares: Sequence[float]) -> list[int]:
    """Split a number by shares: every part is its share rounded up or down, and they sum to it."""
    reached = np.rint(np.cumsum(shares) / np.sum(shares) * whole).astype(np.int64)
    return [int(part) for part in np.diff(reached, prepend=0)]
