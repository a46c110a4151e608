"""A batch goes in parts that the log takes; a record that it will never take is let go alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edge_agent.ledger.ledger_records import SealedRecord
from edge_agent.sending.outbox import Outbox
from transport.interface import BatchingProducer, ForwardingTransport, Outgoing, RecordTooLarge

LONGEST = 8
NOW_MS = 1_000_000


class NarrowLog(ForwardingTransport):
    """A log whose broker takes no long batch, and says so when a producer flushes."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.producers = 0

    def producer(self) -> NarrowProducer:
        self.producers += 1
        return NarrowProducer(self)


class NarrowProducer(BatchingProducer):
    batch_bytes = 1 << 20

    def __init__(self, log: NarrowLog) -> None:
        super().__init__(lambda _topic: 1, lambda _topic: 1 << 20)
        self._log = log

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        if sum(len(one.value) for one in records) > LONGEST:
            return list(range(len(records))), RecordTooLarge("too long together")
        self._log.taken += [one.value for one in records]
        return [], None

    def _drop(self) -> None:
        """Nothing is open."""


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
    assert log.producers == 1
