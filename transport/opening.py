"""Open the transport that a configuration names; the one place that knows all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .kafka_settings import KafkaSettings
from .port import Transport


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """The embedded log: its folder, and the group of users that share it."""

    folder: Path
    group: str | None = None


TransportSettings = EmbeddedSettings | KafkaSettings


class Side(Enum):
    """Who opens it: agents get the small client of Kafka, aggregators and simulators the fast."""

    AGENT = "agent"
    AGGREGATOR = "aggregator"


def choose(
    folder: Path | None, group: str | None, kafka: KafkaSettings | None
) -> TransportSettings:
    """Give the settings of a table [transport].

    Raises      ValueError unless it names exactly one transport
    """
    if kafka is not None and folder is None and group is None:
        return kafka
    if kafka is None and folder is not None:
        return EmbeddedSettings(folder, group)
    raise ValueError("expected either folder (with group), or a table [transport.kafka]")


def prepare_transport(settings: TransportSettings, side: Side) -> None:
    """Do what needs root or the way to our own files, before privileges are given up.

    Raises      OSError, TransportUnavailable
    """
    if isinstance(settings, KafkaSettings):
        _kafka(side)
    elif side is Side.AGGREGATOR and os.geteuid() == 0:
        from .embedded_file import prepare_folder

        prepare_folder(settings.folder, settings.group)


def open_transport(
    settings: TransportSettings,
    side: Side,
    *,
    retention_s: float | None = None,
    keep: Collection[str] = (),
) -> Transport:
    """Open it; call it after privileges are dropped.

    retention_s, keep   of the embedded log, as it takes them; a broker's topics have their own
    Raises      TransportUnavailable, KafkaSettingsError
    """
    if isinstance(settings, KafkaSettings):
        return _kafka(side)(settings)
    from .embedded import EmbeddedLog

    return EmbeddedLog(settings.folder, group=settings.group, retention_s=retention_s, keep=keep)


def _kafka(side: Side) -> Callable[[KafkaSettings], Transport]:
    """Load the client of a side alone: neither side carries the other's."""
    if side is Side.AGENT:
        from .kafka_agent import AgentKafka

        return AgentKafka
    from .kafka_aggregator import AggregatorKafka

    return AggregatorKafka
