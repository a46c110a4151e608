"""A record that the log will never take is let go, and costs the others no connection each."""

from __future__ import annotations

import pytest

from edge_agent.ledger.ledger_records import SealedRecord
from edge_agent.sending.outbox import Outbox
from transport.interface import ForwardingTransport, RecordTooLarge

LONGEST = 8
NOW_MS = 1_000_000


class NarrowLog(ForwardingTransport):
    """A log whose broker takes no long record, and says so when a producer flushes."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.producers = 0

    def producer(self) -> NarrowProducer:
        self.producers += 1
        return NarrowProducer(self)


class NarrowProducer:
    def __init__(self, log: NarrowLog) -> None:
        self._log = log
        self._queued: list[bytes] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        del topic, key
        self._queued.append(value)

    def flush(self) -> None:
        for value in self._queued:
            if len(value) > LONGEST:
                raise RecordTooLarge(f"record: expected at most {LONGEST} bytes, got {len(value)}")
        self._log.taken += self._queued
        self._queued.clear()

    def close(self) -> None:
        self._queued.clear()


@pytest.mark.parametrize("place", [0, 20, 39])
def test_record_that_the_log_never_takes_is_let_go_alone(place: int) -> None:
    log = NarrowLog()
    outbox = Outbox(log)
    values = [b"%d" % number for number in range(40)]
    values[place] = b"far too long"
    outbox.add(
        range(40), [SealedRecord("t", b"k", value, 0, NOW_MS) for value in values], NOW_MS - 1000
    )
    sent = outbox.send_due(NOW_MS)
    assert list(sent) == [number for number in range(40) if number != place]
    assert log.taken == [value for value in values if len(value) <= LONGEST]
    assert (outbox.take_too_large(), len(outbox)) == ((place,), 0)
    assert log.producers <= 3
