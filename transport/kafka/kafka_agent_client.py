"""kafka-python's settings and errors, as this project speaks of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from transport.port import RecordTooLarge, TransportUnavailable
from transport.process.closing import close_within

from .kafka_frame import Refusal, away, refused, require_secrets
from .kafka_settings import KafkaSettings

FETCH_BYTES: Final = 16 << 20

STALE = (errors.CommitFailedError, errors.IllegalGenerationError, errors.UnknownMemberIdError)
_TELLING: Final = ("Sasl", "SSL:", "socket disconnected", "ECONNREFUSED", "frame length")


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Bearer tokens from a file that somebody else keeps fresh."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def token(self) -> str:
        """Give the token of now."""
        return self._settings.token()


def client_config(settings: KafkaSettings) -> dict[str, Any]:
    """What every client of kafka-python is told.

    Raises      TransportRefused: a secret cannot be read
    """
    require_secrets(settings)
    timeout_ms = round(settings.timeout_s * 1000)
    config: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap),
        "security_protocol": settings.protocol,
        "request_timeout_ms": max(timeout_ms, round(settings.idle_read_s * 1000) + 1000),
        "bootstrap_timeout_ms": timeout_ms,
        "reconnect_backoff_max_ms": 2000,
    }
    for name, path in (
        ("ssl_cafile", settings.ca_file),
        ("ssl_certfile", settings.cert_file),
        ("ssl_keyfile", settings.key_file),
    ):
        if path is not None:
            config[name] = str(path)
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
        """Give the last one since then, or nothing."""
        at_s, why = self._kept
        return why if at_s >= start_s else ""


_COMPLAINTS: Final = _Complaints()
logging.getLogger("kafka.net.manager").addHandler(_COMPLAINTS)


def _unanswered(settings: KafkaSettings, error: Exception, why: str) -> TransportUnavailable:
    """Tell a broker that is away from one that will not have us."""
    reason = why or str(error) or "no answer"
    if "CERTIFICATE" in why:
        return refused(settings, Refusal.CERTIFICATE, reason)
    if settings.sasl is not None and "disconnected" in why:
        closed = f"{reason}; it closed the connection at login"
        return refused(settings, Refusal.LOGIN, closed)
    if settings.sasl is not None and "Sasl" in why:
        return refused(settings, Refusal.LOGIN, reason)
    return away(settings, reason)


@contextmanager
def failures(settings: KafkaSettings) -> Iterator[None]:
    """Turn the client's errors into the port's."""
    start_s = time.monotonic()
    try:
        yield
    except errors.AuthorizationError as error:
        raise refused(settings, Refusal.RIGHTS, str(error)) from error
    except errors.SaslAuthenticationFailedError as error:
        raise refused(settings, Refusal.LOGIN, str(error)) from error
    except errors.UnsupportedSaslMechanismError as error:
        raise refused(settings, Refusal.MECHANISM, str(error)) from error
    except errors.KafkaConfigurationError:
        raise  # our bug
    except errors.MessageSizeTooLargeError as error:
        raise RecordTooLarge(f"record: expected at most what the topic takes: {error}") from error
    except (errors.KafkaError, OSError) as error:
        raise _unanswered(settings, error, _COMPLAINTS.since(start_s)) from error
