"""The page of two companies, typed by each on a machine of its own, to a released number."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pointillist.broker.local import LocalBroker, jars
from pointillist.fleet.party_card import read_card
from pointillist.installation import public_fingerprint
from tests.fleet_kit import fleet_folder
from tests.three_hosts_kit import ROOT, NamedHost, three_hosts

LONGEST_S = 900
PAGE = (ROOT / "docs" / "two-companies.md").read_text(encoding="utf-8")
SCENARIO = ROOT / "pointillist" / "fleet" / "trial.toml"
SIMULATED = 39
PLAN = """format = 1
name = "two companies"
hosts = 40

[[task]]
series = "minute"
window_s = 10
lateness_s = 5
retention_s = 21_600
windows = 120
weights = { kernel_mix = 0.5, host_cpu = 0.5 }
"""
BROKER = """
import sys
from pathlib import Path
from pointillist.broker.local import BrokerOptions, ClusterMember, LocalBroker, new_cluster_id
from pointillist.broker.properties import Ports
addresses = f"PLAINTEXT://127.0.0.1:19092,NET://{sys.argv[2]}:9092"
extra = {
    "controller.quorum.voters": "1@127.0.0.1:19093",
    "listeners": addresses + ",CONTROLLER://127.0.0.1:19093",
    "advertised.listeners": addresses,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NET:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
member = ClusterMember(Ports(19092, 19093), new_cluster_id())
LocalBroker(Path(sys.argv[1]), BrokerOptions(extra=extra, member=member)).start()
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Give what the page has each company type: (title, commands), in its order."""
    return re.findall(r'^```bash title="([^"]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)


def test_page_has_each_company_type_its_own_commands() -> None:
    typed = blocks(PAGE)
    assert {title.partition(",")[0] for title, _ in typed} == {"Vendor", "Notary", "Acme"}
    # Nobody makes another's keys, and the Helper alone countersigns.
    for title, script in typed:
        assert ("countersign" in script) == (title == "Notary" and "countersign" in script)
        for party, words in (("Notary", "--party helper"), ("Vendor", "--party leader")):
            assert words not in script or title == party


@contextmanager
def broker_on(host: NamedHost, folder: Path) -> Iterator[None]:
    """Apache Kafka on one of the machines, in reach of the others."""
    jars(print)  # fetched here: the machines reach nothing but each other
    folder.mkdir()
    done = subprocess.run(
        host.words("-c", BROKER, str(folder), host.address),
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        LocalBroker(folder).stop()


class Companies:
    """Whoever reads the page, in a folder in place of the file system's root."""

    def __init__(self, base: Path, vendor: NamedHost, notary: NamedHost, acme: NamedHost) -> None:
        self.base = base
        self.hosts = {"Vendor": vendor, "Notary": notary, "Acme": acme}
        (base / "srv").mkdir()

    def typed(self, script: str) -> str:
        """What is typed here in place of the page's names."""
        vendor, notary = self.hosts["Vendor"].address, self.hosts["Notary"].address
        for page, here in (
            ("/srv/", f"{self.base}/srv/"),
            ("/etc/pointillist", f"{self.base}/etc"),
            ("/var/lib/pointillist", f"{self.base}/var"),
            ("kafka.example.org", vendor),
            ("vendor.example.org", vendor),
            ("notary.example.org", notary),
        ):
            script = script.replace(page, here)
        return script

    def heard(self) -> dict[str, str]:
        """What each read out over the telephone."""
        cards = {name: self.base / "srv" / name.lower() / "card.toml" for name in self.hosts}
        return {
            name.upper(): public_fingerprint(card.read_bytes())
            for name, card in cards.items()
            if card.exists()
        }

    def follow(self, title: str, script: str) -> None:
        """Do what one block of the page says."""
        host = self.hosts[title.partition(",")[0]]
        if title.endswith(", as a service"):
            (line,) = self.typed(script).splitlines()
            host.start(*line.split()[1:])
        else:
            host.type(self.typed(script), self.heard())
        if "--party leader" in script:
            self.shorten_plan()
        if "kafka topics" in script:
            self.pin_the_others()
        agent = self.base / "srv/acme/operator/agent.toml"
        if agent.exists():
            agent.write_text(self.typed(agent.read_text(encoding="utf-8")), encoding="utf-8")

    def shorten_plan(self) -> None:
        """Ask for windows of seconds, which end within a test."""
        home = self.base / "srv/vendor/leader"
        (home / "plan.toml").write_text(PLAN, encoding="utf-8")
        weights = "{ minute = { cohort = 0, weight_millionths = 1_000_000 } }"
        plans = (home / "plans.toml").read_text(encoding="utf-8")
        plans = re.sub(r"^series = .*$", f"series = {weights}", plans, flags=re.MULTILINE)
        (home / "plans.toml").write_text(plans, encoding="utf-8")

    def pin_the_others(self) -> None:
        """Birch, Cedar and their hosts: simulated, enrolled as Acme's own are."""
        home = self.base / "srv"
        keys = [read_card(home / name / "card.toml").public_key for name in ("vendor", "notary")]
        (self.base / "export.toml").write_text(
            f'[fleet]\nidentities = "{self.base}/simulated"\n[transport.kafka]\n'
            f'bootstrap = ["{self.hosts["Vendor"].address}:9092"]\n[trust]\n'
            f'leaders = ["{keys[0].hex()}"]\nhelpers = ["{keys[1].hex()}"]\n'
            "[bounds]\nn_min_at_least = 16\n"
        )
        self.hosts["Acme"].type(f"pointillist {self.simulation} --enrol", {})
        pins = (self.base / "simulated/operators.toml").read_text(encoding="utf-8")
        for file in ("vendor/leader/plans.toml", "notary/helper/helper.toml"):
            with (home / file).open("a", encoding="utf-8") as out:
                out.write("\n" + pins)
        for request in (self.base / "simulated/joins").iterdir():
            shutil.copy(request, home / "vendor/leader/joins")

    @property
    def simulation(self) -> str:
        return (
            f"simulate {SCENARIO} --export kafka --config {self.base}/export.toml "
            f"--hosts {SIMULATED}"
        )

    def wait_for_a_release(self) -> None:
        store = self.base / "srv/vendor/leader/releases/parquet"
        self.hosts["Acme"].start(*f"{self.simulation} --hours 0.3".split())
        sql = "SELECT n_hosts FROM windows WHERE outcome = 'released'"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            for host in self.hosts.values():
                host.check()
            if any(store.rglob("*.parquet")):
                found = self.hosts["Vendor"].ask("query", sql, "--store", str(store))
                if found:
                    assert found[0]["n_hosts"] >= 32
                    return
            time.sleep(2)
        raise AssertionError("expected a released window, waited in vain")


@pytest.mark.release
@pytest.mark.root
@pytest.mark.kafka
@pytest.mark.timeout(LONGEST_S)
def test_three_companies_follow_the_page_to_a_released_number() -> None:
    with fleet_folder() as base:
        (base / "logs").mkdir()
        with three_hosts(base / "logs") as hosts, broker_on(hosts[0], base / "kafka"):
            companies = Companies(base, *hosts)
            released = False
            for title, script in blocks(PAGE):
                if title.endswith(", once a window was released") and not released:
                    companies.wait_for_a_release()
                    released = True
                companies.follow(title, script)
            assert released
            said = hosts[0].ask(
                "leader", "doctor", "--config", f"{base}/srv/vendor/leader/leader.toml"
            )
            verdicts = {one["name"]: one["verdict"] for one in said["findings"]}
            for name in ("peer", "certificate", "rights", "retention", "cohorts"):
                assert verdicts[name] == "ok", said
