"""What every host of the fleet did in one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.applications import Application
from simulator.scenario import Scenario
from simulator.streams import philox

from .hosts import HostInventory

IDLE: Final = -1
"""Application and job of a host that runs none."""

SEEN_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class FleetState:
    """One window of the whole fleet; arrays are the model's own copies, not views.

    start_s, window_s   which window, Unix seconds
    inventory           the hosts
    application         int16[hosts], index into the model's `applications`; IDLE for none
    job                 int32[hosts], IDLE for none
    busy                float32[hosts], share of the host's GPUs that its job holds
    speed               float32[hosts], of a healthy host: stragglers and slow episodes are below 1
    present             bool[hosts], up and in reach: a report is sent
    late                bool[hosts], its report comes after the window's lateness
    incidents           uint64[hosts], causes of tail latency met in this window, class index = bit
    hardware            uint64[hosts], faults met in this window, likewise
    seen                uint64[hosts, 4], applications that ran in it, place in the catalogue = bit
    """

    start_s: int
    window_s: int
    inventory: HostInventory
    application: NDArray[np.int16]
    job: NDArray[np.int32]
    busy: NDArray[np.float32]
    speed: NDArray[np.float32]
    present: NDArray[np.bool_]
    late: NDArray[np.bool_]
    incidents: NDArray[np.uint64]
    hardware: NDArray[np.uint64]
    seen: NDArray[np.uint64]

    @property
    def hosts(self) -> int:
        return len(self.application)

    @property
    def reporting(self) -> NDArray[np.bool_]:
        """Hosts whose report arrives in time: the truth is the sum over their rows."""
        return self.present & ~self.late


class FleetStates(Protocol):
    """A fleet over time: its hosts, what they may run, and what they did in a window."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def inventory(self) -> HostInventory: ...

    @property
    def applications(self) -> Sequence[Application]: ...

    def at(self, start_s: int, window_s: int) -> FleetState:
        """Say what every host did in a window; ask in ascending order of ends."""
        ...


def attendance(
    scenario: Scenario, start_s: int, window_s: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draw bool[hosts] twice: whose report of a window comes at all, and whose comes too late."""
    rng = philox(scenario.seed, "attendance", window_s, start_s)
    comes = rng.random(scenario.hosts) >= scenario.dropout.share
    return comes, rng.random(scenario.hosts) < scenario.dropout.late_share


def bits(places: NDArray[np.int64], words: int = 1) -> NDArray[np.uint64]:
    """Return uint64[n, words], one bit set in each row; places below 0 set none."""
    rows = np.zeros((len(places), words), dtype=np.uint64)
    set_ = np.flatnonzero(places >= 0)
    place = places[set_].astype(np.uint64)
    rows[set_, (place >> np.uint64(6)).astype(np.int64)] = np.uint64(1) << (place & np.uint64(63))
    return rows


def unpack(words: NDArray[np.uint64], length: int) -> NDArray[np.uint8]:
    """Return uint8[n, length] of 0 and 1 from uint64[n, words], lowest bit first."""
    little = np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    return np.unpackbits(little, axis=1, bitorder="little", count=length)
