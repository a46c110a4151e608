"""TLS, SCRAM, bearer tokens and ACLs on the real broker: who may do what, and what errors say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, AdminClient

from aggregator.helper.helper_runtime import compare_releases
from edge_agent.membership import newest_roster
from edge_agent.open_agent import task_rules
from edge_agent.sending.outbox import tasks_on
from pointillist.broker.local import RunningBroker
from pointillist.broker.properties import write_certificates
from pointillist.broker.rights import grant, rules
from tests.agent_live import surroundings
from tests.agent_world import T0
from tests.kafka_kit import SecurePort, add_users, fresh_prefix, plain_settings, unsigned_token
from tests.protocol_kit import Clock, build_world, start_helper
from transport.factory import Side, open_transport
from transport.interface import (
    Transport,
    TransportRefused,
    TransportUnavailable,
    UnknownTopic,
    create_topics,
)
from transport.kafka.kafka_agent import AgentKafka
from transport.kafka.kafka_aggregator import AggregatorKafka, KafkaOffsets
from transport.kafka.kafka_frame import KafkaSettings
from transport.kafka.kafka_roles import KafkaRole, rights_told
from transport.process.doctor_checks import CheckVerdict, Result
from wire.catalogue import Catalogue
from wire.fields import HostId
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
    TOPICS,
)

pytestmark = pytest.mark.kafka

ALL = {EPOCHS, REPORTS, JOINS, TASKS, ROSTERS, KEYS, RELEASES, ENTRIES, DEAD_LETTERS}
WRITES = {
    "agent": {REPORTS, EPOCHS, JOINS},
    "leader": {TASKS, ROSTERS, KEYS, ENTRIES, RELEASES, DEAD_LETTERS},
    "helper": {TASKS, ROSTERS, KEYS},
    "reader": set[str](),
    "stranger": set[str](),
}
READS = {
    "agent": {TASKS, ROSTERS, KEYS, ENTRIES, RELEASES},
    "leader": {TASKS, ROSTERS, KEYS, REPORTS, EPOCHS, JOINS},
    "helper": {TASKS, ROSTERS, KEYS, EPOCHS, JOINS, RELEASES},
    "reader": {RELEASES},
    "stranger": set[str](),
}
GROUPS = {
    "agent": "agent-1",
    "leader": "leader",
    "helper": "helper",
    "reader": "reader-1",
    "stranger": "leader",
}
OFTEN_READ = {"agent": TASKS, "leader": TASKS, "helper": TASKS, "reader": RELEASES}
REFUSED_S = 2.0
"""A login is tried for so long, whatever the broker answers: time for TLS, SCRAM and its delay."""
AWAY_S = 0.5
"""A broker that is away is waited for, so long."""


@pytest.fixture(scope="module")
def port(
    local_broker_running: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> SecurePort:
    """Topics, users and rights, made by an administrator; each topic holds one record."""
    broker = local_broker_running
    made = SecurePort(broker, tmp_path_factory.mktemp("users"), fresh_prefix())
    add_users(broker, "agent", "leader", "helper", "reader", "stranger")
    admin = plain_settings(broker, made.prefix)
    with open_transport(admin, Side.AGGREGATOR) as log:
        producer = log.producer()
        create_topics(log)
        for topic in TOPICS:
            producer.send(topic.name, b"k", b"there")
        log.create_topic(DEAD_LETTERS, 1)
        producer.send(DEAD_LETTERS, b"k", b"there")
        producer.close()
    grant(admin, {role: role.value for role in KafkaRole})
    return made


def allowed(act: Callable[[], None]) -> bool:
    try:
        act()
    except TransportRefused:
        return False
    return True


def write(log: Transport, topic: str) -> None:
    producer = log.producer()
    producer.send(topic, b"k", b"written")
    producer.flush()
    producer.close()


def read(log: Transport, group: str, topic: str) -> None:
    consumer = log.consumer(group, [topic])
    try:
        for _ in range(20):
            if consumer.poll(10, 0.5):
                return
        raise AssertionError(f"expected the record of {topic} or a refusal, got neither")
    finally:
        consumer.close()


@pytest.mark.parametrize("user", sorted(WRITES))
def test_rights_are_those_of_the_role_and_no_more(port: SecurePort, user: str) -> None:
    side = Side.AGENT if user == "agent" else Side.AGGREGATOR
    with open_transport(port.scram(user), side) as log:
        written = {topic for topic in ALL if allowed(partial(write, log, topic))}
        seen = {topic for topic in ALL if allowed(partial(read, log, GROUPS[user], topic))}
    assert written == WRITES[user]
    assert seen == READS[user]


def test_helper_reads_every_release_at_each_start_by_its_own_rights(
    port: SecurePort, tmp_path: Path
) -> None:
    world = build_world(8)
    _, state, _ = start_helper(world, tmp_path, Clock())
    found = []
    for _ in range(2):
        with open_transport(port.scram("helper"), Side.AGGREGATOR) as log:
            found.append(compare_releases(log, world.helper_key.public_bytes, state, lambda: None))
    assert found[0] == found[1] >= 1
    state.close()


def told(settings: KafkaSettings, role: KafkaRole) -> Result:
    """What a doctor says of the rights of a role's user, by the client of that role."""
    client = AgentKafka if role is KafkaRole.AGENT else AggregatorKafka
    return rights_told(client, settings, role)


@pytest.mark.release
@pytest.mark.parametrize("role", list(KafkaRole))
def test_doctor_asks_for_the_rights_of_a_role_and_writes_nothing(
    port: SecurePort, role: KafkaRole
) -> None:
    admin = plain_settings(port.broker, port.prefix)
    before = ends(admin)
    assert told(port.scram(role.value), role).verdict is CheckVerdict.OK
    assert told(admin, role).verdict is CheckVerdict.OK
    without = told(port.scram("stranger"), role)
    assert without.verdict is CheckVerdict.BROKEN
    assert all(port.prefix + topic in without.found for topic in READS[role.value])
    assert (without.do or "").endswith(f"kafka topics --config FILE --{role.value} stranger`")
    assert ends(admin) == before


def ends(admin: KafkaSettings) -> list[dict[int, tuple[int, int]]]:
    found = []
    for topic in sorted(ALL):
        offsets = KafkaOffsets(admin, "reader-ends", topic)
        found.append(offsets.bounds())
        offsets.close()
    return found


LACKING = {
    ("WRITE", REPORTS): (KafkaRole.AGENT, CheckVerdict.BROKEN, "write topic {}plst1.reports"),
    ("READ", KEYS): (KafkaRole.AGENT, CheckVerdict.BROKEN, "read topic {}plst1.keys"),
    ("READ", EPOCHS): (KafkaRole.LEADER, CheckVerdict.BROKEN, "read topic {}plst1.epochs"),
    ("READ", "leader"): (KafkaRole.LEADER, CheckVerdict.BROKEN, "read group {}leader"),
    ("READ", "helper"): (KafkaRole.HELPER, CheckVerdict.BROKEN, "read group {}helper"),
    ("DESCRIBE_CONFIGS", REPORTS): (
        KafkaRole.AGENT, CheckVerdict.ABSENT, "describe_configs topic {}plst1.reports",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "lacks",
    [
        pytest.param(lacks, marks=[] if lacks[0] == "WRITE" else [pytest.mark.release])
        for lacks in LACKING
    ],
)
def test_doctor_names_the_one_right_that_is_lacking(
    port: SecurePort, lacks: tuple[str, str]
) -> None:
    role, verdict, said = LACKING[lacks]
    user = f"{role.value}-without-{'-'.join(lacks).lower()}"
    admin, operation = plain_settings(port.broker, port.prefix), AclOperation[lacks[0]]
    add_users(port.broker, user)
    client = AdminClient({"bootstrap.servers": port.broker.bootstrap})
    given = [
        rule
        for rule in rules(admin, role, user)
        if (rule.operation, rule.name) != (operation, admin.named(lacks[1]))
    ]
    for answer in client.create_acls(given).values():
        answer.result()
    found = told(port.scram(user), role)
    assert found.verdict is verdict
    assert found.found.startswith(f"user {user} may not {said.format(port.prefix)}")
    assert f"--{role.value} {user}`" in (found.do or "")
    grant(admin, {role: user})  # what it says mends it
    assert told(port.scram(user), role).verdict is CheckVerdict.OK


@pytest.mark.release
def test_agent_s_doctor_and_its_commands_read_by_groups_that_its_rules_allow(
    port: SecurePort, tmp_path: Path
) -> None:
    config = surroundings(tmp_path).config
    with open_transport(port.scram("agent"), Side.AGENT) as log:
        assert tasks_on(log, task_rules(config, Catalogue.load()), T0) == []
        assert newest_roster(log, HostId(bytes(16)), config.trust) is None


@pytest.mark.release
@pytest.mark.parametrize("role", [KafkaRole.AGENT, KafkaRole.LEADER])
def test_doctor_names_topics_that_are_missing(port: SecurePort, role: KafkaRole) -> None:
    empty = dataclasses.replace(port, prefix=fresh_prefix())
    found = told(plain_settings(empty.broker, empty.prefix), role)
    assert found.verdict is CheckVerdict.BROKEN
    assert f"missing: {empty.prefix}plst1." in found.found


@pytest.mark.parametrize("user", sorted(OFTEN_READ))
def test_groups_of_the_others_are_closed(port: SecurePort, user: str) -> None:
    side = Side.AGENT if user == "agent" else Side.AGGREGATOR
    others = {group for name, group in GROUPS.items() if name != user and group != GROUPS[user]}
    with open_transport(port.scram(user), side) as log:
        for group in others:
            assert not allowed(partial(read, log, group, OFTEN_READ[user]))


def test_principal_that_the_broker_does_not_know_is_not_let_in(port: SecurePort) -> None:
    for side in Side:
        settings = dataclasses.replace(port.scram("nobody"), timeout_s=REFUSED_S)
        with open_transport(settings, side) as log, pytest.raises(TransportRefused, match="nobody"):
            write(log, REPORTS)


@pytest.mark.parametrize("user", sorted(WRITES))
def test_no_role_may_create_a_topic(port: SecurePort, user: str) -> None:
    side = Side.AGENT if user == "agent" else Side.AGGREGATOR
    with open_transport(port.scram(user), side) as log:
        log.create_topic("another", 1)  # what we may not see is the operator's
    admin = plain_settings(port.broker, port.prefix)
    with open_transport(admin, Side.AGGREGATOR) as log, pytest.raises(UnknownTopic):
        log.consumer("leader", ["another"])


def test_shells_find_their_topics_without_the_right_to_create_them(port: SecurePort) -> None:
    for user, side in (("agent", Side.AGENT), ("leader", Side.AGGREGATOR)):
        with open_transport(port.scram(user), side) as log:
            create_topics(log)


@pytest.mark.release
@pytest.mark.parametrize("side", list(Side))
def test_bearer_token_from_a_file_lets_in_and_a_wrong_one_does_not(
    port: SecurePort, side: Side
) -> None:
    with open_transport(port.bearer("agent", unsigned_token("agent", 3600.0)), side) as log:
        write(log, REPORTS)
    for token in (unsigned_token("agent", -60.0), "no token at all"):
        wrong = dataclasses.replace(port.bearer("agent", token), timeout_s=REFUSED_S)
        with (
            open_transport(wrong, side) as log,
            pytest.raises(TransportRefused, match=r"OAUTHBEARER.*check token_file"),
        ):
            write(log, REPORTS)


def wrong_password(port: SecurePort, folder: Path) -> KafkaSettings:
    port = dataclasses.replace(port, folder=folder)
    return port.scram("agent", "not the password")


def wrong_mechanism(port: SecurePort, folder: Path) -> KafkaSettings:
    return dataclasses.replace(port.scram("agent"), sasl="SCRAM-SHA-256")


def wrong_authority(port: SecurePort, folder: Path) -> KafkaSettings:
    ca_file, _ = write_certificates(folder, "127.0.0.1")
    return dataclasses.replace(port.scram("agent"), ca_file=ca_file)


def tls_to_a_plain_port(port: SecurePort, folder: Path) -> KafkaSettings:
    return dataclasses.replace(port.scram("agent"), bootstrap=(port.broker.bootstrap,))


def plain_to_a_tls_port(port: SecurePort, folder: Path) -> KafkaSettings:
    address = port.broker.secure_bootstrap or ""
    return dataclasses.replace(plain_settings(port.broker), bootstrap=(address,))


def nobody_there(port: SecurePort, folder: Path) -> KafkaSettings:
    return dataclasses.replace(plain_settings(port.broker), bootstrap=("127.0.0.1:1",))


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (wrong_password, TransportRefused, "SCRAM-SHA-512, user agent.*check .*password_file"),
        (wrong_mechanism, TransportRefused, "SCRAM-SHA-256, user agent.*check username and pass"),
        (wrong_authority, TransportRefused, "(?i)certificate.*verif.*check ca_file"),
        (tls_to_a_plain_port, TransportUnavailable, "protocol SASL_SSL.*check bootstrap and tls"),
        (plain_to_a_tls_port, TransportUnavailable, "protocol PLAINTEXT.*check bootstrap and tls"),
        (nobody_there, TransportUnavailable, "(?i)refused.*check bootstrap"),
    ],
)
def test_wrong_setting_is_told_and_not_waited_for(
    port: SecurePort,
    tmp_path: Path,
    side: Side,
    wrong: Callable[[SecurePort, Path], KafkaSettings],
    error: type[Exception],
    told: str,
) -> None:
    waited_s = REFUSED_S if error is TransportRefused else AWAY_S
    settings = dataclasses.replace(wrong(port, tmp_path), timeout_s=waited_s)
    with open_transport(settings, side) as log, pytest.raises(error, match=told):
        write(log, REPORTS)
