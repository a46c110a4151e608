"""What a refused login is put down to when the time for it runs out within a further try."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kafka import errors

from transport.interface import TransportRefused, TransportUnavailable
from transport.kafka.kafka_agent_consumer import failures
from transport.kafka.kafka_frame import KafkaSettings

SCRAM = KafkaSettings(
    ("127.0.0.1:1",), sasl="SCRAM-SHA-512", username="agent", password_file=Path(__file__)
)
REFUSED = "[Error 58] SaslAuthenticationFailedError: invalid credentials"
LATE = ("KafkaTimeoutError: Timeout during ApiVersions check", "Connection timed out")


def call(*complaints: str) -> None:
    """Ask a broker, while the client complains."""
    with failures(SCRAM):
        for why in complaints:
            text = "Bootstrap connection to %s failed: %s (backoff %.2f secs)"
            logging.getLogger("kafka.net.manager").warning(text, "bootstrap-0", why, 0.95)
        raise errors.KafkaTimeoutError("Unable to bootstrap")


@pytest.mark.parametrize("late", LATE)
def test_time_that_runs_out_after_a_refusal_does_not_hide_it(late: str) -> None:
    with pytest.raises(TransportRefused, match="invalid credentials"):
        call(REFUSED, late)


@pytest.mark.parametrize("late", LATE)
def test_time_that_runs_out_without_a_refusal_is_told_as_such(late: str) -> None:
    with pytest.raises(TransportUnavailable, match=late):
        call("[Errno 113] EHOSTUNREACH", late)  # the first forgets what other tests complained of
