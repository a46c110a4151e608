"""Who may do what in the cluster: the rules of an authorizer, as data, and how to set them.

Settings of topics that exist: whether they are what they must be, retention above all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from transport.kafka.kafka_aggregator_client import LastError, client_config, mapped
from transport.kafka.kafka_frame import KafkaSettings
from transport.kafka.kafka_roles import KafkaRole, rights_of


def rules(settings: KafkaSettings, role: KafkaRole, user: str) -> list[AclBinding]:
    """Give the rules of one user; what no rule allows is forbidden."""
    pattern = {"TOPIC": ResourcePatternType.LITERAL, "GROUP": ResourcePatternType.PREFIXED}
    return [
        AclBinding(
            ResourceType[right.kind],
            settings.named(right.name),
            pattern[right.kind],
            f"User:{user}",
            "*",
            AclOperation[right.operation],
            AclPermissionType.ALLOW,
        )
        for right in rights_of(role)
    ]


def grant(settings: KafkaSettings, users: Mapping[KafkaRole, str]) -> int:
    """Set their rules; give how many. Raises TransportRefused, TransportUnavailable."""
    wanted = [rule for role, user in users.items() for rule in rules(settings, role, user)]
    if not wanted:
        return 0
    last = LastError()
    admin = AdminClient(client_config(settings, last))
    try:
        for answer in admin.create_acls(wanted, request_timeout=settings.timeout_s).values():
            answer.result()
    except KafkaException as failure:
        raise mapped(settings, last.why(failure.args[0])) from failure
    return len(wanted)


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting of a topic that is not what it must be; `found` is None where it is not set.

    MISSING and PARTITIONS are no settings: the first is made, and the second stays.
    """

    topic: str
    setting: str
    found: str | None
    wanted: str


MISSING: Final = "topic"
PARTITIONS: Final = "partitions"


def differing(settings: KafkaSettings, topics: Mapping[str, int | None]) -> list[Difference]:
    """Compare topics with what this program creates them with.

    topics      name -> how many partitions it should have; None: any number will do
    Raises      TransportRefused, TransportUnavailable
    """
    shown = _partitions(settings)
    found = [
        Difference(settings.named(topic), MISSING, None, "there")
        for topic in topics
        if settings.named(topic) not in shown
    ]
    found += [
        Difference(name, PARTITIONS, str(shown[name]), str(partitions))
        for topic, partitions in topics.items()
        if (name := settings.named(topic)) in shown and partitions not in {None, shown[name]}
    ]
    there = [topic for topic in topics if settings.named(topic) in shown]
    return found + (_differing_settings(settings, there) if there else [])


def _partitions(settings: KafkaSettings) -> dict[str, int]:
    with _admin(settings) as admin:
        shown = admin.list_topics(timeout=settings.timeout_s).topics
        return {name: len(topic.partitions) for name, topic in shown.items()}


def _differing_settings(settings: KafkaSettings, topics: Iterable[str]) -> list[Difference]:
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


def put_right(settings: KafkaSettings, differences: Iterable[Difference]) -> None:
    """Set what differs, no more. Raises TransportRefused, TransportUnavailable."""
    by_topic: dict[str, list[ConfigEntry]] = {}
    for difference in differences:
        if difference.setting in {MISSING, PARTITIONS}:
            continue
        by_topic.setdefault(difference.topic, []).append(
            ConfigEntry(
                difference.setting, difference.wanted, incremental_operation=AlterConfigOpType.SET
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
