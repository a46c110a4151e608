"""What Spark is told, and what is refused before it is started."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.party.config import LeaderConfig, SparkSettings, load_leader_config
from aggregator.protocol.directory import PinnedParties
from aggregator.spark.driver_process import (
    SparkMissing,
    SparkRefused,
    kafka_options,
    python_of,
    spark_job,
)
from pointillist.cli.root import removed
from transport.kafka.kafka_frame import KafkaSettings
from transport.settings.config import ConfigError

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "deploy" / "config" / "leader.toml"
PARTIES = PinnedParties(b"l" * 32, b"h" * 32)
KAFKA = KafkaSettings(("broker:9093",), prefix="fleet.")


def config_with(folder: Path, table: str) -> Path:
    path = folder / "leader.toml"
    path.write_text(f"{SAMPLE.read_text()}\n{table}\n")
    return path


def on_kafka(folder: Path, table: str = "") -> LeaderConfig:
    return replace(load_leader_config(config_with(folder, table)), transport=KAFKA)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("[spark]\nexecutors = 4", "executors"),
        ('[spark]\npython = "bin/python"', "absolute"),
        ("[spark]\nbatch_records = 0", "batch_records"),
        ('[spark.options]\n"spark.io.encryption.enabled" = "false"', r"spark\.io\.encryption"),
        ('[spark.options]\n"spark.ui.enabled" = "true"', r"spark\.ui"),
        ('[spark.options]\n"kafka.ssl" = "x"', "expected a setting of Spark"),
    ],
)
def test_table_of_spark_names_what_is_wrong(table: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        load_leader_config(config_with(tmp_path, table))


def test_table_of_spark_is_taken(tmp_path: Path) -> None:
    table = '[spark]\nmaster = "local[2]"\n[spark.options]\n"spark.driver.memory" = "2g"'
    spark = load_leader_config(config_with(tmp_path, table)).spark
    assert spark == SparkSettings(master="local[2]", options={"spark.driver.memory": "2g"})


def test_connector_is_told_how_to_reach_the_brokers(tmp_path: Path) -> None:
    assert kafka_options(KAFKA)["kafka.security.protocol"] == "PLAINTEXT"
    assert kafka_options(KAFKA)["groupIdPrefix"] == "fleet.leader-spark"
    password, ca = tmp_path / "password", tmp_path / "ca.pem"
    password.write_text('a"b\\c\n')
    password.chmod(0o600)
    ca.write_text("CERTIFICATE")
    secure = replace(
        KAFKA, tls=True, ca_file=ca, sasl="SCRAM-SHA-512", username="u", password_file=password
    )
    options = kafka_options(secure)
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.ssl.truststore.certificates"] == "CERTIFICATE"
    assert options["kafka.sasl.jaas.config"].endswith(r'username="u" password="a\"b\\c";')


def test_job_without_what_it_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparkRefused, match=r"transport\.kafka"):
        spark_job(load_leader_config(SAMPLE), PARTIES)
    bearer = replace(KAFKA, tls=True, sasl="OAUTHBEARER", token_file=tmp_path / "token")
    with pytest.raises(SparkRefused, match="SCRAM"):
        spark_job(replace(on_kafka(tmp_path), transport=bearer), PARTIES)
    table = f'[spark]\npython = "{tmp_path}/none/bin/python"'
    with pytest.raises(SparkMissing, match="make spark"):
        spark_job(on_kafka(tmp_path, table), PARTIES)


def test_python_without_spark_is_named(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(SparkMissing, match=r"PySpark 4\.0\.0"):
        python_of(SparkSettings(python=other))


def test_job_names_the_python_and_the_folder(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    jars = tmp_path / "jars"
    jars.mkdir()
    table = f'[spark]\npython = "{python}"'
    with pytest.raises(SparkMissing, match="spark-sql-kafka"):
        spark_job(on_kafka(tmp_path, table), PARTIES)
    (jars / "spark-sql-kafka-0-10_2.13-4.0.0.jar").touch()
    config = on_kafka(tmp_path, table)
    job = spark_job(config, PARTIES)
    assert (job.python, job.jars, job.folder) == (python, jars, config.state_dir / "spark")
    assert job.parties == PARTIES


def test_table_of_workers_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workers: expected no such table .*--engine spark"):
        load_leader_config(config_with(tmp_path, '[workers]\nsocket = "/run/w"'))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("--workers 4", "--workers"),
        ("--workers=0", "--workers"),
        ("--engine processes", "--engine processes"),
        ("--engine=processes", "--engine processes"),
    ],
)
def test_what_went_with_the_workers_is_refused_by_its_name(asked: str, named: str) -> None:
    refused = removed(["leader", "run", "--config", "leader.toml", *asked.split()])
    assert refused is not None
    assert str(refused).startswith(f"leader run {named}: ")
    assert "spark" in str(refused.hint) or "leave it out" in str(refused.hint)
    assert removed(["leader", "run", "--config", "leader.toml", "--engine", "spark"]) is None


def test_kit_of_the_killed_driver_needs_no_pytest() -> None:
    """Spark's environment has none; its own tests are left out unless asked for."""
    program = "import sys; sys.modules['pytest'] = None; import tests.process_kit"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)
