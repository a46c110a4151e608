"""The hosts of a fleet: whose they are, their GPUs and links, what each does and did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.applications import Application
from simulator.scenario import Scenario, ScenarioError
from simulator.streams import philox, stream
from wire.catalogue import Catalogue

LEAF_HOSTS: Final = 32
LINK_GBIT: Final = {
    "V100": 100, "A100": 200, "H100": 400, "H200": 400, "B200": 400, "MI300X": 400, "L40S": 200,
}  # fmt: skip
"""What machines of that generation are commonly sold with; chosen."""

IDLE: Final = -1
"""Application and job of a host that runs none."""

SEEN_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What a fleet consists of; it does not change.

    operator    int16[hosts], index of the operator; each operator's hosts lie together
    gpu_model   int8[hosts], place in the catalogue's table of GPU models
    lemon       bool[hosts], hosts that fail again and again (until exchanged)
    pace        float32[hosts], speed of the host on its own; 1 is a healthy one of its model
    leaf        int32[hosts], the switch that it hangs on
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
    """Lay out hosts by operators' and shapes' shares, exactly to one host. Raises ScenarioError."""
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
    lemon, load = rng.random(hosts) < scenario.faults.lemon_share, scenario.load
    pace = np.exp(-np.abs(rng.normal(0.0, load.speed_spread, hosts)))
    straggles = rng.random(hosts) < load.straggler_share
    return HostInventory(
        operator.astype(np.int16),
        model[kind].astype(np.int8),
        gpus[kind].astype(np.int8),
        lemon,
        np.where(straggles, pace * load.straggler_speed, pace).astype(np.float32),
        (np.arange(hosts) // LEAF_HOSTS).astype(np.int32),
        link_speeds(models)[model[kind]],
    )


def link_speeds(models: Sequence[str]) -> NDArray[np.int16]:
    """Gbit/s of a link of a host with each GPU model; an unknown one has the slowest."""
    return np.array([LINK_GBIT.get(model, min(LINK_GBIT.values())) for model in models], np.int16)


def split(whole: int, shares: Sequence[float]) -> list[int]:
    """Split a number by shares: every part is its share rounded up or down, and they sum to it."""
    reached = np.rint(np.cumsum(shares) / np.sum(shares) * whole).astype(np.int64)
    return [int(part) for part in np.diff(reached, prepend=0)]


@dataclass(frozen=True, slots=True)
class FleetState:
    """One window of the whole fleet; arrays are the model's own copies, not views.

    start_s             Unix seconds
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

    def at(self, start_s: int, window_s: int) -> FleetState: ...


def attendance(
    scenario: Scenario, start_s: int, window_s: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draw bool[hosts] twice: whose report of a window comes at all, and whose comes too late."""
    rng = philox(scenario.seed, "attendance", window_s, start_s)
    comes = rng.random(scenario.hosts) >= scenario.dropout.share
    return comes, rng.random(scenario.hosts) < scenario.dropout.late_share


def unpack(words: NDArray[np.uint64], length: int) -> NDArray[np.uint8]:
    """Return uint8[n, length] of 0 and 1 from uint64[n, words], lowest bit first."""
    little = np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    return np.unpackbits(little, axis=1, bitorder="little", count=length)


Floats = NDArray[np.float64]
Hosts = NDArray[np.int64]
NEVER: Final = float("inf")


class Floor:
    """Who runs what since when; who is down, silent or slow.

    until_s         when a job on one host ends; NEVER where the event queue ends it
    pace            speed of the host's job without episodes: of its slowest host
    slow_*          the host's current or last episode, and how much longer a step takes in it
    down_until_s    out of service; silent_until_s: in service, its agent not
    places          of each application in the catalogue's table
    runs            what ran where, by place, once it has ended
    """

    def __init__(self, inventory: HostInventory, places: Hosts) -> None:
        hosts = inventory.hosts
        self.inventory, self.places = inventory, places
        self.application = np.full(hosts, IDLE, dtype=np.int16)
        self.job = np.full(hosts, IDLE, dtype=np.int32)
        self.busy = np.zeros(hosts, dtype=np.float32)
        self.since_s = np.zeros(hosts)
        self.until_s = np.full(hosts, NEVER)
        self.pace = inventory.pace.copy()
        self.slow_from_s = np.full(hosts, NEVER)
        self.slow_until_s = np.zeros(hosts)
        self.slowdown = np.ones(hosts)
        self.down_until_s = np.zeros(hosts)
        self.silent_until_s = np.zeros(hosts)
        self.runs = HostLog()

    def free(self, now_s: float) -> NDArray[np.bool_]:
        return np.asarray((self.job == IDLE) & (self.down_until_s <= now_s))

    def held_gpus(self, lo: int, hi: int) -> float:
        return float(self.busy[lo:hi] @ self.inventory.gpus[lo:hi])

    def start(
        self, hosts: Hosts, job: Hosts, application: Hosts, busy: NDArray[np.float64], now_s: float
    ) -> None:
        self.job[hosts], self.application[hosts] = job, application
        self.busy[hosts], self.since_s[hosts] = busy, now_s
        self.slow_from_s[hosts], self.slow_until_s[hosts] = NEVER, 0.0
        self.pace[hosts] = self.inventory.pace[hosts]

    def slow(self, hosts: Hosts, begin_s: float, end_s: float, slowdown: float) -> None:
        self.slow_from_s[hosts], self.slow_until_s[hosts] = begin_s, end_s
        self.slowdown[hosts] = slowdown

    def stop(self, hosts: Hosts, now_s: float) -> None:
        hosts = hosts[self.job[hosts] != IDLE]
        if not len(hosts):
            return
        ends = np.minimum(self.until_s[hosts], now_s)
        self.runs.add(
            hosts, self.places[self.application[hosts]], self.since_s[hosts].copy(), ends, now_s
        )
        self.job[hosts] = self.application[hosts] = IDLE
        self.busy[hosts], self.until_s[hosts] = 0.0, NEVER
        self.slow_from_s[hosts], self.slow_until_s[hosts] = NEVER, 0.0
        self.pace[hosts] = self.inventory.pace[hosts]

    def stop_ended(self, now_s: float) -> None:
        self.stop(np.flatnonzero(self.until_s <= now_s), now_s)


@dataclass(slots=True)
class HostLog:
    """Stretches of time on hosts, each with a small code; an event is a stretch of no length."""

    _ends: list[float] = field(default_factory=list)
    _chunks: list[tuple[Hosts, NDArray[np.int64], Floats, Floats]] = field(default_factory=list)

    def add(
        self, hosts: Hosts, codes: NDArray[np.int64], begins: Floats, ends: Floats, now_s: float
    ) -> None:
        """Append entries, same length each, that ended at or before now_s."""
        if len(hosts):
            # Never falling, so that a search finds every chunk that may reach into a window.
            self._ends.append(max(now_s, self._ends[-1]) if self._ends else now_s)
            self._chunks.append((hosts, codes, begins, ends))

    def add_events(self, hosts: Hosts, codes: NDArray[np.int64], at_s: Floats) -> None:
        if len(hosts):
            self.add(hosts, codes, at_s, at_s, float(at_s.max()))

    def between(self, start_s: float, end_s: float) -> tuple[Hosts, NDArray[np.int64]]:
        found = []
        for hosts, codes, begins, ends in self._chunks[bisect_left(self._ends, start_s) :]:
            touching = (begins < end_s) & ((ends > start_s) | (begins >= start_s))
            found.append((hosts[touching], codes[touching]))
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([h for h, _ in found]), np.concatenate([c for _, c in found])

    def forget_before(self, at_s: float) -> None:
        place = bisect_left(self._ends, at_s)
        del self._ends[:place], self._chunks[:place]


def gather_bits(
    hosts: int, words: int, where: Hosts, places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    flat = np.zeros(hosts * words, dtype=np.uint64)
    place = places.astype(np.uint64)
    np.bitwise_or.at(
        flat,
        where * words + (place >> np.uint64(6)).astype(np.int64),
        np.uint64(1) << (place & np.uint64(63)),
    )
    return flat.reshape(hosts, words)
