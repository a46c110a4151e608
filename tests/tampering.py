"""What lies between agents and the log may repeat, hold back, cut short, alter or swallow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transport.interface import Transport

Sent = tuple[str, bytes, bytes]
"""Topic, key and value."""
Tamper = Callable[[int, Sent], Sequence[Sent]]
"""Gives what reaches the log in place of a record of the host with a number."""


class TamperedLog:
    def __init__(
        self, inner: Transport, number: int, in_force: Callable[[], Tamper | None]
    ) -> None:
        self._inner, self._number, self._in_force = inner, number, in_force

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def producer(self) -> TamperedProducer:
        return TamperedProducer(self._inner.producer(), self._number, self._in_force)


class TamperedProducer:
    def __init__(self, inner: Any, number: int, in_force: Callable[[], Tamper | None]) -> None:
        self._inner, self._number, self._in_force = inner, number, in_force

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        tamper = self._in_force()
        sent = (topic, key, value)
        for record in [sent] if tamper is None else tamper(self._number, sent):
            self._inner.send(*record)


class Held:
    """A tampering that holds records back, in the order in which they came.

    which   says of the record of a host with a number whether it is held; all are by default
    """

    def __init__(self, which: Callable[[int, Sent], bool] = lambda _number, _sent: True) -> None:
        self._which, self.records = which, list[Sent]()

    def __call__(self, number: int, sent: Sent) -> Sequence[Sent]:
        if not self._which(number, sent):
            return [sent]
        self.records.append(sent)
        return []
