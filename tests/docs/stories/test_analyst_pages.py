"""What readers of releases type, as pages have it: queries, reports, alerts, pages, the store."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.browser.simulated_store import fill_simulated
from tests.certificate_kit import certificate
from tests.closed_kit import REPOSITORY
from tests.docs.stories.conftest import HERE
from tests.page_machine import PageMachine

pytestmark = [pytest.mark.root, pytest.mark.release]

USERS = "/srv/user/.local/share/pointillist"
"""Where commands look that name no folder."""

RECEIVER = """
import http.server

class Taken(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", 9999), Taken)
print("listens", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def store(machine: PageMachine, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = fill_simulated(tmp_path_factory.mktemp("store"), quarters=1)
    for folder in (USERS, HERE):
        machine.path(folder).mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, machine.path(f"{folder}/releases"))
    machine.folder = HERE
    return f"{HERE}/releases"


def test_released_numbers_are_asked_for(machine: PageMachine, store: str) -> None:
    machine.type("query --schema")
    machine.type("query --check")
    machine.type("query --store", more=f"{store} --check")
    for answer in (
        machine.type(
            "query SELECT series, outcome, reason, count(*) AS windows FROM windows GROUP BY ALL"
        ),
        machine.type("query SELECT cell, share FROM latest WHERE section = 'kernel_mix' --json"),
        machine.type(
            "query SELECT section, cell, share, share_low, share_high, windows FROM recent WHERE "
            "told ORDER BY share DESC"
        ),
        machine.type(
            "query SELECT window_start, cause, hosts, low, high, trend FROM causes WHERE q_value "
            "<= 0.01"
        ),
        machine.type(
            "query SELECT date_trunc('hour', window_start) AS hour, avg(share) AS share FROM "
            "released WHERE series = 'minute' AND section = 'kernel_mix' AND cell = "
            "'gpu_time/gemm' GROUP BY hour ORDER BY hour",
            having={"minute": "hour"},
        ),
    ):
        assert not answer.said.startswith("0 rows")
    machine.type("causes")
    machine.type("causes --section hardware_faults --json")
    machine.type("causes --store runs/lived/releases", having={"runs/lived/releases": store})
    rates = "aggregator/statistics/incident_rates.json"
    machine.type(
        "causes --rates aggregator/statistics/incident_rates.json --agents-model hand rules 1",
        having={rates: str(REPOSITORY / rates)},
    )


def test_the_store_is_packed_and_a_report_sent_round(machine: PageMachine, store: str) -> None:
    machine.type("store show releases/")
    machine.type("store compact releases/")
    machine.type("report --week --out week.html")
    sql = "SELECT strftime(max(window_start), '%Y-%m-%d') AS day FROM windows"
    day = machine.answer("query", sql, "--store", store)[0]["day"]
    there = {"DIR": store, "2026-11-23": day}
    machine.type("report --day --store DIR --until 2026-11-23 --out day.html", having=there)
    for name in ("week", "day"):
        assert "<svg" in machine.path(f"{HERE}/{name}.html").read_text()


def test_alerts_are_told_of_a_fleet_and_of_a_host(machine: PageMachine, store: str) -> None:
    machine.path(f"{HERE}/alerts.toml").write_text(
        machine.type("sample show alerts.toml").said.replace("[alertmanager]", "[webhook]")
        .replace("http://127.0.0.1:9093", "http://127.0.0.1:9999/")
    )  # fmt: skip
    receiver = machine.start(["python3", "-c", RECEIVER])
    receiver.until("listens")
    machine.type("alerts check --store releases --config alerts.toml", more="--once --json")
    journal = f"{HERE}/diagnoses.jsonl"
    shutil.copy(next((REPOSITORY / "bench/journals").glob("*.jsonl")), machine.path(journal))
    machine.type(
        "alerts check --journal /var/lib/pointillist/agent/state/diagnoses.jsonl "
        "--config alerts.toml",
        more="--once",
        having={"/var/lib/pointillist/agent/state/diagnoses.jsonl": journal},
    )
    receiver.end()


def test_pages_are_served(machine: PageMachine, store: str, tmp_path: Path) -> None:
    machine.type("web token --name ada --role analyst --expires 30d")
    machine.type("web token --name acme-1 --role operator --operator acme --expires 90d")
    machine.type("web revoke NAME", having={"NAME": "acme-1"})
    tokens = "/etc/pointillist/tokens.json"
    machine.path(tokens).parent.mkdir(exist_ok=True)
    machine.type("web token --token-file", more=f"{tokens} --name ada --role analyst --expires 30d")
    machine.type("web revoke NAME", more=f"--token-file {tokens}", having={"NAME": "ada"})
    for name, file in zip(("web.pem", "web.key"), certificate(tmp_path, "web"), strict=True):
        shutil.copy(file, machine.path(f"{HERE}/{name}"))
    machine.path(f"{HERE}/web.key").chmod(0o600)
    served = [
        machine.begin("web --open"),
        machine.begin(
            "web --store DIR --listen 0.0.0.0:8443 --name fleet.example.org --cert-file web.pem "
            "--key-file web.key", having={"DIR": store},
        ),
    ]  # fmt: skip
    for running in served:
        running.until("http")
        assert running.end(signal.SIGINT).code in {0, 130}
    running = machine.begin(
        "web --store /var/lib/pointillist/releases/parquet",
        having={"/var/lib/pointillist/releases/parquet": store},
    )
    running.until("http")
    assert running.end(signal.SIGINT).code in {0, 130}
