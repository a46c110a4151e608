"""The table [transport] of any configuration: for tools that need the log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import TransportSettings, TransportTable
from transport.settings.config import ConfigError, build, read_table


def load_kafka_table(path: Path) -> KafkaSettings | None:
    """Read the table [transport.kafka] of any file, None where there is none.

    Raises      ConfigError, OSError
    """
    kafka = _transport_table(path).get("kafka")
    if kafka is None:
        return None
    if not isinstance(kafka, dict):
        raise ConfigError(f"{path}: transport.kafka: expected a table, got {kafka!r}")
    return build(KafkaSettings, kafka, f"{path}: transport.kafka.")


def load_transport(path: Path) -> TransportSettings:
    """Read the table [transport] of any file: an embedded log's folder, or a cluster.

    Raises      ConfigError, OSError
    """
    table = _transport_table(path)
    if not table:
        raise ConfigError(f"{path}: expected a table [transport] or [transport.kafka], found none")
    return build(TransportTable, table, f"{path}: transport.").settings


def _transport_table(path: Path) -> dict[str, Any]:
    table = read_table(path).get("transport")
    return table if isinstance(table, dict) else {}
