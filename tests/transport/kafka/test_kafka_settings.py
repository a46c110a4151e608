"""Settings of Kafka: what cannot work is refused, with the key; topics get their limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aggregator.party.config import load_leader_config
from pointillist.broker.properties import Ports, server_properties
from tests.config_kit import parse_config
from transport.factory import EmbeddedSettings, Side, TransportTable, open_transport
from transport.interface import (
    BatchingProducer,
    Outgoing,
    RecordTooLarge,
    TransportRefused,
    TransportUnavailable,
)
from transport.kafka.kafka_frame import (
    BATCH_BYTES,
    KafkaSettings,
    KafkaSettingsError,
)
from transport.settings.config import ConfigError
from wire.topics import EPOCHS, JOINS, KEYS, REPORTS, TOPICS

SAMPLES = Path("deploy/config")
BROKER = "kafka.example.org:9093"
FOLDER = 'folder = "/var/lib/pointillist/log"\ngroup = "pointillist"\n'
KAFKA = f'kafka = {{ bootstrap = ["{BROKER}"], tls = true, timeout_s = 3 }}\n'


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"bootstrap": ()}, "bootstrap: expected at least one"),
        ({"bootstrap": ("kafka",)}, "bootstrap: expected host:port, got 'kafka'"),
        ({"ca_file": Path("/ca.pem")}, "ca_file: expected tls = true"),
        ({"tls": True, "cert_file": Path("/c.pem")}, "both cert_file and key_file"),
        ({"tls": True, "sasl": "PLAIN"}, "sasl: expected one of"),
        ({"tls": True, "sasl": "SCRAM-SHA-512", "username": "a"}, "password_file: expected"),
        ({"tls": True, "sasl": "OAUTHBEARER"}, "token_file: expected"),
        ({"username": "a"}, "username: not used with sasl = None"),
        ({"sasl": "OAUTHBEARER", "token_file": Path("/t")}, "sasl: expected tls = true"),
        ({"prefix": "a b"}, "prefix: expected letters"),
        ({"timeout_s": 0.0}, r"timeout_s: expected 0\.1\.\.3600"),
        ({"retention_s": 5}, "retention_s of at least 60"),
    ],
)
def test_setting_that_cannot_work_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(KafkaSettingsError, match=complaint):
        KafkaSettings(**{"bootstrap": (BROKER,), **given})


def test_password_goes_without_tls_on_loopback_alone() -> None:
    given: dict[str, Any] = {
        "sasl": "SCRAM-SHA-256", "username": "a", "password_file": Path("/p"),
    }  # fmt: skip
    assert KafkaSettings(("127.0.0.1:9092",), **given).protocol == "SASL_PLAINTEXT"
    with pytest.raises(KafkaSettingsError):
        KafkaSettings(("127.0.0.1:9092", BROKER), **given)


def test_password_file_must_be_closed_to_others_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "password"
    settings = KafkaSettings(
        (BROKER,), tls=True, sasl="SCRAM-SHA-512", username="a", password_file=path
    )
    with pytest.raises(KafkaSettingsError, match="password_file: expected a readable"):
        settings.check_files()
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(KafkaSettingsError, match="closed to others"):
        settings.check_files()
    path.chmod(0o640)
    settings.check_files()
    assert settings.password() == "secret"
    path.write_text("\n")
    with pytest.raises(KafkaSettingsError, match="expected 1"):
        settings.password()


@pytest.mark.parametrize("side", list(Side))
@pytest.mark.parametrize("name", ["password_file", "token_file"])
def test_secret_that_goes_while_we_run_is_named_and_tried_again(
    name: str, side: Side, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text("secret")
    path.chmod(0o600)
    given: dict[str, Any] = {
        "password_file": {"sasl": "SCRAM-SHA-512", "username": "a", "password_file": path},
        "token_file": {"sasl": "OAUTHBEARER", "token_file": path},
    }[name]
    with open_transport(KafkaSettings(("127.0.0.1:1",), timeout_s=0.1, **given), side) as log:
        path.unlink()
        with pytest.raises(TransportRefused, match=f"{name}: expected a readable.*check .*{name}"):
            log.consumer("g", [REPORTS])
        path.write_text("secret")
        path.chmod(0o600)
        with pytest.raises(TransportUnavailable, match=r"does not serve.*check bootstrap"):
            log.consumer("g", [REPORTS])


def test_topics_get_retention_limits_clean_up_and_no_compression() -> None:
    settings = KafkaSettings((BROKER,), retention_s=3600)
    for topic in TOPICS:
        config = settings.topic_config(topic.name)
        assert config["compression.type"] == "uncompressed"
        assert config["cleanup.policy"] == ("compact" if topic.compacted else "delete")
        assert int(config["max.message.bytes"]) >= BATCH_BYTES
        assert int(config["max.message.bytes"]) > settings.value_limit(topic.name)
    retention = {
        name: settings.topic_config(name).get("retention.ms") for name in (EPOCHS, REPORTS)
    }
    assert retention == {EPOCHS: "3600000", REPORTS: "3600000"}
    assert settings.topic_config(JOINS)["retention.ms"] == "-1"
    for replication, in_sync in ((1, "1"), (2, "1"), (3, "2")):
        copies = KafkaSettings((BROKER,), replication=replication).topic_config(REPORTS)
        assert copies["min.insync.replicas"] == in_sync
    assert settings.value_limit(KEYS) < 2000 < settings.value_limit(REPORTS)


def test_agent_config_takes_a_cluster_in_place_of_a_folder() -> None:
    text = (SAMPLES / "agent.toml").read_text()
    assert FOLDER in text
    kafka = parse_config(text.replace(FOLDER, KAFKA)).transport.settings
    assert isinstance(kafka, KafkaSettings)
    assert (kafka.bootstrap, kafka.tls, kafka.timeout_s) == ((BROKER,), True, 3.0)
    with pytest.raises(ConfigError, match="either folder"):
        parse_config(text.replace(FOLDER, FOLDER + KAFKA))
    with pytest.raises(
        ConfigError, match=r"transport\.kafka\.tsl: unknown key .*; expected one of"
    ):
        parse_config(text.replace(FOLDER, KAFKA.replace("tls", "tsl")))
    with pytest.raises(ConfigError, match=r"transport\.kafka: prefix: expected"):
        parse_config(text.replace(FOLDER, KAFKA.replace("timeout_s = 3", 'prefix = "%"')))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("tls", "tsl"), "tsl: unknown key .*; expected one of bootstrap, tls"),
        (("tls = true", "tls = 1"), "tls: expected true or false, got 1"),
        ((f'["{BROKER}"]', f'"{BROKER}"'), "bootstrap: expected an array"),
        (("timeout_s = 3", 'timeout_s = "3"'), "timeout_s: expected a number"),
        (("timeout_s = 3", 'prefix = "%"'), "prefix: expected letters"),
        (("timeout_s = 3", 'ca_file = "ca.pem"'), "ca_file: expected an absolute path"),
    ],
)
def test_leader_config_takes_a_cluster_and_names_what_is_wrong(
    change: tuple[str, str], complaint: str, tmp_path: Path
) -> None:
    text = (SAMPLES / "leader.toml").read_text()
    assert FOLDER in text
    path = tmp_path / "leader.toml"
    path.write_text(text.replace(FOLDER, KAFKA))
    kafka = load_leader_config(path).transport
    assert isinstance(kafka, KafkaSettings)
    assert (kafka.bootstrap, kafka.tls, kafka.timeout_s) == ((BROKER,), True, 3.0)
    path.write_text(text.replace(FOLDER, KAFKA.replace(*change)))
    with pytest.raises(ConfigError, match=complaint):
        load_leader_config(path)


def test_transport_is_one_of_two() -> None:
    kafka = KafkaSettings((BROKER,))
    assert TransportTable(Path("/log"), "g").settings == EmbeddedSettings(Path("/log"), "g")
    assert TransportTable(kafka=kafka).settings is kafka
    for folder, group, cluster in ((None, None, None), (Path("/log"), None, kafka)):
        with pytest.raises(ValueError, match="expected either folder"):
            TransportTable(folder, group, cluster)


class FailingBroker(BatchingProducer):
    """Acknowledges the first records of each flush and then fails."""

    batch_bytes = BATCH_BYTES

    def __init__(self, takes: int) -> None:
        super().__init__(lambda _topic: 4, KafkaSettings((BROKER,)).value_limit)
        self.takes = takes
        self.taken: list[bytes] = []

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        taken = records[: self.takes]
        self.taken += [one.value for one in taken]
        left = list(range(len(taken), len(records)))
        return left, TransportUnavailable("away") if left else None

    def _drop(self) -> None:
        raise AssertionError("nothing is closed")


def test_records_not_acknowledged_stay_in_order() -> None:
    broker = FailingBroker(2)
    for number in range(5):
        broker.send("t", b"k", b"%d" % number)
    for left in (3, 1):
        with pytest.raises(TransportUnavailable):
            broker.flush()
        assert len(broker._pending) == left
    broker.flush()
    assert broker.taken == [b"0", b"1", b"2", b"3", b"4"]


def test_buffer_refuses_to_grow_while_the_broker_is_away() -> None:
    broker = FailingBroker(0)
    broker.send("t", b"k", bytes(BATCH_BYTES - 10))
    with pytest.raises(TransportUnavailable):
        broker.send("t", b"k", bytes(20))
    assert len(broker._pending) == 1
    with pytest.raises(RecordTooLarge, match="key: expected at most"):
        broker.send("t", bytes(2000), b"")


def test_local_broker_listens_on_loopback_alone() -> None:
    text = server_properties(Path("/b"), Ports(1, 2, 3), Path("/b/server.pem"), {})
    lines = dict(line.split("=", 1) for line in text.splitlines())
    for name in ("listeners", "advertised.listeners"):
        assert all("://127.0.0.1:" in one for one in lines[name].split(","))
    assert lines["auto.create.topics.enable"] == "false"
    assert lines["allow.everyone.if.no.acl.found"] == "false"
