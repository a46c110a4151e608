"""Sealed reports go with age on a real cluster: what a topic was created with is put right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pointillist.broker.local import RunningBroker
from pointillist.broker.rights import differing, put_right
from pointillist.cli.kafka import app
from tests.kafka_kit import fresh_prefix, plain_settings
from transport.factory import Side, open_transport
from wire.topics import DEAD_LETTERS, EPOCHS, RELEASES, REPORTS

pytestmark = pytest.mark.kafka


def test_retention_of_existing_topics_is_compared_and_put_right(
    local_broker_running: RunningBroker,
) -> None:
    settings = plain_settings(local_broker_running, fresh_prefix())
    long = replace(settings, retention_s=400 * 86_400)
    topics = (EPOCHS, REPORTS, DEAD_LETTERS, RELEASES)
    with open_transport(long, Side.AGGREGATOR) as log:
        for topic in topics:
            log.create_topic(topic, 1)
    assert differing(long, dict.fromkeys(topics)) == []
    found = differing(settings, dict.fromkeys(topics))
    assert {(one.topic, one.setting) for one in found} == {
        (settings.named(topic), "retention.ms") for topic in (EPOCHS, REPORTS, DEAD_LETTERS)
    }
    assert {(one.found, one.wanted) for one in found} == {
        (str(400 * 86_400_000), str(14 * 86_400_000))
    }
    put_right(settings, found)
    assert differing(settings, dict.fromkeys(topics)) == []


def test_topics_command_checks_and_puts_right(
    local_broker_running: RunningBroker, tmp_path: Path
) -> None:
    prefix, config = fresh_prefix(), tmp_path / "admin.toml"
    bootstrap = plain_settings(local_broker_running, prefix).bootstrap

    def asked(retention_s: int, *options: str) -> tuple[int, dict[str, list[object]]]:
        config.write_text(
            f"[transport.kafka]\nbootstrap = {json.dumps(bootstrap)}\n"
            f"prefix = {json.dumps(prefix)}\nretention_s = {retention_s}\ntimeout_s = 60.0\n"
        )
        done = CliRunner().invoke(app, ["topics", "--config", str(config), "--json", *options])
        assert done.exit_code in {0, 1}, done.output
        return done.exit_code, json.loads(done.stdout)

    assert asked(86_400)[0] == 0
    assert asked(86_400, "--check") == (0, asked(86_400, "--check")[1])
    code, told = asked(7 * 86_400, "--check")
    assert (code, len(told["differ"])) == (1, 3)
    code, told = asked(7 * 86_400)
    assert (code, len(told["put_right"])) == (0, 3)
    code, told = asked(7 * 86_400, "--check")
    assert (code, told["differ"]) == (0, [])


def test_topics_command_names_what_is_missing_and_partitions_that_differ(
    broker: RunningBroker, tmp_path: Path
) -> None:
    settings, config = plain_settings(broker, fresh_prefix()), tmp_path / "admin.toml"
    config.write_text(
        f'[transport.kafka]\nbootstrap = ["{broker.bootstrap}"]\n'
        f'prefix = "{settings.prefix}"\ntimeout_s = 60.0\n'
    )
    with open_transport(settings, Side.AGGREGATOR) as log:
        log.create_topic(REPORTS, 6)
        log.create_topic(RELEASES, 3)

    def asked(*options: str) -> tuple[int, str, dict[tuple[object, object], list[object]]]:
        done = CliRunner().invoke(app, ["topics", "--config", str(config), "--json", *options])
        told = json.loads(done.stdout)
        rows = told.get("differ", told.get("put_right"))
        return (
            done.exit_code,
            done.stderr,
            {(row["topic"], row["setting"]): [row["found"], row["wanted"]] for row in rows},
        )

    reports, releases = settings.named(REPORTS), settings.named(RELEASES)
    code, said, rows = asked("--check")
    assert code == 1
    assert rows[settings.named(DEAD_LETTERS), "topic"] == [None, "there"]
    assert f"missing: {settings.named('plst1.')}" in said
    assert rows[reports, "partitions"] == ["6", "32"]
    assert rows[releases, "partitions"] == ["3", "1"]
    assert f"{reports} has 6 partitions, expected 32: they cannot be put right" in said
    code, said, rows = asked("--report-partitions", "6")
    assert code == 1
    assert rows == {}
    assert f"{releases} has 3 partitions, expected 1" in said
    assert reports not in said
