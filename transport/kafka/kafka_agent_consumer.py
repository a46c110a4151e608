"""One member of a consumer group, through kafka-python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kafka import KafkaConsumer, TopicPartition, errors
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata

from transport.port import Record
from transport.port import TopicPartition as Slot
from transport.process.closing import close_within

from .kafka_agent_client import FETCH_BYTES, STALE, client_config, ended_on_failure, failures
from .kafka_frame import STEP_S
from .kafka_settings import RECORD_OVERHEAD_BYTES, KafkaSettings


class AgentConsumer:
    """See `transport.port.Consumer`."""

    def __init__(self, settings: KafkaSettings, group: str, topics: Sequence[str]) -> None:
        self._settings = settings
        self._names = {settings.named(topic): topic for topic in topics}
        self._polled_s = self._joined_s = time.monotonic()
        self._ends: dict[TopicPartition, int] = {}
        self._vacant: int | None = None
        self._closed = False
        session_ms = round(settings.heartbeat_lease_s * 1000)
        config = client_config(settings) | {
            "metrics_enabled": False,
            "group_id": settings.named(group),
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            # Not the cooperative one: with 3.0.12 a member that keeps a partition over a rebalance
            # stopped reading it.
            "partition_assignment_strategy": (RangePartitionAssignor,),
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": session_ms // 4,
            "max_poll_interval_ms": round(settings.lease_s * 1000),
            "fetch_max_wait_ms": round(settings.idle_read_s * 1000),
            "fetch_max_bytes": max(settings.max_value_bytes + RECORD_OVERHEAD_BYTES, FETCH_BYTES),
        }
        with failures(settings), ended_on_failure(config) as endable:
            self._client = KafkaConsumer(**endable)
            for name in self._names:  # whoever divides the partitions must know them
                self._client.partitions_for_topic(name)
            self._client.subscribe(list(self._names))

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Read on; fewer records than asked for means that nothing more was there.

        A member that just joined waits longer, so that an empty answer does not mean "not yet".
        """
        start_s = time.monotonic()
        patience_s = max(timeout_s, self._settings.join_wait_s)
        records: list[Record] = []
        with failures(self._settings):
            while True:
                behind = self._behind()
                spent_s = time.monotonic() - start_s
                if len(records) >= max_records or (records and not behind):
                    return records
                asked = self._polled_s >= start_s
                if asked and spent_s >= (patience_s if behind else timeout_s):
                    return self._given_up(records)
                wait_s = STEP_S if behind else max(0.0, timeout_s - spent_s)
                records += self._read(max_records - len(records), wait_s)

    def _read(self, max_records: int, wait_s: float) -> list[Record]:
        found = self._client.poll(timeout_ms=round(wait_s * 1000), max_records=max_records)
        self._polled_s = time.monotonic()
        return [self._record(message) for some in found.values() for message in some]

    def _given_up(self, records: list[Record]) -> list[Record]:
        now = time.monotonic()
        if self._joined:
            self._joined_s = now
            if not self._client.assignment():
                self._vacant = self._generation
        elif now - self._joined_s > self._settings.join_limit_s:
            raise errors.KafkaTimeoutError("the group did not let us in")
        return records

    @property
    def _joined(self) -> bool:
        return self._generation >= 0

    @property
    def _generation(self) -> int:
        return int(self._client.group_metadata().generation_id)

    def _behind(self) -> bool:
        """Whether there is something we have not read yet, or may be.

        A member that joined is told its partitions a moment later, and only while it polls: with
        none, a generation is waited for once. Polls that did not wait joined anew each time, for
        ever.
        """
        held = self._client.assignment()
        if not held:
            return not self._joined or self._generation != self._vacant
        fresh = held - self._ends.keys()
        if fresh:
            self._ends |= self._client.end_offsets(list(fresh), timeout_ms=self._timeout_ms)
        self._ends = {slot: end for slot, end in self._ends.items() if slot in held}
        return any(self._position(slot) < self._end(slot) for slot in held)

    def _end(self, slot: TopicPartition) -> int:
        return max(self._ends[slot], self._client.highwater(slot) or 0)

    def _position(self, slot: TopicPartition) -> int:
        return self._client.position(slot, timeout_ms=self._timeout_ms) or 0

    @property
    def _timeout_ms(self) -> int:
        return round(self._settings.timeout_s * 1000)

    def _record(self, message: Any) -> Record:
        return Record(
            self._names[message.topic],
            message.partition,
            message.offset,
            message.key or b"",
            message.value or b"",
            message.timestamp / 1000,
        )

    def commit(self, offsets: dict[Slot, int]) -> None:
        """Commit what we hold; a member whose lease ran out commits nothing."""
        held = self._held()
        wanted = {
            slot: OffsetAndMetadata(offsets[name], "", -1)
            for name, slot in held.items()
            if name in offsets
        }
        if not wanted:
            return
        with failures(self._settings), suppress(*STALE):
            self._client.commit(wanted, timeout_ms=self._timeout_ms)

    def _held(self) -> dict[Slot, TopicPartition]:
        if time.monotonic() - self._polled_s > self._settings.lease_s:
            return {}
        return {
            (self._names[slot.topic], slot.partition): slot for slot in self._client.assignment()
        }

    def seek_to_committed(self) -> None:
        with failures(self._settings):
            for slot in self._held().values():
                at = self._client.committed(slot, timeout_ms=self._timeout_ms)
                if at is None:
                    self._client.seek_to_beginning(slot)
                else:
                    self._client.seek(slot, at)

    def positions(self) -> dict[Slot, int]:
        with failures(self._settings):
            held = self._held()
            return {name: self._position(held[name]) for name in sorted(held)}

    def lag(self) -> int | None:
        with failures(self._settings):
            held = self._client.assignment()
            if not held or held - self._ends.keys():
                return None
            return sum(max(0, self._end(slot) - self._position(slot)) for slot in held)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Where no broker answers, the lease ends by itself; the client's thread is waited for
        # without end.
        close = partial(self._client.close, autocommit=False, timeout_ms=self._timeout_ms)
        with suppress(errors.KafkaError):
            close_within(2 * self._settings.timeout_s, close)
