"""Settings of topics that exist: whether they are what they must be, retention above all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from transport.kafka.kafka_aggregator_consumer import LastError, client_config, mapped
from transport.kafka.kafka_frame import KafkaSettings


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of a topic that is not what it must be; `found` is None where it is not set."""

    topic: str
    setting: str
    found: str | None
    wanted: str


def differing(settings: KafkaSettings, topics: Iterable[str]) -> list[Difference]:
    """Compare the settings of topics that exist with those that this program creates them with.

    Raises      TransportRefused, TransportUnavailable
    """
    wanted = {settings.named(topic): settings.topic_config(topic) for topic in topics}
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in wanted]
    with _admin(settings) as admin:
        answers = admin.describe_configs(asked, request_timeout=settings.timeout_s)
        found = {resource.name: answer.result() for resource, answer in answers.items()}
    return [
        Difference(name, setting, _value(found[name], setting), value)
        for name, config in wanted.items()
        for setting, value in config.items()
        if _value(found[name], setting) != value
    ]


def visible_topics(settings: KafkaSettings) -> set[str]:
    """Name the topics that exist and that this user may look at; with the settings' prefix.

    Raises      TransportRefused, TransportUnavailable
    """
    with _admin(settings) as admin:
        return set(admin.list_topics(timeout=settings.timeout_s).topics)


def put_right(settings: KafkaSettings, differences: Iterable[Difference]) -> None:
    """Set what differs, and nothing else of the topics.

    Raises      TransportRefused, TransportUnavailable
    """
    by_topic: dict[str, list[ConfigEntry]] = {}
    for difference in differences:
        by_topic.setdefault(difference.topic, []).append(
            ConfigEntry(
                difference.setting,
                difference.wanted,
                incremental_operation=AlterConfigOpType.SET,
            )
        )
    if not by_topic:
        return
    asked = [
        ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for name, entries in by_topic.items()
    ]
    with _admin(settings) as admin:
        answers = admin.incremental_alter_configs(asked, request_timeout=settings.timeout_s)
        for answer in answers.values():
            answer.result()


def _value(config: Mapping[str, ConfigEntry], setting: str) -> str | None:
    entry = config.get(setting)
    return None if entry is None else entry.value


@contextmanager
def _admin(settings: KafkaSettings) -> Iterator[AdminClient]:
    last = LastError()
    try:
        yield AdminClient(client_config(settings, last))
    except KafkaException as failure:
        raise mapped(settings, last.why(failure.args[0])) from failure
