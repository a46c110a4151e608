"""Waiting for somebody else: a slow peer, a slow input."""

from __future__ import annotations

import time
from typing import Final

from bench.diagnosis.faults.fault import CpuUse, Fault, Graded
from bench.diagnosis.network import command
from bench.diagnosis.processes import python
from bench.diagnosis.workloads.feed import ITEM_BYTES


class _PeerWait(Fault):
    cause = "communication_wait"
    counter = "exchange_wait_s"
    least = 0.05

    def meter(self) -> float:
        return self.work.knobs["exchange_wait_s"]


class SlowPeer(Graded, _PeerWait):
    """The peer answers late, on a share of its answers."""

    injector = "slow_peer"
    grades = (5.0, 10.0, 30.0)
    rest = 0.0

    def apply(self, number: float) -> None:
        self.work.knobs["peer_share"] = 0.5
        self.work.knobs["peer_delay_ms"] = number

    def withdraw(self) -> None:
        self.work.knobs["peer_delay_ms"] = 0


class ThrottledPeer(Graded, _PeerWait):
    """The peer's cgroup has a quota below what the peer needs: it stands still for milliseconds."""

    injector = "throttled_peer"
    grades = (0.8, 0.7, 0.45)
    rest = 1.6

    _use: CpuUse

    def watch(self) -> None:
        self._use = CpuUse(self.work.peer, 0.02)
        super().watch()

    def apply(self, number: float) -> None:
        self.work.peer.set_quota(self._use.cores(self.watched_s()) * number)

    def withdraw(self) -> None:
        self.work.peer.set_quota(None)


class DelayingRelay(_PeerWait):
    """A relay on the way holds every packet back."""

    injector = "delaying_relay"
    delays: Final = ((1.0, 2.0), (3.0, 4.0), (10.0, 8.0))

    def inject(self) -> None:
        link = self.work.link
        ends = [word for port in link.ports for word in (port.namespace, f"{port.device}t")]
        relay = python("bench.diagnosis.faults.relay", *self.delays[self.intensity], *ends)
        self.launch(relay)
        time.sleep(0.4)  # its devices are there
        for port in link.ports:  # both up before the first packet takes this way
            device = f"{port.device}t"
            command("ip", "-n", port.namespace, "link", "set", device, "mtu", "9000", "up")
        for port, other in ((link.near, link.far), (link.far, link.near)):
            way = (f"{other.address}/32", "dev", f"{port.device}t")
            command("ip", "-n", port.namespace, "route", "replace", *way)


class _InputWait(Fault):
    cause = "input_starvation"
    counter = "input_wait_s"
    least = 0.05

    _items, _rate = 0.0, 0.0

    def watch(self) -> None:
        self._items = self.work.knobs["decodes"]
        super().watch()

    def items_per_s(self) -> float:
        """Items that the job took in the undisturbed stretch; first asked at its end."""
        if self._rate == 0.0:
            items = self.work.knobs["decodes"] - self._items
            self._rate = max(1.0, items / self.watched_s())
        return self._rate

    def meter(self) -> float:
        return self.work.knobs["input_wait_s"]


class SlowStore(Graded, _InputWait):
    """The store behind the feeder gives fewer bytes a second than the job takes."""

    injector = "slow_store"
    grades = (0.75, 0.5, 0.3)
    rest = 1.5

    def apply(self, number: float) -> None:
        self.work.knobs["store_bytes_per_s"] = self.items_per_s() * ITEM_BYTES * number

    def withdraw(self) -> None:
        self.work.knobs["store_bytes_per_s"] = 0


class HeavyDecode(Graded, _InputWait):
    """The feeder's items take longer to decode than a step lasts."""

    injector = "heavy_decode"
    grades = (1.3, 1.8, 3.0)
    rest = 0.3

    def apply(self, number: float) -> None:
        self.work.knobs["decode_ms"] = 1e3 / self.items_per_s() * number

    def withdraw(self) -> None:
        self.work.knobs["decode_ms"] = 0
