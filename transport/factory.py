"""Open the transport that a configuration names; the one place that knows all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from transport.kafka.kafka_frame import KafkaSettings

from .interface import OpenLog


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """The embedded log: its folder, and the group of users that share it."""

    folder: Path
    group: str | None = None

    @property
    def place(self) -> str:
        return f"embedded log {self.folder}"


TransportSettings = EmbeddedSettings | KafkaSettings


class Side(Enum):
    """Who opens it: agents get the small client of Kafka, aggregators and simulators the fast."""

    AGENT = "agent"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class TransportTable:
    """The table [transport]: an embedded log's folder and the group that shares it, or Kafka."""

    folder: Path | None = None
    group: str | None = None
    kafka: KafkaSettings | None = None

    def __post_init__(self) -> None:
        _ = self.settings

    @property
    def settings(self) -> TransportSettings:
        """What `open_transport` takes. Raises ValueError unless exactly one log is named."""
        if self.kafka is not None and self.folder is None and self.group is None:
            return self.kafka
        if self.kafka is None and self.folder is not None:
            return EmbeddedSettings(self.folder, self.group)
        raise ValueError("expected either folder (with group), or a table [transport.kafka]")


def prepare_transport(settings: TransportSettings, side: Side) -> None:
    """Do what needs root or our own files. Raises OSError, TransportUnavailable."""
    if isinstance(settings, KafkaSettings):
        _kafka(side)
    elif side is Side.AGGREGATOR and os.geteuid() == 0:
        from transport.embedded.embedded_group import prepare_folder

        prepare_folder(settings.folder, settings.group)


def open_transport(
    settings: TransportSettings,
    side: Side,
    *,
    retention_s: float | None = None,
    keep: Collection[str] = (),
) -> OpenLog:
    """Open it, after privileges are dropped. Raises TransportUnavailable, KafkaSettingsError.

    retention_s, keep   of the embedded log, as it takes them; a broker's topics have their own
    """
    if isinstance(settings, KafkaSettings):
        return _kafka(side)(settings)
    from transport.embedded.embedded import EmbeddedLog

    return EmbeddedLog(settings.folder, group=settings.group, retention_s=retention_s, keep=keep)


def _kafka(side: Side) -> Callable[[KafkaSettings], OpenLog]:
    """Load the client of a side alone: neither side carries the other's."""
    if side is Side.AGENT:
        from transport.kafka.kafka_agent import AgentKafka

        return AgentKafka
    from transport.kafka.kafka_aggregator import AggregatorKafka

    return AggregatorKafka
