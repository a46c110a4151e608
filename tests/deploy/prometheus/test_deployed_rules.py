"""What deploy/ has for Prometheus and Grafana is right, and holds against processes that run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from aggregator.enrolment.tasks import sign_task
from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.leader.intake import ReportReader
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.channel import ChannelHelper
from aggregator.party.config import HttpAddress
from aggregator.party.health import HealthMetric
from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from aggregator.releases.store import Store
from aggregator.spark.spark_reader import MEASURES as SPARK_MEASURES
from edge_agent.agent_runtime import AgentStatus
from edge_agent.sending.effects import AgentTally
from edge_agent.service.reload import SelfStatus, metrics_port
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise, true_steps, window
from tests.monitoring_kit import DEPLOY, RULES, SCRAPES, Prometheus, scraping
from tests.process_kit import ProcessFleet, helper_config, leader_config
from tests.protocol_kit import (
    SIGMA_1024,
    T0,
    WINDOW_S,
    build_world,
    honest_reports,
    open_epochs,
    signing_key,
)
from tests.wait_kit import until
from tests.web_kit import HOSTS, fill, shares_of_time
from transport.process.supervision import MetricsServer

pytestmark = [pytest.mark.prometheus, pytest.mark.release]

FOLDER = DEPLOY / "grafana"
CASES = Path(__file__).with_name("pointillist.rules.test.yml")
_SELECTOR = re.compile(r"(?:\bpointillist_\w+|\bup\b|(?=\{__name__))(?:\{[^}]*\})?")
_VARIABLE = re.compile(r"\$\w+")
_LATE_S = 7_200


class CountedReader(ReportReader):
    """Says of itself what Spark's says of the log's partitions."""

    measures: Sequence[HealthMetric] = SPARK_MEASURES

    def status(self, now_s: float) -> dict[str, object]:
        return {"partitions_unread": 0}


class ServedFleet:
    """A Leader and a Helper at work, an agent's counters and the web application over a store."""

    def __init__(self, folder: Path) -> None:
        sections = [replace(spec, sigma_1024=10 * SIGMA_1024) for spec in make_task().sections]
        self.fleet = ProcessFleet(build_world(9, sections=tuple(sections)), folder)
        self.clock = self.fleet.clock
        world = self.fleet.world
        self.helper = HelperRuntime(
            helper_config(folder, world.leader_key.public_bytes), clock=self.clock
        )
        self._threads = [self._started(self.helper.run)]
        config = leader_config(folder, world.helper_key.public_bytes)
        assert config.helper is not None
        until((folder / "run" / "h.sock").exists)
        self.store = Store(folder / "store" / "r.duckdb", folder / "parquet", CATALOGUE)
        self.leader = LeaderRuntime(
            config, self.fleet.log, self.store, helper=ChannelHelper(config.helper),
            reader=lambda leader: CountedReader(leader.intake), clock=self.clock,
        )  # fmt: skip
        self._threads.append(self._started(self.leader.run))
        self.agent = SelfStatus(
            AgentStatus(
                sources=("host",),
                tally=AgentTally(published=3, sealed=2, epochs=1, refused=Counter(budget=1)),
                spool_records=0, spool_bytes=0, queued=0, next_send_ms=None, transport_up=True,
            )
        )  # fmt: skip
        self.ports: dict[str, MetricsServer] = {
            "pointillist-leader": self.leader.health.serve(HttpAddress(0)),
            "pointillist-helper": self.helper.health.serve(HttpAddress(0)),
            "pointillist-agent": metrics_port(0, lambda: self.agent),
        }

    @staticmethod
    def _started(run: object) -> threading.Thread:
        thread = threading.Thread(target=run, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread

    def settle_windows(self) -> None:
        """Release one window, suppress one for its few hosts, refuse a report."""
        world = self.fleet.world
        for number, hosts in enumerate((9, 1)):
            window = T0 + number * WINDOW_S
            epochs = open_epochs(world) if number == 0 else []
            reports = [each.encode() for each in honest_reports(world, window=window)][:hosts]
            if number:
                reports.append(reports[0][:-1])
            self.clock.set(window + WINDOW_S + 1)
            self.fleet.publish(epochs, reports)
            wanted = 9 + number
            until(lambda wanted=wanted: self.leader._leader.admitted >= wanted)  # type: ignore[misc]
            # Too few hosts are waited for until what they would send is no longer accepted.
            late_s = world.task.retention_s if number else 40
            self.clock.set(window + WINDOW_S + late_s)
            until(lambda number=number: self.passes() and self.settled() > number)  # type: ignore[misc]

    def passes(self) -> bool:
        """Let five seconds pass."""
        self.clock.set(self.clock() + 5)
        return True

    def settled(self) -> int:
        leader = self.leader._leader
        return leader.released + sum(leader.suppressed.values())

    def stop(self) -> None:
        for shell in (self.leader, self.helper):
            shell.stop()
        for thread in self._threads:
            thread.join(30)
        for port in self.ports.values():
            port.close()
        self.store.close()
        self.fleet.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    made = ServedFleet(tmp_path_factory.mktemp("fleet"))
    made.settle_windows()
    yield made
    made.stop()


def struck(start_s: int) -> ReleasedWindow:
    """A window in which half of the hosts had an incident, so that it is told from the noise."""
    task = make_task(hosts=HOSTS, start=start_s)
    amounts = {**shares_of_time(), ("incidents", "nic_cross_traffic"): 20.0 * HOSTS}
    vector = true_steps(task, HOSTS, amounts) + noise(task, HOSTS, np.random.default_rng(3))
    vector[:2] = HOSTS
    return window(task, vector, HOSTS, start_s)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The web application over releases that are late, the newest windows suppressed."""
    folder = tmp_path_factory.mktemp("web")
    end_s = int(time.time()) // 60 * 60 - _LATE_S
    store = fill(folder, end_s=end_s)
    with Store(folder / "leader.duckdb", store, CATALOGUE) as kept:
        kept.write(struck(end_s))
        for at in range(1, 4):
            start_s = end_s + 60 * at
            kept.suppress(
                SuppressedWindow(
                    "every-kind", 0, start_s, 60, 1, "n_min", 900, 10_000, float(start_s)
                )
            )
    tasks = folder / "tasks"
    tasks.mkdir()
    keys = signing_key("leader"), signing_key("helper")
    task = replace(
        make_task(hosts=HOSTS),
        leader_pk=keys[0].public_bytes,
        helper_pk=keys[1].public_bytes,
    )
    (tasks / "every-kind.task").write_bytes(sign_task(task, *keys)[1])
    command = (
        *(sys.executable, "-m", "pointillist", "web", "--store", store, "--tasks", tasks),
        *("--rollups", folder / "rollups", "--listen", "127.0.0.1:0"),
        *("--record", folder / "queries.jsonl"),
    )
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
    assert found, line + child.stdout.read()
    yield int(found[1])
    child.terminate()
    child.wait(30)


@pytest.fixture(scope="module")
def prometheus(
    served: ServedFleet, web: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    targets = {job: port.port for job, port in served.ports.items()} | {"pointillist-web": web}
    with scraping(tmp_path_factory.mktemp("prometheus") / "run", targets) as made:
        until(lambda: len(made.ask("up == 1")) == len(targets))
        until(lambda: made.ask('count_over_time(up{job="pointillist-leader"}[1m]) >= 3'))
        until(lambda: made.ask("pointillist_release_value"))
        yield made


def rules() -> dict[str, str]:
    """Expressions by the name of their alert."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Expressions of every panel and variable, with what a reader has chosen put in."""
    for path in sorted(FOLDER.glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name} {panel['title']} {target['refId']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
                yield f"{path.name} ${variable['name']}", metric


def test_promtool_accepts_rules_and_configuration() -> None:
    for command in (("check", "rules", RULES), ("check", "config", SCRAPES)):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_where_promtool_says_so() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    named = {each["alertname"] for case in cases for each in case["alert_rule_test"]}
    assert named == set(rules())
    done = subprocess.run(
        ["promtool", "test", "rules", CASES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_draw_no_released_number_without_its_error() -> None:
    """A share has both ends of its 95 % interval, a value its standard error, in the same panel."""
    drawn: set[str] = set()
    for path in FOLDER.glob("*.json"):
        board = json.loads(path.read_text())
        assert path.name == f"{board['uid']}.json"
        for panel in board["panels"]:
            said = [target["expr"] for target in panel["targets"]]
            if any("release_share_ratio" in expr for expr in said):
                ends = {sign for expr in said for sign in "+-" if f" {sign} 1.96 * " in expr}
                assert ends == {"+", "-"}, panel["title"]
                drawn.add("share")
            if any(expr.startswith("pointillist_release_value") for expr in said):
                assert any("release_standard_error" in expr for expr in said), panel["title"]
                drawn.add("value")
    assert drawn == {"share", "value"}


def test_every_expression_of_a_dashboard_gives_series(prometheus: Prometheus) -> None:
    queries = dict(dashboard_queries())
    assert len(queries) > 20
    empty = [
        place for place, expr in queries.items() if not prometheus.ask(_VARIABLE.sub(".+", expr))
    ]
    assert not empty


def test_every_metric_that_an_alert_asks_for_is_there(prometheus: Prometheus) -> None:
    for name, expr in rules().items():
        prometheus.ask(expr)  # Prometheus refuses what it cannot evaluate
        selectors = {found for found in _SELECTOR.findall(expr) if found}
        assert selectors, name
        assert not [one for one in selectors if not prometheus.ask(one)], name


def test_alerts_fire_on_processes_that_are_in_trouble(
    prometheus: Prometheus, served: ServedFleet
) -> None:
    of_releases = {
        "PointillistWindowsSuppressed", "PointillistCoverageLow", "PointillistReleasesLate",
    }  # fmt: skip
    until(lambda: prometheus.firing() >= of_releases)
    quiet = {"PointillistHelperDown", "PointillistHelperAway", "PointillistAgentCannotSend"}
    assert not prometheus.firing() & quiet
    refused = AgentTally(published=3, sealed=2, epochs=1, refused=Counter(budget=5))
    agent = replace(served.agent.agent, tally=refused, transport_up=False)
    served.agent = replace(served.agent, agent=agent)
    served.helper.stop()
    served.ports.pop("pointillist-helper").close()
    served.ports.pop("pointillist-agent")

    def troubled() -> bool:
        served.passes()  # the Leader asks the Helper every ten seconds
        return prometheus.firing() >= {
            *of_releases, *quiet, "PointillistAgentBudgetSpent", "PointillistAgentNotReporting",
        }  # fmt: skip

    until(troubled)
    served.ports.pop("pointillist-leader").close()
    until(lambda: "PointillistLeaderDown" in prometheus.firing())
