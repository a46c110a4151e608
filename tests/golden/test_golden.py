"""What others rely on is as it was: options, columns, metrics, journals, configurations, the API.

How a change is made on purpose stands in `tests/golden_kit.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from enum import Enum, EnumType
from inspect import formatannotation
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from typer.testing import CliRunner

from aggregator.enrolment.enrolment import load_enrolment
from aggregator.helper import helper_runtime
from aggregator.leader import leader_runtime
from aggregator.party.config import load_helper_config, load_leader_config
from aggregator.party.health import HealthMetric
from aggregator.releases.releases import open_views
from aggregator.releases.store import Store
from aggregator.witness import service
from aggregator.witness.service import load_witness_config
from analytics.costs import load_prices
from diagnosis.detect.journal import JournalReader, encode
from edge_agent.agent_runtime import AgentStatus
from edge_agent.config import load_config
from edge_agent.sending.effects import AgentTally
from edge_agent.service.reload import SelfStatus, StatusCollector
from pointillist.alerts.alert import load_alerts_config
from pointillist.cli import query, root
from pointillist.plan_file import load_plan
from pointillist.play.export import load_export_config
from tests.aggregator.releases.release_kit import CATALOGUE
from tests.fleet_kit import fleet_folder
from tests.golden_kit import FOLDER, commands, compare, compare_document
from tests.web_kit import client, releases
from transport.settings import config

_PARTIES = {
    "leader": leader_runtime.MEASURES,
    "helper": helper_runtime.MEASURES,
    "witness": service._MEASURES,
}
_CONFIGURATIONS: dict[str, Callable[[Path], object]] = {
    "agent": load_config,
    "alerts": load_alerts_config,
    "export": lambda path: load_export_config(path, "log"),
    "helper": load_helper_config,
    "leader": load_leader_config,
    "plan": load_plan,
    "plans": load_enrolment,
    "prices": load_prices,
    "witness": load_witness_config,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Leader's file and its folder of Parquet, of one window."""
    folder = tmp_path_factory.mktemp("store")
    with Store(folder / "leader.duckdb", folder / "releases", CATALOGUE) as made:
        for release in releases(windows=1):
            made.write(release)
    return folder


@pytest.fixture(scope="module")
def pages(store: Path) -> Iterator[TestClient]:
    with client(store / "releases") as made:
        yield made


def test_options_of_every_command() -> None:
    def lines() -> Iterator[str]:
        for path, command in sorted(commands().items()):
            yield f"{' '.join(path)}{' (hidden)' if command.hidden else ''}"
            for one in command.params:
                names = " ".join([*one.opts, *one.secondary_opts])
                many = " repeated" if one.multiple or one.nargs != 1 else ""
                yield f"  {names}  {words(one)}{many}{' required' if one.required else ''}"

    def words(option: Any) -> str:
        """What it takes, and what it is without it."""
        kind = option.type_descriptor.annotation
        said = formatannotation(kind) if isinstance(kind, type) else str(kind)
        if isinstance(kind, EnumType):
            members: Iterable[Enum] = kind.__members__.values()
            said = "|".join(str(one.value) for one in members)
        given = option.default if isinstance(option.default, str | int | float) else None
        return said if given is None else f"{said} = {given}"

    compare("commands.txt", lines())


def test_columns_of_views_files_and_tables(store: Path) -> None:
    def lines() -> Iterator[str]:
        with open_views(store / "releases") as database:
            views = "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
            for (view,) in database.execute(views).fetchall():
                yield f"view {view}"
                yield from columns(database, view)
        with duckdb.connect(str(store / "leader.duckdb"), read_only=True) as database:
            for (table,) in database.execute("SHOW TABLES").fetchall():
                yield f"table {table}"
                yield from columns(database, table)
        for folder in ("series=every-kind", "causes", "suppressed"):
            file = next((store / "releases" / folder).rglob("*.parquet"), None)
            if file is not None:
                yield f"file {folder}"
                yield from (f"  {one.name}  {one.type}" for one in pq.read_schema(file))
        said = CliRunner().invoke(query.app, ["--schema", "--json"], catch_exceptions=False)
        for row in json.loads(said.stdout):
            yield f"query {row['view']}  {row['column']}  {row['type']}"

    def columns(database: duckdb.DuckDBPyConnection, name: str) -> Iterator[str]:
        for column, kind, *_ in database.execute(f"DESCRIBE {name}").fetchall():
            yield f"  {column}  {kind}"

    compare("columns.txt", lines())


def test_names_of_metrics(pages: TestClient) -> None:
    def lines() -> Iterator[str]:
        agent = SelfStatus(
            AgentStatus(
                sources=("host",), tally=AgentTally(), spool_records=0, spool_bytes=0, queued=0,
                next_send_ms=None, transport_up=True,
            )
        )  # fmt: skip
        for family in StatusCollector(lambda: agent).collect():
            yield f"{family.name}  {family.type} {' '.join(getattr(family, '_labelnames', ()))}"
        for party, measures in _PARTIES.items():
            for one in measures:
                yield f"pointillist_{party}_{one.name}  {kind(one)} {one.label}"
        for family in text_string_to_metric_families(pages.get("/metrics").text):
            labels = sorted({label for sample in family.samples for label in sample.labels})
            yield f"{family.name}  {family.type} {' '.join(labels)}"

    def kind(one: HealthMetric) -> str:
        return "counter" if one.counter else "gauge"

    compare("metrics.txt", (line.rstrip() for line in lines()))


def test_openapi(pages: TestClient) -> None:
    described = pages.get("/api/v1/openapi.json").json()
    sets: dict[str, str] = {}

    def lines() -> Iterator[str]:
        for path, methods in sorted(described["paths"].items()):
            for method, one in methods.items():
                asked = json.dumps(one.get("parameters", []))
                answers = {status: shape(a) for status, a in one["responses"].items()}
                answered = " ".join(f"{status}={said}" for status, said in answers.items())
                yield f"{method} {path} {sets.setdefault(asked, f'P{len(sets)}')} {answered}"
        for asked, name in sets.items():
            yield name
            yield from (f"  {json.dumps(plain(one), sort_keys=True)}" for one in json.loads(asked))
        for name, schema in sorted(described["components"]["schemas"].items()):
            rest = {key: value for key, value in plain(schema).items() if key != "properties"}
            yield f"{name}  {json.dumps(rest, sort_keys=True)}"
            for key, value in schema.get("properties", {}).items():
                yield f"  {key}  {json.dumps(plain(value), sort_keys=True)}"

    def shape(answer: dict[str, Any]) -> str:
        kinds = answer.get("content", {})
        return ",".join(
            one.get("schema", {}).get("$ref", kind).rpartition("/")[2]
            for kind, one in kinds.items()
        )

    def plain(value: Any) -> Any:
        """Leave out what only people read."""
        if isinstance(value, list):
            return [plain(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {k: plain(v) for k, v in value.items() if k not in {"description", "title"}}

    compare("openapi.txt", lines())


def test_a_journal_of_before_is_read_and_written_the_same() -> None:
    """Warnings are read alone: an agent of before wrote them."""
    reader, lines = JournalReader(), (FOLDER / "journal.jsonl").read_bytes().splitlines()
    again = [encode(one.finding, one.offset_ns) for one in reader.read(lines)]
    assert reader.damaged == 0
    warned = b'"kind":"warned"'
    assert [one for one in again if warned not in one] == [
        one for one in lines if warned not in one
    ]
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["warned", "spike", "diagnosis", "series", "ended"]


def test_findings_of_a_journal_of_before_are_printed_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["agent", "diagnose", "--replay", str(FOLDER / "journal.jsonl"), "--json"]
    root.command()(words, standalone_mode=False)
    kinds = {json.loads(line)["kind"]: line for line in capsys.readouterr().out.splitlines()}
    assert kinds.keys() - {"Warned"} == {"SpikeBegan", "Diagnosis", "SpikeEnded"}
    for kind in kinds.keys() - {"Warned"}:
        compare_document(f"agent diagnose, {kind}", kinds[kind])


def test_keys_of_every_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each role from before is read; what each key may hold is as it was."""
    found: list[str] = []
    original, lines = config._build, list[str]()

    def build(kind: Any, table: Any, where: str) -> Any:
        if where.endswith(": "):  # a whole file
            found.extend(keys(kind, ""))
        return original(kind, table, where)

    def keys(kind: Any, above: str) -> Iterator[str]:
        for key, (field, hint) in config._keys_of(kind).items():
            inner = [one for one in (hint, *get_args(hint)) if is_dataclass(one)]
            said = config._expected(hint, field.metadata)
            yield f"  {above}{key}  {said}"
            if inner and "read" not in field.metadata:
                yield from keys(inner[0], f"{above}{key}.")

    monkeypatch.setattr(config, "_build", build)
    for role, read in _CONFIGURATIONS.items():
        found.clear()
        read(FOLDER / "config" / f"{role}.toml")
        lines += [role, *sorted(set(found))]
    compare("config.txt", lines)


def test_documents_that_no_other_test_asks_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared as it is printed."""

    def told(words: str) -> Any:
        root.command()([*words.split(), "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    with fleet_folder() as folder:
        monkeypatch.chdir(folder)
        leader, helper = (
            told(f"keys generate {party} --folder k")["public_key"]
            for party in ("leader", "helper")
        )
        told("operator keygen op.key --name acme")
        told(f"operator vouch --key op.key --name acme --plan fleet --leader {leader} a.token")
        told(f"task build --series minute --leader {leader} --helper {helper} --out m.task")
        told("task show m.task")
        told("task sign m.task --key k/leader/identity.key")
        told("helper countersign m.task --first --key k/helper/identity.key --leader " + leader)
        told(f"task verify m.task --leader {leader} --helper {helper}")
        old = told("keys rotate leader --folder k")["file"]
        told(f"keys destroy {old} --yes")
        told("fleet init trial --hosts 20 --windows 720 --window-s 5")
        told("fleet init fleet --party leader --name acme --address localhost:7443 --broker b:9092")
        told("fleet next fleet")
        told("sample list")
        told("web token --name ada --role analyst --expires 1h --token-file tokens.json")
        assert [one["name"] for one in told("web tokens --token-file tokens.json")] == ["ada"]
