"""Who may do what in the cluster: the rules of an authorizer, as data, and how to set them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from transport.kafka.kafka_aggregator_consumer import LastError, client_config, mapped
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import (
    DEAD_LETTERS,
    ENTRIES,
    EPOCHS,
    JOINS,
    KEYS,
    RELEASES,
    REPORTS,
    ROSTERS,
    TASKS,
)


class KafkaRole(Enum):
    """Whose rights."""

    AGENT = "agent"
    LEADER = "leader"
    HELPER = "helper"
    READER = "reader"


_UP: Final = (REPORTS, EPOCHS, JOINS)
_DOWN: Final = (TASKS, ROSTERS, KEYS)

READS: Final = {
    KafkaRole.AGENT: (*_DOWN, ENTRIES, RELEASES),
    KafkaRole.LEADER: _UP + _DOWN,
    KafkaRole.HELPER: (*(topic for topic in _UP + _DOWN if topic != REPORTS), RELEASES),
    KafkaRole.READER: (RELEASES,),
}
WRITES: Final = {
    KafkaRole.AGENT: _UP,
    KafkaRole.LEADER: (*_DOWN, ENTRIES, RELEASES, DEAD_LETTERS),
    KafkaRole.HELPER: _DOWN,
    KafkaRole.READER: (),
}
GROUPS: Final = {
    KafkaRole.AGENT: ("agent-", "join-", "recover-"),
    KafkaRole.LEADER: ("leader", "roster-build"),
    KafkaRole.HELPER: ("helper",),
    KafkaRole.READER: ("reader-",),
}
"""Beginnings of the consumer groups that a role joins."""


def rules(settings: KafkaSettings, role: KafkaRole, user: str) -> list[AclBinding]:
    """Give the rules of one user; what no rule allows is forbidden."""
    literal, beginning = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    wanted = [
        *((topic, name, literal, AclOperation.READ) for name in READS[role]),
        *((topic, name, literal, AclOperation.WRITE) for name in WRITES[role]),
        *((group, name, beginning, AclOperation.READ) for name in GROUPS[role]),
    ]
    return [
        AclBinding(
            kind,
            settings.named(name),
            pattern,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operation in wanted
    ]


def grant(settings: KafkaSettings, users: Mapping[KafkaRole, str]) -> int:
    """Set the rules of these users; give how many.

    Raises      TransportRefused, TransportUnavailable
    """
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
