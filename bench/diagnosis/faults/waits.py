"""Waiting for somebody else: a slow peer, a slow input."""

from __future__ import annotations

import time
from typing import Final

from bench.diagnosis.faults.fault import Fault
from bench.diagnosis.network import command
from bench.diagnosis.processes import python


class _PeerWait(Fault):
    cause = "communication_wait"
    counter = "exchange_wait_s"
    least = 0.05

    def meter(self) -> float:
        return self.work.knobs["exchange_wait_s"]


class SlowPeer(_PeerWait):
    """The peer answers late, on a share of its answers."""

    injector = "slow_peer"
    delays: Final = ((4.0, 0.6), (10.0, 0.5), (30.0, 0.5))

    def inject(self) -> None:
        delay_ms, share = self.delays[self.intensity]
        self.work.knobs["peer_share"] = share
        self.work.knobs["peer_delay_ms"] = delay_ms

    def withdraw(self) -> None:
        self.work.knobs["peer_delay_ms"] = 0


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

    _items, _items_at = 0.0, 0.0

    def watch(self) -> None:
        self._items, self._items_at = self.work.knobs["decodes"], time.monotonic()
        super().watch()

    def items_per_s(self) -> float:
        """Items that the job took in the undisturbed stretch."""
        elapsed_s = max(time.monotonic() - self._items_at, 1e-3)
        return max(1.0, (self.work.knobs["decodes"] - self._items) / elapsed_s)

    def meter(self) -> float:
        return self.work.knobs["input_wait_s"]


class SlowStore(_InputWait):
    """The store behind the feeder gives fewer bytes a second than the job takes."""

    injector = "slow_store"
    shares: Final = (0.75, 0.5, 0.3)

    def inject(self) -> None:
        share = self.shares[self.intensity]
        self.work.knobs["store_bytes_per_s"] = self.items_per_s() * (64 << 10) * share

    def withdraw(self) -> None:
        self.work.knobs["store_bytes_per_s"] = 0


class HeavyDecode(_InputWait):
    """The feeder's items take longer to decode than a step lasts."""

    injector = "heavy_decode"
    times: Final = (1.3, 1.8, 3.0)

    def inject(self) -> None:
        self.work.knobs["decode_ms"] = 1e3 / self.items_per_s() * self.times[self.intensity]

    def withdraw(self) -> None:
        self.work.knobs["decode_ms"] = 0
