"""One member of a consumer group, through librdkafka, and how it leaves in bounded time.

`Consumer.close()` is never called: it ends the group as soon as one waiting revocation is answered,
and waits for the answer to a second one (a replaced member has two) without end, with the
interpreter's lock held (librdkafka 2.16). Here revocations are served while the group answers, and
the client is let go without closing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from traceback import clear_frames
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from transport.interface import (
    LogNote,
    Record,
    TransportUnavailable,
    became_shorter,
    made_anew,
    passed_over,
)
from transport.interface import TopicPartition as Slot

from . import kafka_aggregator_client as rdkafka
from . import kafka_frame as frame

IDLE_READ_S: Final = 0.25
POLL_BYTES: Final = 64 << 20
STALE: Final = frozenset({
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._NO_OFFSET,
    KafkaError._STATE,
})  # fmt: skip
_UNREADABLE: Final = frozenset(
    {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED}
)


class _WentBackError(Exception):
    """The log gave a record again that lies before our position."""


class AggregatorConsumer:
    """See `transport.interface.Consumer`."""

    def __init__(
        self,
        settings: frame.KafkaSettings,
        group: str,
        topics: Sequence[str],
        identity: Callable[[str], str],
    ) -> None:
        """Join; `identity`: `KafkaFrame.identity`."""
        self._settings = settings
        self._group = group
        self._names = {settings.named(topic): topic for topic in topics}
        self._identity = identity
        self._logs = dict.fromkeys(topics, "")
        self._replaced: set[str] = set()
        self._notes: list[LogNote] = []
        self._looked_s = 0.0
        self._unreadable: dict[Slot, int] = {}
        self._failed: dict[Slot, tuple[int, str]] = {}
        self._since: dict[Slot, tuple[int, float]] = {}
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
        self._last = rdkafka.LastError()
        self._joined_s = time.monotonic()  # what an earlier client waited does not count
        config = rdkafka.client_config(settings, self._last) | {
            "group.id": settings.named(self._group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            # Nobody here sends in transactions: one that a stranger leaves open holds nothing up,
            # and the marks at its end, which are no records, count as read.
            "isolation.level": "read_uncommitted",
            # Not "check.crcs": at a sum that differs librdkafka 2.16 reads on in the middle of the
            # batch, and may end the process.
            "enable.partition.eof": True,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 4,
            "max.poll.interval.ms": round(settings.lease_s * 1000),
            "fetch.wait.max.ms": round(min(settings.idle_read_s, IDLE_READ_S) * 1000),
            "fetch.max.bytes": max(longest, 16 << 20),
            "receive.message.max.bytes": max(longest, 16 << 20) + (1 << 20),
            "max.partition.fetch.bytes": max(longest, 4 << 20),
            "topic.metadata.refresh.interval.ms": round(frame.LOOK_S * 1000),
            "queued.max.messages.kbytes": POLL_BYTES >> 10,
        }
        with rdkafka.failures(settings, self._last):
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
        self._look()
        for slot in client.committed(slots, timeout=timeout_s):
            low, high = rdkafka.watermarks(client, slot, timeout_s)
            name = (self._names[slot.topic], slot.partition)
            start = self._start(name, slot, low, high)
            self._positions[name], self._ends[name] = start, high
            placed.append(TopicPartition(slot.topic, slot.partition, start))
        client.incremental_assign(placed)

    def _start(self, name: Slot, committed: TopicPartition, low: int, high: int) -> int:
        """Where to begin: at the commit, if it is of this log; an older program said not of which.

        What retention removed cannot be read again.
        """
        topic, log = name[0], self._logs[name[0]]
        of = committed.metadata or ("" if topic in self._replaced else log)
        if committed.offset > low and log and of != log:
            if topic not in self._replaced:
                self._replaced.add(topic)
                self._notes.append(made_anew(topic, of, log))
            return low
        if committed.offset > high:
            self._notes.append(became_shorter(name, committed.offset, high))
            return low
        return max(committed.offset, low)

    def _look(self) -> bool:
        """Ask which logs these are; whether one that we read is another now."""
        self._looked_s = time.monotonic()
        found = False
        for topic, before in self._logs.items():
            now = self._identity(topic)
            if now and now != before:
                self._logs[topic] = now
                if before:
                    found = True
                    self._replaced.add(topic)
                    self._notes.append(made_anew(topic, before, now))
                    self._unreadable.clear()
        return found

    def _is_another(self) -> bool:
        """Look now and then; a log that is away is no other."""
        if not self._positions or time.monotonic() - self._looked_s < frame.LOOK_S:
            return False
        before = dict(self._logs)
        with suppress(TransportUnavailable):
            self._look()
        # Also where it failed at a later topic.
        return any(known and self._logs[topic] != known for topic, known in before.items())

    def _revoked(self, client: Consumer, slots: list[TopicPartition]) -> None:
        for slot in slots:
            name = (self._names[slot.topic], slot.partition)
            self._positions.pop(name, None)
            self._ends.pop(name, None)
            self._passed.pop(name, None)
            self._since.pop(name, None)
        client.incremental_unassign(slots)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Read on as `AgentConsumer.poll` does."""
        start_s = time.monotonic()
        patience_s = max(timeout_s, self._settings.join_wait_s)
        records: list[Record] = []
        size = 0
        if self._is_another():
            self._leave()  # a fresh membership places itself
        try:
            self._watch()
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
        except _WentBackError:
            self._leave()
            return records
        except TransportUnavailable:
            self._leave()
            raise
        except KafkaException as failure:
            clear_frames(failure.__traceback__)  # they would keep the client
            self._leave()  # a fresh membership starts from the commit
            raise rdkafka.mapped(self._settings, self._last.why(failure.args[0])) from failure

    def _read(self, max_records: int, wait_s: float) -> list[Record]:
        client = self._open()
        first = client.poll(wait_s)
        self._polled_s = time.monotonic()
        if first is None:
            return []
        messages = [first]
        if max_records > 1:
            messages += client.consume(max_records - 1, 0.0)
        records = [record for record in map(self._record, messages) if record is not None]
        failed, self._failed = self._failed, {}
        self._step_over(
            {name: why for name, (at, why) in failed.items() if self._positions.get(name) == at}
        )
        return records

    def _record(self, message: Message) -> Record | None:
        error = message.error()
        at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        if error is not None and not at_end:
            if error.code() in STALE:
                return None  # our lease ran out: what follows is a new division
            if error.code() not in _UNREADABLE:
                raise KafkaException(error)
            name = (self._names.get(message.topic() or "", ""), message.partition() or 0)
            self._failed[name] = (self._positions.get(name, -1), error.str())
            return None
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            return None
        name = (self._names[topic], partition)
        if name not in self._positions:
            return None  # revoked
        if offset < self._positions[name]:
            # The client began anew by itself: the log is another, or has lost its end.
            if not self._look():
                self._notes.append(became_shorter(name, self._positions[name], offset))
            raise _WentBackError
        if at_end:
            self._passed[name] = offset
            return None
        self._passed.pop(name, None)
        self._positions[name] = offset + 1
        appended_s = message.timestamp()[1] / 1000
        return Record(*name, offset, message.key() or b"", message.value() or b"", appended_s)

    def _step_over(self, why: dict[Slot, str]) -> None:
        """Note what cannot be read, and have the client go on by one record; no batch says its end.

        why     where the client does not go on by itself, and what it says of that
        """
        for name, reason in why.items():
            at = self._positions[name]
            told = self._unreadable.get(name, -1)
            if at > told + 1:  # else a further step over the same batch
                self._notes.append(passed_over(name, at, reason))
            self._unreadable[name], self._positions[name] = at, at + 1
            slot = TopicPartition(self._settings.named(name[0]), name[1], at + 1)
            self._open().seek(slot)

    def _watch(self) -> None:
        """Note since when each partition stands; one with nothing left does not wait."""
        now = time.monotonic()
        for name, at in self._positions.items():
            if self._since.get(name, (-1, now))[0] != at or not self._left(name):
                self._since[name] = (at, now)

    def _silent(self) -> dict[Slot, str]:
        """Where records are, and none comes: of some batches that a disk spoilt the client is mute.

        A fetch that is under way for longer than `timeout_s`, or the client's least second, would
        have been complained of, and no records are left out then.
        """
        now, timeout_s = time.monotonic(), self._settings.timeout_s
        if self._last.error is not None:
            self._since.clear()
        self._watch()
        found = {}
        for name, at in self._positions.items():
            stepping = at == self._unreadable.get(name, -2) + 1
            if now - self._since[name][1] > (1 if stepping else 3) * max(timeout_s, 1.25):
                slot = TopicPartition(self._settings.named(name[0]), name[1])
                low, high = rdkafka.watermarks(self._open(), slot, timeout_s)
                if low <= at < high:
                    found[name] = "the log has it, and the client gives nothing"
        return found

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
        if self._joined:
            self._step_over(self._silent())
        if self._joined and self._last.error is not None and not records:
            # After a complaint each partition's broker is asked: silence means that nothing came.
            client, timeout_s = self._open(), self._settings.timeout_s
            for topic, partition in self._positions:
                slot = TopicPartition(self._settings.named(topic), partition)
                _, self._ends[topic, partition] = rdkafka.watermarks(client, slot, timeout_s)
            self._last.error = None
        return records

    def commit(self, offsets: dict[Slot, int]) -> None:
        """Commit what we hold; a member whose lease ran out commits nothing."""
        held = self.positions()
        wanted = [
            TopicPartition(
                *(self._settings.named(topic), partition, offset), metadata=self._logs[topic]
            )
            for (topic, partition), offset in offsets.items()
            if offset <= held.get((topic, partition), -1)  # else it was of a log before this one
        ]
        if not wanted:
            return
        try:
            self._open().commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() not in STALE:
                raise rdkafka.mapped(self._settings, self._last.why(error)) from failure

    def positions(self) -> dict[Slot, int]:
        if time.monotonic() - self._polled_s > self._settings.lease_s:
            return {}
        return dict(sorted(self._positions.items()))

    def notes(self) -> list[LogNote]:
        taken, self._notes = self._notes, []
        return taken

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
        self._since = {}
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
    rdkafka.end(held, timeout_s)


def _ask_to_leave(client: Consumer, topic: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    client.unsubscribe()
    # The member's name goes as the request to leave is queued.
    while client.memberid() and time.monotonic() < deadline:
        with suppress(KafkaException):
            client.consume(_MOST_RECORDS, _STEP_S)
    # The coordinator's connection keeps its order.
    client.committed([TopicPartition(topic, 0)], timeout=min(_SENT_S, timeout_s))
