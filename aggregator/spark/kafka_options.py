"""What Spark's connector is told about a cluster of Kafka."""

from __future__ import annotations

from transport.kafka.kafka_frame import KafkaSettings


def kafka_options(settings: KafkaSettings) -> dict[str, str]:
    """Give what Spark's connector is told.

    Raises      KafkaSettingsError; ValueError for what the connector cannot do
    """
    options = {
        "kafka.bootstrap.servers": ",".join(settings.bootstrap),
        "kafka.security.protocol": settings.protocol,
        "kafka.fetch.max.bytes": str(16 << 20),
        "kafka.max.partition.fetch.bytes": str(4 << 20),
        "groupIdPrefix": settings.named("leader-spark"),
        # What retention took is late for every window; other readers go on, too.
        "failOnDataLoss": "false",
    }
    if settings.ca_file is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": settings.ca_file.read_text(),
        }
    if settings.cert_file is not None and settings.key_file is not None:
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": settings.cert_file.read_text(),
            "kafka.ssl.keystore.key": settings.key_file.read_text(),
        }
    if settings.sasl == "OAUTHBEARER":
        raise ValueError("sasl: expected SCRAM or a client certificate with Spark, got OAUTHBEARER")
    if settings.sasl is not None:
        options |= {
            "kafka.sasl.mechanism": settings.sasl,
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
            f"required username={_quoted(settings.username or '')} "
            f"password={_quoted(settings.password())};",
        }
    return options


def _quoted(text: str) -> str:
    """A value of a login configuration of Java."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
