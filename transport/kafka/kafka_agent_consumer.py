"""One member of a consumer group through kafka-python, and what each client of it is told."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition, errors
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from transport.interface import (
    LogNote,
    Record,
    RecordTooLarge,
    TransportUnavailable,
    became_shorter,
    made_anew,
    passed_over,
)
from transport.interface import TopicPartition as Slot
from transport.process.supervision import close_within

from . import kafka_frame as frame
from .kafka_batches import ReadableRecords

FETCH_BYTES: Final = 16 << 20
_METADATA_S: Final = 60
"""How soon a topic that was made anew between two reads is seen."""

STALE = (errors.CommitFailedError, errors.IllegalGenerationError, errors.UnknownMemberIdError)
_TELLING: Final = ("Sasl", "SSL:", "socket disconnected", "ECONNREFUSED", "frame length")


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Bearer tokens from a file that somebody else keeps fresh."""

    def __init__(self, settings: frame.KafkaSettings) -> None:
        self._settings = settings

    def token(self) -> str:
        return self._settings.token()


def client_config(settings: frame.KafkaSettings) -> dict[str, Any]:
    """What clients of kafka-python are told. Raises TransportRefused: a secret is not read."""
    frame.require_secrets(settings)
    timeout_ms = round(settings.timeout_s * 1000)
    config: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap),
        "security_protocol": settings.protocol,
        "request_timeout_ms": max(timeout_ms, round(settings.idle_read_s * 1000) + 1000),
        "bootstrap_timeout_ms": timeout_ms,
        "reconnect_backoff_max_ms": 2000,
    }
    config |= settings.tls_files("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    if settings.sasl is not None:
        config["sasl_mechanism"] = settings.sasl
    if settings.username is not None:
        config |= {
            "sasl_plain_username": settings.username,
            "sasl_plain_password": settings.password(),
        }
    if settings.token_file is not None:
        config["sasl_oauth_token_provider"] = _TokenFile(settings)
    return config


@contextmanager
def ended_on_failure(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give settings for a client that is made inside; where that fails, nothing of it stays.

    3.0.12 leaves its thread and four files behind when it finds no broker: an agent that starts
    while the broker is away asked until it had no files left.
    """
    made: list[KafkaNetClient] = []

    def make(**given: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**given))
        return made[-1]

    try:
        yield config | {"kafka_client": make}
    except BaseException:
        for client in made:
            close_within(config["bootstrap_timeout_ms"] / 1000, client.close)
        raise


class _Complaints(logging.Handler):
    """What the client logged last: it raises "unable to bootstrap" and tells the log alone why."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: tuple[float, str] = (0.0, "")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep why a connection failed; a time-out says least."""
        text = record.getMessage()
        _, found, why = text.partition(" failed: ")
        said = any(sign in self._kept[1] for sign in _TELLING)
        late = "timed out" in why or "Timeout" in why
        if found and "Unable to bootstrap" not in why and not (late and said):
            self._kept = (time.monotonic(), why.partition(" (backoff")[0])

    def since(self, start_s: float) -> str:
        at_s, why = self._kept
        return why if at_s >= start_s else ""


_COMPLAINTS: Final = _Complaints()
logging.getLogger("kafka.net.manager").addHandler(_COMPLAINTS)


def _unanswered(settings: frame.KafkaSettings, error: Exception, why: str) -> TransportUnavailable:
    """Tell a broker that is away from one that will not have us."""
    reason = why or str(error) or "no answer"
    if "CERTIFICATE" in why:
        return frame.refused(settings, frame.Refusal.CERTIFICATE, reason)
    if settings.sasl is not None and ("disconnected" in why or "Sasl" in why):
        closed = "; it closed the connection at login" if "disconnected" in why else ""
        return frame.refused(settings, frame.Refusal.LOGIN, f"{reason}{closed}")
    return frame.away(settings, reason)


@contextmanager
def failures(settings: frame.KafkaSettings) -> Iterator[None]:
    """Turn the client's errors into the port's."""
    start_s = time.monotonic()
    try:
        yield
    except errors.AuthorizationError as error:
        raise frame.refused(settings, frame.Refusal.RIGHTS, str(error)) from error
    except errors.SaslAuthenticationFailedError as error:
        raise frame.refused(settings, frame.Refusal.LOGIN, str(error)) from error
    except errors.UnsupportedSaslMechanismError as error:
        raise frame.refused(settings, frame.Refusal.MECHANISM, str(error)) from error
    except errors.KafkaConfigurationError:
        raise  # our bug
    except errors.MessageSizeTooLargeError as error:
        raise RecordTooLarge(f"record: expected at most what the topic takes: {error}") from error
    except (errors.KafkaError, OSError) as error:
        raise _unanswered(settings, error, _COMPLAINTS.since(start_s)) from error


def identity_of(topic_id: object) -> str:
    """Kafka's own way to write it."""
    return base64.urlsafe_b64encode(UUID(str(topic_id)).bytes).decode().rstrip("=")


class AgentConsumer:
    """See `transport.interface.Consumer`."""

    def __init__(self, settings: frame.KafkaSettings, group: str, topics: Sequence[str]) -> None:
        self._settings = settings
        self._names = {settings.named(topic): topic for topic in topics}
        self._polled_s = self._joined_s = time.monotonic()
        self._ends: dict[TopicPartition, int] = {}
        self._read_to: dict[TopicPartition, int] = {}
        self._unreadable: dict[TopicPartition, int] = {}
        self._logs: dict[str, str] = {}
        self._notes: list[LogNote] = []
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
            "metadata_max_age_ms": _METADATA_S * 1000,
            "fetch_max_bytes": max(
                settings.max_value_bytes + frame.RECORD_OVERHEAD_BYTES, FETCH_BYTES
            ),
        }
        with failures(settings), ended_on_failure(config) as endable:
            self._client = KafkaConsumer(**endable)
            fetcher = self._client._fetcher  # noqa: SLF001  (nothing public takes another reader)
            fetcher.PartitionRecords = partial(ReadableRecords, self._note_unreadable)
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
                if self._is_another():
                    return records
                behind = self._behind()
                spent_s = time.monotonic() - start_s
                if len(records) >= max_records or (records and not behind):
                    return records
                asked = self._polled_s >= start_s
                if asked and spent_s >= (patience_s if behind else timeout_s):
                    return self._given_up(records)
                wait_s = frame.STEP_S if behind else max(0.0, timeout_s - spent_s)
                records += self._read(max_records - len(records), wait_s)

    def _read(self, max_records: int, wait_s: float) -> list[Record]:
        found = self._client.poll(timeout_ms=round(wait_s * 1000), max_records=max_records)
        self._polled_s = time.monotonic()
        for slot, some in found.items():
            self._read_to[slot] = some[-1].offset + 1
        return [self._record(message) for some in found.values() for message in some]

    def _note_unreadable(self, slot: TopicPartition, offset: int, why: str) -> None:
        if offset > self._unreadable.get(slot, -1):
            self._unreadable[slot] = offset
            place = (self._names[slot.topic], slot.partition)
            self._notes.append(passed_over(place, offset, why))

    def _is_another(self) -> bool:
        """Whether a partition is of another log than before, and begins anew."""
        held = self._client.assignment()
        self._read_to = {slot: at for slot, at in self._read_to.items() if slot in held}
        found = self._other_logs(held)
        for slot, at in list(self._read_to.items()):
            position = self._client.position(slot, timeout_ms=self._timeout_ms)
            if slot not in self._read_to or position is None or position >= at:
                continue
            # The client began anew by itself: the log is another, or has lost its end.
            manager = self._client._manager  # noqa: SLF001  (nothing public asks of these topics)
            asked = manager.cluster.request_update()
            self._client._net.run(manager.wait_for, asked, self._timeout_ms)  # noqa: SLF001
            if not self._other_logs(held):
                place = (self._names[slot.topic], slot.partition)
                self._notes.append(became_shorter(place, at, position))
                self._begin_anew([slot])
            found = True
        return found

    def _other_logs(self, held: Iterable[TopicPartition]) -> bool:
        """Look at what the client was last told of the cluster."""
        found = False
        for name in {slot.topic for slot in held}:
            told = self._client._cluster.topic_id(name)  # noqa: SLF001  (nothing public tells it)
            now = "" if told is None else frame.known(identity_of(told))
            before, self._logs[name] = self._logs.get(name, ""), now or self._logs.get(name, "")
            if before and now and before != now:
                self._notes.append(made_anew(self._names[name], before, now))
                self._begin_anew([slot for slot in held if slot.topic == name])
                found = True
        return found

    def _begin_anew(self, slots: Sequence[TopicPartition]) -> None:
        self._client.seek_to_beginning(*slots)
        for slot in slots:
            # A fetch that finds nothing leaves the old log's: records would be waited for.
            self._client._subscription.assignment[slot].highwater = None  # noqa: SLF001
            for known in (self._ends, self._read_to, self._unreadable):
                known.pop(slot, None)

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
            self._place(fresh)
        self._ends = {slot: end for slot, end in self._ends.items() if slot in held}
        return any(self._position(slot) < self._end(slot) for slot in held)

    def _place(self, fresh: Iterable[TopicPartition]) -> None:
        """Begin at the commit, if it is of this log; an older program said not of which."""
        anew: list[TopicPartition] = []
        for slot in fresh:
            told = self._client.committed(slot, metadata=True, timeout_ms=self._timeout_ms)
            log, name = self._logs.get(slot.topic, ""), self._names[slot.topic]
            if told is None:
                continue
            if log and told.metadata not in ("", log):
                if all(slot.topic != other.topic for other in anew):
                    self._notes.append(made_anew(name, told.metadata, log))
                anew.append(slot)
            elif told.offset > self._ends[slot]:
                end = self._ends[slot]
                self._notes.append(became_shorter((name, slot.partition), told.offset, end))
                if slot not in self._read_to:  # else the client began anew by itself
                    anew.append(slot)
        if anew:
            self._client.seek_to_beginning(*anew)

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
            slot: OffsetAndMetadata(offsets[name], self._logs.get(slot.topic, ""), -1)
            for name, slot in held.items()
            if name in offsets and offsets[name] <= self._read_to.get(slot, offsets[name])
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

    def positions(self) -> dict[Slot, int]:
        with failures(self._settings):
            held = self._held()
            return {name: self._position(held[name]) for name in sorted(held)}

    def notes(self) -> list[LogNote]:
        taken, self._notes = self._notes, []
        return taken

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
