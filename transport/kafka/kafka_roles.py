"""What each role does on a cluster: the rights it needs, and which of them its user lacks.

Nothing is written to find out: a broker tells each user what it may do, by the rules that it
refuses by, and any record would be somebody's to read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from transport.interface import TransportUnavailable
from transport.process.doctor_checks import Result, absent, broken, ok
from transport.process.privileges import way_in
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

from .kafka_frame import KafkaFrame, KafkaSettings, KafkaSettingsError


class KafkaRole(Enum):
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


class Right(NamedTuple):
    """`kind` and `operation` are Kafka's words; the name of a group is its beginning."""

    kind: str
    name: str
    operation: str


def rights_of(role: KafkaRole) -> list[Right]:
    return [
        *(Right("TOPIC", name, "READ") for name in READS[role]),
        *(Right("TOPIC", name, "WRITE") for name in WRITES[role]),
        # How long a record may be: an agent asks before it spends anything on one.
        *(Right("TOPIC", name, "DESCRIBE_CONFIGS") for name in WRITES[role]),
        *(Right("GROUP", name, "READ") for name in GROUPS[role]),
    ]


def mended(role: KafkaRole, user: str | None) -> str:
    """Say how topics and rights of a role are made."""
    return (
        "an administrator runs `pointillist kafka topics --config FILE "
        f"--{role.value} {user or 'USER'}`"
    )


def rights_told(
    client: Callable[[KafkaSettings], KafkaFrame[Any]], settings: KafkaSettings, role: KafkaRole
) -> Result:
    """Ask for each topic and group of a role, by the client that it uses."""
    try:
        with client(settings) as kafka:
            return _told(kafka, role)
    except (TransportUnavailable, KafkaSettingsError) as error:
        return broken(str(error), way_in(error) or "see [transport.kafka]: addresses, credentials")


def _told(kafka: KafkaFrame[Any], role: KafkaRole) -> Result:
    settings, rights = kafka.settings, rights_of(role)
    do = mended(role, settings.username)
    topics = sorted({right.name for right in rights if right.kind == "TOPIC"})
    found = {("TOPIC", name): told for name, told in kafka.operations(topics).items()}
    if missing := [settings.named(name) for name in topics if ("TOPIC", name) not in found]:
        return broken(f"missing: {', '.join(missing)}", do)
    found |= {("GROUP", name): told for name, told in kafka.group_operations(GROUPS[role]).items()}
    lacking = _lacking(rights, found)
    said = "; ".join(
        f"{operation.lower()} {kind.lower()} {', '.join(map(settings.named, names))}"
        for (operation, kind), names in lacking.items()
    )
    line = f"user {settings.username or 'of this connection'} may not {said}"
    if set(lacking) == {("DESCRIBE_CONFIGS", "TOPIC")}:
        return absent(line, f"{do}: records longer than a topic takes are refused once sealed")
    if lacking:
        return broken(line, do)
    if None in found.values():
        return absent("this broker does not tell what its users may do", None)
    return ok(f"all that this role does with {len(topics)} topics is allowed")


Told = Mapping[tuple[str, str], frozenset[str] | None]


def _lacking(rights: list[Right], found: Told) -> Mapping[tuple[str, str], list[str]]:
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
    for right in rights:
        told = found.get((right.kind, right.name))
        if told is not None and right.operation not in told:
            lacking[right.operation, right.kind].append(right.name)
    return lacking
