"""One member of a consumer group, through librdkafka, and how it leaves in bounded time.

`Consumer.close()` is never called: it ends the group as soon as one waiting revocation is answered,
and waits for the answer to a second one (a replaced member has two) without end, with the
interpreter's lock held (librdkafka 2.16). Here revocations are served while the group answers, and
the client is let go without closing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from transport.interface import Record, RecordTooLarge
from transport.interface import TopicPartition as Slot
from transport.process.supervision import close_within

from . import kafka_frame as frame

IDLE_READ_S: Final = 0.25
POLL_BYTES: Final = 64 << 20
_TOKEN_LIFE_S: Final = 300.0
"""The file is read again at least so often; its own expiry is the broker's business."""

REFUSALS: Final = {
    KafkaError._AUTHENTICATION: frame.Refusal.LOGIN,
    KafkaError.SASL_AUTHENTICATION_FAILED: frame.Refusal.LOGIN,
    KafkaError._SSL: frame.Refusal.CERTIFICATE,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: frame.Refusal.MECHANISM,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: frame.Refusal.RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: frame.Refusal.RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: frame.Refusal.RIGHTS,
}
STALE: Final = frozenset({
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._NO_OFFSET,
    KafkaError._STATE,
})  # fmt: skip
UNKNOWN: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""What is told of each record when the client itself gave up; the cause comes apart."""
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})


class LastError:
    """What the client's own threads last complained of: why a call got no answer."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        general = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
        if self.error is None or error.code() not in general:
            self.error = error

    def why(self, error: KafkaError) -> KafkaError:
        """Give the cause rather than "timed out"."""
        vague = (
            KafkaError._TIMED_OUT,
            KafkaError._MSG_TIMED_OUT,
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
        )
        return self.error if self.error is not None and error.code() in vague else error


def client_config(settings: frame.KafkaSettings, last: LastError) -> dict[str, Any]:
    """What every client of librdkafka is told. Raises TransportRefused: a secret cannot be read."""
    frame.require_secrets(settings)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(settings.bootstrap),
        "security.protocol": settings.protocol,
        "socket.timeout.ms": max(round(settings.timeout_s * 1000), 1000),
        "reconnect.backoff.max.ms": 2000,
        "allow.auto.create.topics": False,
        "error_cb": last,
        "log_level": 0,  # what matters comes through error_cb
    }
    config |= settings.tls_files("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    if settings.sasl is not None:
        config["sasl.mechanism"] = settings.sasl
    if settings.username is not None:
        config |= {"sasl.username": settings.username, "sasl.password": settings.password()}
    if settings.token_file is not None:
        config["oauth_cb"] = lambda _config: (settings.token(), time.time() + _TOKEN_LIFE_S)
    return config


def watermarks(client: Consumer, slot: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """Ask the broker for the oldest and the next offset of a partition. Raises KafkaException."""
    found = cast("tuple[int, int] | None", client.get_watermark_offsets(slot, timeout=timeout_s))
    if found is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
    return found


@contextmanager
def failures(settings: frame.KafkaSettings, last: LastError) -> Iterator[None]:
    """Turn the client's errors into the port's."""
    try:
        yield
    except KafkaException as failure:
        raise mapped(settings, last.why(failure.args[0])) from failure


def mapped(settings: frame.KafkaSettings, error: KafkaError) -> Exception:
    # On a busy machine librdkafka tells a certificate that it refuses as a lost connection.
    code = KafkaError._SSL if "certificate verify failed" in error.str() else error.code()
    if refusal := REFUSALS.get(code):
        return frame.refused(settings, refusal, error.str())
    if error.code() in _TOO_LARGE:
        return RecordTooLarge(f"record: expected at most what the topic takes: {error.str()}")
    return frame.away(settings, error.str())


class AggregatorConsumer:
    """See `transport.interface.Consumer`."""

    def __init__(self, settings: frame.KafkaSettings, group: str, topics: Sequence[str]) -> None:
        self._settings = settings
        self._group = group
        self._names = {settings.named(topic): topic for topic in topics}
        self._positions: dict[Slot, int] = {}
        self._ends: dict[Slot, int] = {}
        self._passed: dict[Slot, int] = {}
        self._joined = False
        self._closed = False
        self._polled_s = time.monotonic()
        self._client: Consumer | None = None
        self._open()

    def _open(self) -> Consumer:
        if self._client is not None:
            return self._client
        settings = self._settings
        session_ms = round(settings.heartbeat_lease_s * 1000)
        longest = settings.max_value_bytes + frame.RECORD_OVERHEAD_BYTES
        self._joined = False  # leaving may have served the division that came meanwhile
        self._last = LastError()
        self._joined_s = time.monotonic()  # what an earlier client waited does not count
        config = client_config(settings, self._last) | {
            "group.id": settings.named(self._group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            # Nobody here sends in transactions: one that a stranger leaves open holds nothing up,
            # and the marks at its end, which are no records, count as read.
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 4,
            "max.poll.interval.ms": round(settings.lease_s * 1000),
            "fetch.wait.max.ms": round(min(settings.idle_read_s, IDLE_READ_S) * 1000),
            "fetch.max.bytes": max(longest, 16 << 20),
            "receive.message.max.bytes": max(longest, 16 << 20) + (1 << 20),
            "max.partition.fetch.bytes": max(longest, 4 << 20),
            "queued.max.messages.kbytes": POLL_BYTES >> 10,
        }
        with failures(settings, self._last):
            self._client = Consumer(config)
            self._client.subscribe(
                list(self._names),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._revoked,
            )
        return self._client

    def _assigned(self, client: Consumer, slots: list[TopicPartition]) -> None:
        self._joined = True
        if not slots or self._client is None:  # the client itself takes what we are leaving
            return
        timeout_s = self._settings.timeout_s
        placed = []
        for slot in client.committed(slots, timeout=timeout_s):
            low, high = watermarks(client, slot, timeout_s)
            start = max(slot.offset, low)  # what retention removed cannot be read again
            name = (self._names[slot.topic], slot.partition)
            self._positions[name], self._ends[name] = start, high
            placed.append(TopicPartition(slot.topic, slot.partition, start))
        client.incremental_assign(placed)

    def _revoked(self, client: Consumer, slots: list[TopicPartition]) -> None:
        for slot in slots:
            name = (self._names[slot.topic], slot.partition)
            self._positions.pop(name, None)
            self._ends.pop(name, None)
            self._passed.pop(name, None)
        client.incremental_unassign(slots)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Read on as `AgentConsumer.poll` does."""
        start_s = time.monotonic()
        patience_s = max(timeout_s, self._settings.join_wait_s)
        records: list[Record] = []
        size = 0
        try:
            while True:
                spent_s = time.monotonic() - start_s
                wait_s = frame.STEP_S if self._behind() else max(0.0, timeout_s - spent_s)
                found = self._read(max_records - len(records), 0.0 if records else wait_s)
                records += found
                size += sum(len(record.value) for record in found)
                spent_s = time.monotonic() - start_s
                behind = self._behind()
                if len(records) >= max_records or size >= POLL_BYTES or (records and not behind):
                    return records
                if spent_s >= (patience_s if behind else timeout_s):
                    return self._given_up(records)
        except KafkaException as failure:
            clear_frames(failure.__traceback__)  # they would keep the client
            self._leave()  # a fresh membership starts from the commit
            raise mapped(self._settings, self._last.why(failure.args[0])) from failure

    def _read(self, max_records: int, wait_s: float) -> list[Record]:
        client = self._open()
        first = client.poll(wait_s)
        self._polled_s = time.monotonic()
        if first is None:
            return []
        messages = [first]
        if max_records > 1:
            messages += client.consume(max_records - 1, 0.0)
        return [record for record in map(self._record, messages) if record is not None]

    def _record(self, message: Message) -> Record | None:
        error = message.error()
        at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        if error is not None and not at_end:
            if error.code() in STALE:
                return None  # our lease ran out: what follows is a new division
            raise KafkaException(error)
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            return None
        name = (self._names[topic], partition)
        if offset < self._positions.get(name, offset + 1):
            return None  # revoked, or read before a seek
        if at_end:
            self._passed[name] = offset
            return None
        self._passed.pop(name, None)
        self._positions[name] = offset + 1
        appended_s = message.timestamp()[1] / 1000
        return Record(*name, offset, message.key() or b"", message.value() or b"", appended_s)

    def _behind(self) -> bool:
        """Whether there is something we have not read yet, or may be."""
        if not self._joined:
            return True
        return any(self._left(name) for name in self._positions)

    def _left(self, name: Slot) -> int:
        """Offsets that we have not come to; what lies before the end need not be a record."""
        at = max(self._positions[name], self._passed.get(name, 0))
        slot = TopicPartition(self._settings.named(name[0]), name[1])
        known = self._open().get_watermark_offsets(slot, cached=True)
        return max(0, self._ends[name] - at, known[1] - at)

    def _given_up(self, records: list[Record]) -> list[Record]:
        now = time.monotonic()
        if self._joined:
            self._joined_s = now
        elif now - self._joined_s > self._settings.join_limit_s:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the group did not let us in"))
        if self._joined and self._last.error is not None and not records:
            # After a complaint each partition's broker is asked: silence means that nothing came.
            client, timeout_s = self._open(), self._settings.timeout_s
            for topic, partition in self._positions:
                slot = TopicPartition(self._settings.named(topic), partition)
                _, self._ends[topic, partition] = watermarks(client, slot, timeout_s)
            self._last.error = None
        return records

    def commit(self, offsets: dict[Slot, int]) -> None:
        """Commit what we hold; a member whose lease ran out commits nothing."""
        held = self.positions()
        wanted = [
            TopicPartition(self._settings.named(topic), partition, offset)
            for (topic, partition), offset in offsets.items()
            if (topic, partition) in held
        ]
        if not wanted:
            return
        try:
            self._open().commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() not in STALE:
                raise mapped(self._settings, self._last.why(error)) from failure

    def positions(self) -> dict[Slot, int]:
        if time.monotonic() - self._polled_s > self._settings.lease_s:
            return {}
        return dict(sorted(self._positions.items()))

    def lag(self) -> int | None:
        if not self._positions:
            return None
        return sum(map(self._left, self._positions))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._leave()

    def _leave(self) -> None:
        """Leave the group; where no broker answers, the lease ends by itself."""
        self._positions, self._ends, self._passed, self._joined = {}, {}, {}, False
        if self._client is not None:
            held, self._client = [self._client], None
            leave(held, next(iter(self._names)), self._settings.timeout_s)


_STEP_S: Final = 0.005
_MOST_RECORDS: Final = 10_000
_SENT_S: Final = 1.0
"""For a round trip behind the request to leave: by then that one was sent, answered or not."""


def leave(held: list[Consumer], topic: str, timeout_s: float) -> None:
    """Leave the group and end the client by its last reference, in about twice `timeout_s`."""
    with suppress(KafkaException):
        _ask_to_leave(held[0], topic, timeout_s)
    end(held, timeout_s)


def end(held: MutableSequence[Any], timeout_s: float) -> None:
    """End a client by taking away its last reference; it holds no lock of the interpreter then."""
    close_within(timeout_s, held.clear)


def _ask_to_leave(client: Consumer, topic: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    client.unsubscribe()
    # The member's name goes as the request to leave is queued.
    while client.memberid() and time.monotonic() < deadline:
        with suppress(KafkaException):
            client.consume(_MOST_RECORDS, _STEP_S)
    # The coordinator's connection keeps its order.
    client.committed([TopicPartition(topic, 0)], timeout=min(_SENT_S, timeout_s))
