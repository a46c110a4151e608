"""The link: others' traffic on it, a lower rate, loss."""

from __future__ import annotations

from typing import Final

from bench.diagnosis.faults.fault import LOADS, Fault, Graded
from bench.diagnosis.network import LINK_MBIT, command
from bench.diagnosis.processes import SYSTEM_PYTHON

_MBIT: Final = 1e6 / 8


class _CrossTraffic(Fault):
    cause = "nic_cross_traffic"
    counter = "link_bytes"
    least = 10e6

    def meter(self) -> float:
        return sum(self.work.link.near.bytes_moved())


class Datagrams(_CrossTraffic):
    """Datagrams both ways at a share of the link's rate."""

    injector = "datagrams"
    shares: Final = (0.7, 0.9, 1.3)

    def inject(self) -> None:
        link = self.work.link
        rate = round(link.mbit * _MBIT * self.shares[self.intensity])
        for port, other in ((link.near, link.far), (link.far, link.near)):
            self.load("receive_datagrams", other.address, namespace=other.namespace)
            seed = self.seed * 10 + len(self._launched)
            self.load("send_datagrams", other.address, rate, seed, namespace=port.namespace)


class Streams(_CrossTraffic):
    """Bulk TCP streams both ways."""

    injector = "bulk_streams"
    streams: Final = (1, 2, 5)

    def inject(self) -> None:
        link = self.work.link
        for stream in range(self.streams[self.intensity]):
            for way, (port, other) in enumerate(((link.near, link.far), (link.far, link.near))):
                to = (other.address, 7300 + 2 * stream + way)
                self.load("receive_stream", *to, namespace=other.namespace)
                self.load("send_stream", *to, namespace=port.namespace)


class LowRate(Graded):
    """Both ends send at a lower rate."""

    cause = "nic_limit_or_loss"
    injector = "low_rate"
    counter = "seconds_a_gigabit"
    least = 1.0
    grades = (350.0, 180.0, 80.0)
    rest = float(LINK_MBIT)

    def meter(self) -> float:
        """Time some datagrams through the link: what a gigabit would take, not a growing sum."""
        near, far = self.work.link.ports
        words = [SYSTEM_PYTHON, "-m", LOADS, "time_datagrams", far.address]
        return float(command("ip", "netns", "exec", near.namespace, *words))

    def _rates(self) -> tuple[float, float]:
        (_, before), _, (_, during) = self._readings
        return before, during

    def apply(self, number: float) -> None:
        for port in self.work.link.ports:
            port.set_rate(number)

    def withdraw(self) -> None:
        for port in self.work.link.ports:
            port.set_rate(self.work.link.mbit)


class Loss(Fault):
    """Both ends lose packets that arrive."""

    cause = "nic_limit_or_loss"
    injector = "loss"
    counter = "packets_lost"
    least = 1.0
    shares: Final = (0.006, 0.012, 0.025)

    _losing = False

    def meter(self) -> float:
        if not self._losing:
            return 0.0
        return sum(port.queue("clsact")["drops"] for port in self.work.link.ports)

    def inject(self) -> None:
        for port in self.work.link.ports:
            port.set_loss(self.shares[self.intensity])
        self._losing = True

    def withdraw(self) -> None:
        self._losing = False
        for port in self.work.link.ports:
            port.set_loss(0)
