"""A transport that hands everything on: the base of those that change one thing on the way."""

from __future__ import annotations

from collections.abc import Sequence

from .closing import Closing
from .port import Consumer, Producer, Transport


class ForwardingTransport(Closing):
    """Passes every call to `inner`."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic of the log."""
        self.inner.create_topic(name, partitions)

    def producer(self) -> Producer:
        """Give a producer of the log."""
        return self.inner.producer()

    def consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        """Give a consumer of the log."""
        return self.inner.consumer(group, topics)

    def close(self) -> None:
        """Close the log."""
        self.inner.close()
