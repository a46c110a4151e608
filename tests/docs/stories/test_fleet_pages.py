"""Commands of hosts and parties as pages have them, in a trial fleet that runs and releases."""

from __future__ import annotations

import re
import shutil
import signal
import time

import pytest

from tests.closed_kit import REPOSITORY
from tests.docs.stories.conftest import AGENT_TOML, HERE, PageFleet
from tests.page_commands import missing, shown
from tests.page_machine import PageMachine
from tests.wait_kit import until
from transport.process.privileges import AGENT_USER

pytestmark = [pytest.mark.root, pytest.mark.release]

WITNESS_TOML = """
[witness]
key_dir = "/var/lib/pointillist/witness/keys/witness"
state_dir = "/var/lib/pointillist/witness/state"
helper_pks = ["{helper}"]
[listen]
socket = "/run/witness/witness.sock"
peer_group = "pointillist-helper"
"""


def test_a_first_host_is_told_what_its_page_shows(machine: PageMachine, fleet: PageFleet) -> None:
    said = list(fleet.host_said)
    said.append(("agent sent", machine.type("agent sent").said))
    first = {"cb7dd476": machine.answer("agent", "sent")["reports"][0]["report_id"][:8]}
    show = ["pointillist", "agent", "sent", "--report", first["cb7dd476"]]
    until(lambda: "no longer kept" not in machine.run(show).said)  # it is kept within 10 s
    one = machine.type("agent sent --report cb7dd476", having=first)
    said.append(("agent sent --report cb7dd476", one.said))
    said.append(("agent ledger show", machine.type("agent ledger show").said))
    left = {command: shown("first-host.md", command) for command, _ in said}
    for command, words in said:
        lines = [line for line in left[command].pop(0) if "host_cpu: user" not in line]
        assert missing(lines, words) == [], f"{command}\n{words}"  # whichever cells are the largest
    assert not any(left.values())


def test_agent_s_views_are_shown(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("agent doctor")
    machine.type("agent doctor --json")
    machine.type("agent doctor --config /srv/trial/hosts/host-1/agent.toml")
    for command in ("doctor", "top", "ledger show"):
        machine.run(["pointillist", "agent", *command.split(), "--config", AGENT_TOML, "--json"])
    machine.type("agent top --gpu-calls", more="--once")
    machine.type("agent ledger show --config /srv/trial/hosts/host-1/agent.toml")
    for said in (
        machine.type("agent attach").said,
        machine.type("agent attach --graphs whole").said,
        machine.type("agent attach slurm").said,
    ):
        assert "CUDA_INJECTION64_PATH" in said
    running = machine.begin("agent web")
    running.until("http://127.0.0.1:8766/")
    assert running.end(signal.SIGINT).code in {0, 130}


def test_an_agent_s_history_is_read(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("agent history --since 10m")
    assert "ebpf/" in machine.type("agent history --since 10m --kind metric").said
    machine.type("agent history --since 1h --kind kernel --name *flash* --json")
    machine.type("agent history --since 10m --kind kernel --json")
    machine.type("agent history --since 2h --until 1h --json")
    machine.type("agent history --kind activity --json")
    machine.type("agent history --since 1h --kind activity --parquet kernels.parquet")


def test_an_owner_checks_a_report(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("agent sent --config /etc/pointillist/agent.toml")
    sql = "SELECT epoch_us(window_start) // 1000000 AS s FROM windows WHERE n_hosts = 20"
    rows = machine.answer("query", sql, "--store", str(fleet.folders.releases))
    whole = {row["s"] for row in rows}
    reports = machine.answer("agent", "sent")["reports"]
    report = next(report for report in reports if report["window_start"] in whole)
    name, released = report["report_id"], str(report["window_start"])
    machine.type("agent sent --report 79ef0bdc", having={"79ef0bdc": name[:8]})

    fleet.services["leader"].end()  # or one of the two would be exported with a window more
    at = {f"{party}.sqlite": fleet.state(party) for party in ("leader", "helper")}
    machine.type("leader transcript export leader.sqlite leader.json", having=at)
    told = f"--report {name} --json"
    machine.type("leader transcript export helper.sqlite helper.json", more=told, having=at)
    leader = {"STATE": fleet.state("leader"), "FILE": "told.json", "ID": name}
    machine.type("leader transcript export STATE FILE --report ID", having=leader)
    at |= {"2026-05-01T10:00Z": released, "0123...": name}
    machine.type("leader transcript export leader.sqlite leader.json --report 0123...", having=at)
    machine.type(
        "leader transcript verify leader.json helper.json --leader LEADER --helper HELPER "
        "--report 0123...", more="--json", having={"0123...": name, **fleet.keys},
    )  # fmt: skip
    words = ["leader", "transcript", "export", fleet.state("leader"), "leader.json"]
    machine.run(["pointillist", *words, "--window", released])
    machine.type(
        "leader transcript export helper.sqlite helper.json --window 2026-05-01T10:00Z", having=at
    )
    fleet.services["leader"] = machine.start(fleet.services["leader"].words)

    checked = machine.type(
        "agent sent --check ID --leader-transcript leader.json --helper-transcript helper.json",
        having={"ID": name},
    )
    assert "The report is in release" in checked.said
    both = "--leader-transcript leader.json --helper-transcript helper.json"
    machine.type("agent sent --report ID", having={"ID": name})
    served = machine.begin(
        "web --leader-transcript leader.json --helper-transcript helper.json --leader KEY "
        "--helper KEY",
        f"web --store {fleet.folders.releases} {both} --leader {fleet.leader} "
        f"--helper {fleet.helper}",
    )
    served.until("http")
    served.end()
    fleet.services["leader"].until("started")


def test_an_agent_runs_and_is_recovered(machine: PageMachine, fleet: PageFleet) -> None:
    fleet.services["host"].end()
    machine.type(
        "agent ledger recover --config $F/agent.toml --yes",
        having={"$F/agent.toml": "/etc/pointillist/agent.toml"},
    )
    shutil.chown(machine.path(HERE), AGENT_USER)  # the ledger's fence lies beside the key
    machine.type("keys generate host", more="--folder .")
    machine.path(f"{HERE}/host/identity.key").rename(machine.path(f"{HERE}/host.key"))
    for running in (
        machine.begin("agent run --config /etc/pointillist/agent.toml"),
        machine.begin(
            "agent run --key-file host.key --state-dir state --log-folder log --leader HEX "
            "--helper HEX --gpu H100 --set bounds.n_min_at_least=1000",
            f"agent run --key-file host.key --state-dir state --log-folder {fleet.folders.log} "
            f"--leader {fleet.leader} --helper {fleet.helper} --gpu H100 "
            "--set bounds.n_min_at_least=1000",
        ),
    ):
        running.until('counters"')  # or "no counters", where another agent has the port
        assert running.end().code == 0
    fleet.services["host"] = machine.start(fleet.services["host"].words)
    fleet.services["host"].until('"counters"')


def test_a_host_s_journal_is_told(machine: PageMachine, fleet: PageFleet) -> None:
    journal = machine.path("/var/lib/pointillist/agent/state/diagnoses.jsonl")
    shutil.copy(next((REPOSITORY / "bench/journals").glob("cpu_*.jsonl")), journal)
    journal.chmod(0o600)
    shutil.chown(journal, AGENT_USER)
    assert "cpu_contention" in machine.type("agent diagnose").said
    running = machine.begin("agent diagnose --live")
    running.until("whose journal is followed")
    assert running.end(signal.SIGINT).code in {0, 130}


def test_parties_say_how_they_are(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("leader status --config /etc/pointillist/leader.toml")
    machine.type("leader status --config leader.toml --json")
    machine.type("helper status --config /etc/pointillist/helper.toml")
    machine.type("helper status --config helper.toml --json")
    machine.type("leader doctor --config /srv/trial/leader/leader.toml", more="--json")
    machine.type("helper doctor --config /srv/trial/helper/helper.toml")
    machine.type("helper doctor --config helper.toml --json")
    machine.type("task show /srv/trial/leader/trial.task")
    machine.type("leader roster show /srv/trial/leader/1.roster", more="--json")
    machine.type("keys show --folder /srv/trial/helper/keys")
    machine.type(
        "query SELECT window_start, outcome, reason, n_hosts FROM windows ORDER BY ALL --store "
        "/srv/trial/leader/releases/parquet"
    )


def test_a_task_is_signed_and_a_roster_changed(machine: PageMachine, fleet: PageFleet) -> None:
    keys = fleet.keys
    machine.type(
        "task build --series minute --leader LEADER --helper HELPER --out minute.task", having=keys
    )
    machine.type("task sign minute.task --key KEY", having=keys)
    machine.type("helper countersign minute.task --key HELPER_KEY --leader LEADER", having=keys)
    machine.type("task verify minute.task --leader LEADER --helper HELPER", having=keys)
    plan = str(fleet.folders.plan)
    machine.type("plan --plan PLAN", having={"PLAN": plan})

    roster, key = str(fleet.folders.roster), str(fleet.folders.leader_key)
    first, *_ = machine.answer("leader", "roster", "hosts", roster)
    machine.type(
        "leader roster remove HOST ... --previous fleet.roster --key KEY --out next.roster",
        f"leader roster remove {first['host']} --previous {roster} --key {key} --out next.roster",
    )
    machine.type("helper countersign next.roster --config helper.toml --task minute.task")
    machine.path(f"{HERE}/joins").mkdir()
    machine.type("helper countersign joins/ --config helper.toml")
    fetch = f"--plans {fleet.folders.plans} --requests joins --log leader.toml --key {key}"
    machine.type("leader roster fetch", more=fetch)
    machine.path(f"{HERE}/requests").mkdir()
    for request in machine.path(str(fleet.folders.joins)).glob("*.join"):
        shutil.copy(request, machine.path(f"{HERE}/requests"))
    there = {"/srv/fleet/simulated/joins": "requests", "...": key}
    machine.type(
        "leader roster build --plans plans.toml --requests /srv/fleet/simulated/joins --key ... "
        "--now --out fleet.roster", having=there,
    )  # fmt: skip


def test_keys_and_tokens_are_made(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("fleet init /srv/trial", more="--hosts 20", having={"/srv/trial": "/srv/all"})
    machine.type("keys generate leader --folder /var/lib/pointillist/leader/keys")
    machine.type("operator keygen acme.key --name acme")
    machine.path(f"{HERE}/names.txt").write_text("node-1\nnode-2\n")
    machine.type(
        "operator vouch --hosts names.txt --folder tokens --key acme.key --name acme "
        "--plan fleet --leader LEADER", having=fleet.keys,
    )  # fmt: skip
    assert machine.path(f"{HERE}/tokens/node-2.token").exists()
    machine.type("keys generate host", more="--folder k1")


def test_a_witness_keeps_what_a_helper_answered(machine: PageMachine, fleet: PageFleet) -> None:
    machine.type("witness schema")
    machine.type("leader schema")
    machine.type("keys generate witness --folder /var/lib/pointillist/witness/keys")
    path = machine.path("/etc/pointillist/witness.toml")
    path.write_text(WITNESS_TOML.format(helper=fleet.helper))
    running = machine.begin("witness run --config /etc/pointillist/witness.toml")
    running.until("serving")
    machine.type("witness status --config /etc/pointillist/witness.toml", more="--json")
    assert running.end().code == 0


def test_companies_take_each_other_s_cards(machine: PageMachine) -> None:
    told = {
        name: re.findall(r"\b(?:[0-9a-f]{4}:){7}[0-9a-f]{4}\b", made.said)[0]
        for name, made in {
            "VENDOR": machine.type(
                "fleet init /srv/vendor --party leader --name vendor --address "
                "vendor.example.org --broker kafka.example.org:9092 --broker-plain --hosts 40"
            ),
            "NOTARY": machine.type(
                "fleet init /srv/notary --party helper --name notary --address "
                "notary.example.org:7443"
            ),
            "ACME": machine.type("fleet init /srv/acme --party operator --name acme"),
        }.items()
    }
    machine.type("fleet pair /srv/vendor /srv/notary/card.toml --fingerprint $NOTARY", having=told)
    machine.type("fleet pair /srv/vendor /srv/acme/card.toml --fingerprint $ACME", having=told)
    machine.type("fleet pair /srv/notary /srv/vendor/card.toml --fingerprint $VENDOR", having=told)
    machine.type("fleet pair /srv/acme /srv/vendor/card.toml --fingerprint $VENDOR", having=told)
    machine.type("fleet next FOLDER", having={"FOLDER": "/srv/vendor"})
    helper, leader = (
        machine.answer("keys", "show", f"/srv/{home}/keys/{role}/identity.key")[0]["public_key"]
        for home, role in (("notary/helper", "helper"), ("vendor/leader", "leader"))
    )
    machine.type(
        "task build --plan /srv/vendor/leader/plan.toml --series minute --leader $LEADER "
        "--helper $HELPER --start $(date +%s) --out /srv/vendor/leader/minute.task",
        f"task build --plan /srv/vendor/leader/plan.toml --series minute --leader {leader} "
        f"--helper {helper} --start {int(time.time())} --out /srv/vendor/leader/minute.task",
    )
