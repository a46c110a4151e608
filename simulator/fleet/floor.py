"""What each host does right now, and what happened on it: the mutable heart of the fleet model."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .hosts import IDLE, HostInventory

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
        """Hosts in service without a job."""
        return np.asarray((self.job == IDLE) & (self.down_until_s <= now_s))

    def held_gpus(self, lo: int, hi: int) -> float:
        """GPUs that jobs hold on hosts lo .. hi - 1."""
        return float(self.busy[lo:hi] @ self.inventory.gpus[lo:hi])

    def start(
        self, hosts: Hosts, job: Hosts, application: Hosts, busy: NDArray[np.float64], now_s: float
    ) -> None:
        """Put jobs on free hosts, one row each."""
        self.job[hosts], self.application[hosts] = job, application
        self.busy[hosts], self.since_s[hosts] = busy, now_s
        self.slow_from_s[hosts], self.slow_until_s[hosts] = NEVER, 0.0
        self.pace[hosts] = self.inventory.pace[hosts]

    def slow(self, hosts: Hosts, begin_s: float, end_s: float, slowdown: float) -> None:
        """Plan the episode of a job's hosts."""
        self.slow_from_s[hosts], self.slow_until_s[hosts] = begin_s, end_s
        self.slowdown[hosts] = slowdown

    def stop(self, hosts: Hosts, now_s: float) -> None:
        """Free hosts, and write down what ran on them."""
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
        """Free the hosts whose job of one host has ended."""
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
        """Append events, at_s in any order."""
        if len(hosts):
            self.add(hosts, codes, at_s, at_s, float(at_s.max()))

    def between(self, start_s: float, end_s: float) -> tuple[Hosts, NDArray[np.int64]]:
        """Return hosts and codes of the entries that touch [start_s, end_s)."""
        found = []
        for hosts, codes, begins, ends in self._chunks[bisect_left(self._ends, start_s) :]:
            touching = (begins < end_s) & ((ends > start_s) | (begins >= start_s))
            found.append((hosts[touching], codes[touching]))
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([h for h, _ in found]), np.concatenate([c for _, c in found])

    def forget_before(self, at_s: float) -> None:
        """Drop what ended before a time."""
        place = bisect_left(self._ends, at_s)
        del self._ends[:place], self._chunks[:place]


def gather_bits(
    hosts: int, words: int, where: Hosts, places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return uint64[hosts, words] with the bit of each (host, place) pair set."""
    flat = np.zeros(hosts * words, dtype=np.uint64)
    place = places.astype(np.uint64)
    np.bitwise_or.at(
        flat,
        where * words + (place >> np.uint64(6)).astype(np.int64),
        np.uint64(1) << (place & np.uint64(63)),
    )
    return flat.reshape(hosts, words)
