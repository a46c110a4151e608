"""Facts reach a real Alertmanager and a webhook, once each; none is lost while they are away."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.releases.store import Store
from analytics import connect
from collectors.records.activity import StepSource
from diagnosis.detect.findings import Cause, Diagnosis, StepTimes
from diagnosis.detect.journal import encode
from edge_agent.journal import Journal
from pointillist.alerts.alert import NOBODY, Alert, AlertsConfig, load_alerts_config
from pointillist.alerts.facts import fleet_alerts
from pointillist.alerts.sending import (
    AlertOutbox,
    AlertRound,
    OutboxUnusable,
    Receiver,
    check,
    journal_alerts,
    receivers,
    taken,
)
from pointillist.cli.output import ExitCode
from tests.aggregator.releases.release_kit import (
    CATALOGUE,
    GPUS,
    make_task,
    noise,
    true_steps,
    window,
)
from tests.monitoring_kit import answered, free_port, monitor
from transport.settings.config import ConfigError

HOSTS, HOUR_S, WINDOW_S = 12_500, 3_600, 60
DEPLOYED = Path(__file__).parents[3] / "deploy" / "config" / "alerts.toml"


def drifting_store(folder: Path, gemm_now: float, nics_now: float = 0.0) -> Path:
    """Write ten minutes of each of the last two whole hours, and one of this: 40 % gemm before."""
    this_hour = int(time.time()) // HOUR_S * HOUR_S
    task = make_task(240, HOSTS, start=this_hour - 3 * HOUR_S)
    rng, wall = np.random.default_rng(7), HOSTS * GPUS * WINDOW_S * 1000.0
    with Store(folder / "leader.duckdb", folder / "releases", CATALOGUE) as store:
        for back, gemm, nics in ((2, 0.4, 0.0), (1, gemm_now, nics_now), (0, gemm_now, nics_now)):
            amounts = {
                ("kernel_mix", "gpu_time/gemm"): gemm * wall,
                ("kernel_mix", "idle"): (0.9 - gemm) * wall,
                ("incidents", "nic_cross_traffic"): nics,
            }
            truth = true_steps(task, HOSTS, amounts)
            for at in range(1 if back == 0 else 10):
                vector = truth + noise(task, HOSTS, rng)
                vector[:2] = HOSTS
                start_s = this_hour - back * HOUR_S + at * WINDOW_S
                store.write(window(task, vector, HOSTS, start_s))
    return folder / "releases"


def configured(folder: Path, text: str) -> Path:
    path = folder / "alerts.toml"
    path.write_text(f"format = 1\n{text}")
    return path


FLEET = '[fleet]\nby = ["family"]\nperiod = "hour"\nleast_coverage = 0.01\ncauses = false\n'
OWNERS = '[[owners]]\njob = "/slurm/uid_1000/*"\nowner = "ml-research"\n'


@contextmanager
def web_server(answers: list[int]) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these statuses, then 200; and what it was told when it said 200."""
    told: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = answers.pop(0) if answers else 200
            if status == 200:
                told.append((self.headers.get("authorization"), json.loads(body)))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        server.server_close()


def look(outbox: AlertOutbox, config: AlertsConfig, found: list[Alert]) -> AlertRound:
    return check(outbox, found, receivers(config), time.time)


def drifts(store: Path, config: AlertsConfig, rollups: Path) -> list[Alert]:
    with connect(store, rollups=rollups) as fleet:
        return list(fleet_alerts(fleet, config.fleet))


@pytest.mark.prometheus
@pytest.mark.release
def test_drift_waits_for_alertmanager_and_is_told_to_it_once(
    tmp_path: Path, run_cli: Callable[..., int]
) -> None:
    store, port = drifting_store(tmp_path, 0.44), free_port()
    config = configured(tmp_path, f'{FLEET}[alertmanager]\nurl = "http://127.0.0.1:{port}"\n')
    state = tmp_path / "state" / "outbox.json"
    command = ("alerts", "check", "--store", store, "--config", config, "--state", state, "--once")
    assert run_cli(*command) == ExitCode.UNAVAILABLE
    outbox = AlertOutbox.load(state)
    cells = {kept.alert.labels["cell"] for kept in outbox.kept.values()}
    assert cells == {"gpu_time/gemm", "idle"}
    settings = tmp_path / "alertmanager.yml"
    settings.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    options = (
        f"--config.file={settings}", f"--storage.path={tmp_path / 'am'}",
        "--cluster.listen-address=",
    )  # fmt: skip
    with monitor("prometheus-alertmanager", tmp_path / "run", port, *options) as address:
        assert run_cli(*command) == ExitCode.OK
        stands = json.loads(answered(f"{address}/api/v2/alerts"))
        assert {alert["labels"]["cell"] for alert in stands} == cells
        gemm = next(a for a in stands if a["labels"]["cell"] == "gpu_time/gemm")
        assert gemm["labels"]["alertname"] == "PointillistDrift"
        assert gemm["status"]["state"] == "active"
        assert "interval" in gemm["annotations"]["description"]
        taken = {name: dict(kept.taken_s) for name, kept in AlertOutbox.load(state).kept.items()}
        assert run_cli(*command) == ExitCode.OK
        assert taken == {
            name: dict(kept.taken_s) for name, kept in AlertOutbox.load(state).kept.items()
        }


def test_nothing_is_told_of_a_mix_that_did_not_move(tmp_path: Path) -> None:
    store = drifting_store(tmp_path, 0.4)
    config = load_alerts_config(configured(tmp_path, f'{FLEET}[webhook]\nurl = "http://x"\n'))
    assert drifts(store, config, tmp_path / "rollups") == []


def test_changes_below_the_least_and_of_gaps_are_not_told(tmp_path: Path) -> None:
    store = drifting_store(tmp_path, 0.44)
    for key, value in (("least_change", "0.2"), ("least_coverage", "0.9")):
        fleet = FLEET.replace("least_coverage = 0.01", "") if key == "least_coverage" else FLEET
        text = f'{fleet}{key} = {value}\n[webhook]\nurl = "http://x"\n'
        config = load_alerts_config(configured(tmp_path, text))
        assert drifts(store, config, tmp_path / "rollups") == []


def test_webhook_that_fails_is_tried_again_and_told_once(tmp_path: Path) -> None:
    with web_server([503, 503]) as (url, told):
        (tmp_path / "token").write_text("s3cret\n")
        (tmp_path / "token").chmod(0o600)
        text = f'[webhook]\nurl = "{url}"\ntoken_file = "{tmp_path / "token"}"\n'
        config = load_alerts_config(configured(tmp_path, text))
        outbox = AlertOutbox(tmp_path / "outbox.json")
        fact = Alert({"alertname": "A"}, {"summary": "s"}, 1_000.0, time.time() + 60)
        assert look(outbox, config, [fact]) == AlertRound(new=1, sent=1, waiting=0)
        assert look(outbox, config, [replace(fact, ends_s=time.time() + 99)]).sent == 0
    assert [(said, body["alerts"][0]["labels"]) for said, body in told] == [
        ("Bearer s3cret", {"alertname": "A"})
    ]


@pytest.mark.parametrize("content", ["s3cret\ns3cret", "s3cret\0", "s3crét"])
def test_token_that_no_header_can_hold_is_refused_and_not_quoted(
    tmp_path: Path, content: str
) -> None:
    token = tmp_path / "token"
    token.write_text(content, encoding="utf-8")
    token.chmod(0o600)
    text = f'[webhook]\nurl = "http://127.0.0.1:{free_port()}"\ntoken_file = "{token}"\n'
    config = load_alerts_config(configured(tmp_path, text))
    done = look(AlertOutbox(tmp_path / "outbox.json"), config, [Alert({}, {}, 1_000.0, 2_000.0)])
    (said,) = done.away
    assert "expected a token of one line" in said
    assert "s3cr" not in said


@pytest.mark.release
def test_what_was_found_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    config = load_alerts_config(
        configured(tmp_path, f'[webhook]\nurl = "http://127.0.0.1:{free_port()}"\n')
    )
    outbox = AlertOutbox(tmp_path / "outbox.json")
    done = look(outbox, config, [Alert({"alertname": "A"}, {}, 1_000.0, 2_000.0)])
    assert (done.waiting, len(done.away)) == (1, 1)
    again = AlertOutbox.load(tmp_path / "outbox.json")
    # It ended long ago and nobody took it, so it is not forgotten.
    assert look(again, config, []).waiting == 1
    with web_server([]) as (url, told):
        config = load_alerts_config(configured(tmp_path, f'[webhook]\nurl = "{url}"\n'))
        assert look(again, config, []).sent == 1
        assert not AlertOutbox.load(tmp_path / "outbox.json").kept
    assert len(told) == 1


def test_second_program_on_the_same_state_file_is_refused(
    tmp_path: Path, run_cli: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    journal, state = tmp_path / "diagnoses.jsonl", tmp_path / "state" / "outbox.json"
    journal.touch()
    config = configured(tmp_path, f'[webhook]\nurl = "http://127.0.0.1:{free_port()}"\n')
    command = ("alerts", "check", "--journal", journal, "--config", config, "--state", state)
    with taken(state):
        assert run_cli(*command, "--once") == ExitCode.UNAVAILABLE
        assert "expected to be the only one" in capsys.readouterr().err
        with taken(tmp_path / "state" / "another.json"):
            pass
    assert run_cli(*command, "--once") == ExitCode.OK


def test_incident_of_a_job_is_told_by_job_and_owner(tmp_path: Path) -> None:
    steps = StepTimes(100.0, 120.0, 60)
    found = Diagnosis(
        "/slurm/uid_1000/job_7", Cause.NIC_CROSS_TRAFFIC, 0.9, ((Cause.NIC_CROSS_TRAFFIC, 1.0),),
        0.1, 5_000_000_000, 9_000_000_000, StepSource.RHYTHM, steps, replace(steps, p99_ms=360.0),
        (), "rules", incident=True,
    )  # fmt: skip
    journal = Journal(tmp_path / "journal", 1 << 20)
    offset_ns = time.time_ns() - 10_000_000_000
    other = replace(found, subject="/other", onset_ns=6_000_000_000, at_ns=9_500_000_000)
    for finding in (found, replace(found, incident=False, at_ns=9_100_000_000), other):
        journal.append(encode(finding, offset_ns))
    journal.close()
    config = load_alerts_config(
        configured(tmp_path, f'{OWNERS}[webhook]\nurl = "http://127.0.0.1:1"\n')
    )
    outbox = AlertOutbox(tmp_path / "outbox.json")
    alerts = journal_alerts(tmp_path / "journal", config, outbox)
    assert [(a.labels["job"], a.labels["owner"]) for a in alerts] == [
        ("/slurm/uid_1000/job_7", "ml-research"), ("/other", NOBODY),
    ]  # fmt: skip
    assert "3.0 times" in alerts[0].annotations["description"]
    assert journal_alerts(tmp_path / "journal", config, outbox) == []


def test_deployed_configuration_is_read_and_others_are_refused(tmp_path: Path) -> None:
    assert load_alerts_config(DEPLOYED).owner("/slurm/uid_1000/job_7") == "ml-research"
    for text, said in (
        ("", "nobody is told"),
        ('[webhook]\nurl = "ftp://x"\n', "expected http"),
        ('[webhook]\nurl = "http://a:b@x"\n', "no password"),
        ('[webhook]\nurl = "http://x"\n[fleet]\nleast = 1\n', "least"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_alerts_config(configured(tmp_path, text))


def test_state_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "outbox.json"
    path.write_text('{"format": 1}')
    with pytest.raises(OutboxUnusable, match="expected alerts"):
        AlertOutbox.load(path)


def test_crash_while_sending_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise SystemExit

    config = load_alerts_config(configured(tmp_path, '[webhook]\nurl = "http://127.0.0.1:1"\n'))
    monkeypatch.setattr(Receiver, "send", crash)
    with pytest.raises(SystemExit):
        look(AlertOutbox(tmp_path / "o"), config, [Alert({"alertname": "A"}, {}, 1.0, 2.0)])
    assert len(AlertOutbox.load(tmp_path / "o").due("webhook", 0.0, None)) == 1
