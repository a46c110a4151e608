"""Clients of librdkafka: what each is told, what their errors are here, and how one is let go."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from transport.interface import RecordTooLarge
from transport.process.supervision import close_within

from . import kafka_frame as frame

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
UNKNOWN: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
MOVED: Final = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
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
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = cast(
                "tuple[int, int] | None", client.get_watermark_offsets(slot, timeout=timeout_s)
            )
            break
        except KafkaException as failure:
            # Of partitions that were made, or moved, this moment: the client asks who has them.
            if failure.args[0].code() not in MOVED or time.monotonic() > deadline:
                raise
        time.sleep(frame.STEP_S)
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


def end(held: MutableSequence[Any], timeout_s: float) -> None:
    """End a client by taking away its last reference; it holds no lock of the interpreter then."""
    close_within(timeout_s, held.clear)
