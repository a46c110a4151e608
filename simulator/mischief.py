"""A network between hosts and the log that copies, forges, damages and delays what it carries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transport.interface import ForwardingTransport, Producer, Transport
from wire.envelope import Kind, unwrap, wrap
from wire.topics import REPORTS

_HOST_BYTES = 16


_DUPLICATED, _FORGED, _DAMAGED = 0.004, 0.002, 0.002
"""Shares of reports that are delivered again: as they are, under the name of a host that is on no
roster, with one bit of the box changed. None of it may change a released sum."""


class MischievousProducer:
    """Sends every record once, in order, and some of the reports again."""

    def __init__(self, network: MischievousTransport) -> None:
        self._inner, self._network = network.inner.producer(), network
        self._held: list[tuple[float, bytes, bytes]] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Queue one record, or hold it back when its host is one of the late ones."""
        if topic != REPORTS:
            self._inner.send(topic, key, value)
            return
        until_s = self._network.held_until_s(value)
        if until_s > self._network.now_s():
            self._held.append((until_s, key, value))
            return
        self._inner.send(topic, key, value)
        rng = self._network.rng
        kind, core = unwrap(value, len(value))
        lots = rng.random(3)
        if lots[0] < _DUPLICATED:
            self._inner.send(REPORTS, key, value)
        if lots[1] < _FORGED:
            host = rng.bytes(_HOST_BYTES)
            self._inner.send(REPORTS, host, wrap(Kind(kind), host + core[_HOST_BYTES:]))
        if lots[2] < _DAMAGED:
            broken = core[:-1] + bytes([core[-1] ^ 1])
            self._inner.send(REPORTS, key, wrap(Kind(kind), broken))

    def flush(self) -> None:
        now_s = self._network.now_s()
        for until_s, key, value in self._held:
            if until_s <= now_s:
                self._inner.send(REPORTS, key, value)
        self._held = [held for held in self._held if held[0] > now_s]
        self._inner.flush()

    def close(self) -> None:
        """Let go; what is still held is lost, as on any network."""
        self._inner.close()


class MischievousTransport(ForwardingTransport):
    """A transport whose producers misbehave; consumers see what the log holds.

    held_until_s   envelope of a report -> time until which the network holds it back; 0: not
    """

    def __init__(
        self,
        inner: Transport,
        rng: np.random.Generator,
        held_until_s: Callable[[bytes], float],
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(inner)
        self.rng = rng
        self.held_until_s, self.now_s = held_until_s, now_s

    def producer(self) -> Producer:
        return MischievousProducer(self)
