"""What each host does right now: the mutable heart of the fleet model, arrays by host."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .hosts import HostInventory
from .log import HostLog
from .state import IDLE

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
