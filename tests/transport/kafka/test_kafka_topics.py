"""A topic that was created and that no broker shows yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import create_autospec

import pytest
from confluent_kafka.admin import AdminClient

from transport.interface import TransportUnavailable
from transport.kafka.kafka_aggregator import AggregatorKafka
from transport.kafka.kafka_aggregator_client import failures
from transport.kafka.kafka_frame import FoundTopic, KafkaSettings


class SlowToShow(AggregatorKafka):
    """A cluster that takes the topic and does not show it."""

    @contextmanager
    def _admin(self) -> Iterator[AdminClient]:
        with failures(self.settings, self._last):
            yield create_autospec(AdminClient, instance=True)

    def _answer(self, admin: AdminClient, asked: Any, name: str) -> Any:
        return None

    def _look_up(self, admin: AdminClient, topic: str) -> FoundTopic | None:
        return None


def test_topic_that_no_broker_shows_in_time_is_the_worlds_failure() -> None:
    kafka = SlowToShow(KafkaSettings(("127.0.0.1:1",), timeout_s=0.1))
    with pytest.raises(TransportUnavailable, match="no broker shows topic t"):
        kafka.create_topic("t", 1)
