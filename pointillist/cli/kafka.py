"""`pointillist kafka`: a broker on this machine for trying out, and what a real one needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from aggregator.party.config import load_kafka_table
from transport.interface import create_topics
from transport.kafka.kafka_frame import KafkaSettings
from transport.settings.config import ConfigError
from wire.topics import DEAD_LETTERS, REPORTS, TOPICS

from .output import ExitCode, JsonFlag, emit, reported, say, unavailable, usage_error

app = typer.Typer(
    help="Apache Kafka: a broker on this machine, topics and rights on any.",
    epilog="Example: pointillist kafka start",
    no_args_is_help=True,
)

FolderOption = Annotated[
    Path | None, typer.Option(help="The broker's own folder; your state folder unless given.")
]


def _folder(folder: Path | None) -> Path:
    import platformdirs

    return (folder or Path(platformdirs.user_state_dir("pointillist")) / "kafka").resolve()


@app.command(epilog="Example: pointillist kafka start --secure")
def start(
    folder: FolderOption = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Also listen for TLS with SCRAM, under ACLs.")
    ] = False,
    heap_mib: Annotated[int, typer.Option(help="Memory of the JVM.", min=256)] = 1024,
    json: JsonFlag = False,
) -> None:
    """Start Apache Kafka on loopback, on free ports; it keeps ports and data over a restart.

    Needs Java 17 and Maven, which fetches Kafka once; as root on Debian and Ubuntu they are
    installed.
    """
    from pointillist.broker.local import BrokerError, BrokerOptions, LocalBroker

    options = BrokerOptions(secure=secure, heap_mib=heap_mib, quick=False)
    with reported(ExitCode.UNAVAILABLE, BrokerError):
        running = LocalBroker(_folder(folder), options).start(say)
    lines = f'broker  {running.bootstrap}\n\n[transport.kafka]\nbootstrap = ["{running.bootstrap}"]'
    if running.secure_bootstrap:
        lines += f"\n\nTLS     {running.secure_bootstrap} (ca_file {running.ca_file})"
    emit(asdict(running), json, lines)


@app.command(epilog="Example: pointillist kafka stop")
def stop(folder: FolderOption = None, json: JsonFlag = False) -> None:
    """Stop the broker that `start` started; its data stays."""
    from pointillist.broker.local import LocalBroker

    stopped = LocalBroker(_folder(folder)).stop()
    emit({"stopped": stopped}, json, "stopped" if stopped else "no broker was running")


@app.command(epilog="Example: pointillist kafka status --json")
def status(folder: FolderOption = None, json: JsonFlag = False) -> None:
    """Tell whether it runs, and where; exit code 4 when it does not."""
    from pointillist.broker.local import LocalBroker

    where = _folder(folder)
    running = LocalBroker(where).status()
    if running is None:
        asked = "" if folder is None else f" --folder {folder}"
        raise unavailable(
            f"no broker of {where} runs", f"start one: pointillist kafka start{asked}"
        )
    emit(asdict(running), json)


@app.command(
    epilog="Example: pointillist kafka topics --config admin.toml --agent agent --leader leader"
)
def topics(
    config: Annotated[Path, typer.Option(help="TOML with a table transport.kafka.")],
    agent: Annotated[str | None, typer.Option(help="User of the agents.")] = None,
    leader: Annotated[str | None, typer.Option(help="User of the Leader.")] = None,
    helper: Annotated[str | None, typer.Option(help="User of the Helper.")] = None,
    reader: Annotated[
        str | None, typer.Option(help="User who may follow releases, and nothing else.")
    ] = None,
    report_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Partitions of a topic of reports that is made now, 32 unless named; one that "
            "exists stays as it is.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 where settings differ.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Create Pointillist's topics, and give users their rights: what an administrator does once.

    Topics that exist are put right where retention, clean-up or longest batch differ from the
    configuration: sealed reports must go with age.

    Agents write reports, epochs and join requests and read tasks, rosters and keys; the Leader
    reads all of these and writes the latter; the Helper the same, without the reports. The Leader
    also writes answers to join requests, which agents read, and releases, which a reader reads.
    """
    from pointillist.broker.rights import (
        MISSING,
        PARTITIONS,
        differing,
        grant,
        put_right,
    )
    from transport.kafka.kafka_aggregator import AggregatorKafka
    from transport.kafka.kafka_roles import KafkaRole

    settings = _settings(config)
    users = {
        KafkaRole.AGENT: agent,
        KafkaRole.LEADER: leader,
        KafkaRole.HELPER: helper,
        KafkaRole.READER: reader,
    }
    named = {role: user for role, user in users.items() if user is not None}
    topics = {topic.name: topic.partitions for topic in TOPICS} | {
        REPORTS: report_partitions or AggregatorKafka.report_partitions,
        DEAD_LETTERS: 1,
    }
    granted = 0
    if not check:
        with AggregatorKafka(settings) as kafka:
            create_topics(kafka, reports=report_partitions)
            kafka.create_topic(DEAD_LETTERS, 1)
            granted = grant(settings, named)
    differences = differing(settings, topics)
    if not check:
        put_right(settings, differences)
    emit(
        {
            "topics": [settings.named(topic) for topic in topics],
            "rules": granted,
            "differ" if check else "put_right": [
                asdict(found) for found in differences if check or found.setting != PARTITIONS
            ],
        },
        json,
    )
    missing = [found.topic for found in differences if found.setting == MISSING]
    if check and missing:
        say(f"missing: {', '.join(missing)}; without --check this command makes them")
    stay = [found for found in differences if found.setting == PARTITIONS]
    for found in stay:
        wanted = f"--report-partitions {found.found} says that they are wanted"
        others = "none can be taken away, and all are read"
        say(
            f"{found.topic} has {found.found} partitions, expected {found.wanted}: they cannot be "
            f"put right; {wanted if found.topic == settings.named(REPORTS) else others}"
        )
    if stay or (check and differences):
        raise typer.Exit(ExitCode.FAILED)


def _settings(path: Path) -> KafkaSettings:
    with reported(ExitCode.USAGE, ConfigError):
        found = load_kafka_table(path)
    if found is None:
        raise usage_error(f"{path}: expected a table [transport.kafka], found none")
    return found
