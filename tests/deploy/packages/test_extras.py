"""What each extra installs, and that its programs need nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from pointillist.installation import PACKAGES, extra_with
from tests.fleet_kit import fleet_folder

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# Imports modules and all below them where the modules that come first are absent.
ALONE = """
import importlib, pkgutil, sys
absent, asked = set(sys.argv[1].split(",")), sys.argv[2:]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in asked:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


def installed_by(lock: str) -> set[str]:
    text = (REPOSITORY / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9.-]+)(?:\[[^\]]*\])?==", text, re.MULTILINE))


@cache
def owners() -> dict[str, set[str]]:
    """Give the packages that each top-level module of this environment comes from."""
    return {
        module: {re.sub(r"[-_.]+", "-", name).lower() for name in names}
        for module, names in metadata.packages_distributions().items()
    }


def import_alone(lock: str, *modules: str) -> subprocess.CompletedProcess[str]:
    """Import modules and all below them where only what a lock file installs is there."""
    installed = {*installed_by(lock), "pointillist"}
    for name in installed & {owner for names in owners().values() for owner in names}:
        installed |= names(  # of another version than the locked one, too
            [one for one in metadata.requires(name) or () if "extra ==" not in one]
        )
    absent = ",".join(module for module, names in owners().items() if not names & installed)
    return subprocess.run(
        [sys.executable, "-c", ALONE, absent, *modules],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


AGENT = (
    "transport.factory", "transport.kafka.kafka_agent", "kernels", "collectors", "diagnosis.detect",
    "edge_agent", "pointillist.cli.agent", "pointillist.cli.agent_diagnose",
    "pointillist.cli.agent_diagnose", "pointillist.cli.agent_top",
)  # fmt: skip
PARTIES = (
    "aggregator.leader_process", "aggregator.helper_process", "aggregator.releases.releases",
    "aggregator.witness", "web.web_server", "transport.factory", "transport.kafka.kafka_aggregator",
    "pointillist.cli.leader_command",
)  # fmt: skip


@pytest.mark.parametrize(("lock", "modules"), [("agent", AGENT), ("parties", PARTIES)])
def test_program_imports_what_its_own_extra_installs_alone(
    lock: str, modules: tuple[str, ...]
) -> None:
    done = import_alone(lock, *modules)
    assert done.returncode == 0, done.stderr


def test_package_that_an_extra_lacks_cannot_be_imported_beside_it() -> None:
    done = import_alone("agent", "aggregator.releases.store")
    assert "No module named 'duckdb'" in done.stderr


# What each party types, where every package of an extra is absent.
PARTIES_TYPE = """
import sys
absent, folder = set(sys.argv[1].split(",")), sys.argv[2]

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from pathlib import Path
from pointillist.cli.fleet_command import app
from pointillist.installation import public_fingerprint

def fleet(*words):
    app(list(words), standalone_mode=False)

parties = {
    "leader": ("--address", "vendor.example.org", "--broker", "kafka.example.org:9093"),
    "helper": ("--address", "notary.example.org:7443"),
    "operator": (),
}
for party, more in parties.items():
    fleet("init", f"{folder}/{party}", "--party", party, "--name", f"the-{party}", *more)
for party in parties:
    for other in parties:
        if other != party:
            card = Path(folder, other, "card.toml")
            told = public_fingerprint(card.read_bytes())
            fleet("pair", f"{folder}/{party}", str(card), "--fingerprint", told)
    fleet("next", f"{folder}/{party}")
"""


def test_partys_first_commands_need_no_extra() -> None:
    """An operator's machine has an agent at most, a Leader's no simulator."""
    with fleet_folder() as folder:
        done = subprocess.run(
            [sys.executable, "-c", PARTIES_TYPE, ",".join(PACKAGES), str(folder)],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_agent_installs_none_of_what_is_large() -> None:
    assert installed_by("agent").isdisjoint(
        {"opendp", "duckdb", "pandas", "pyarrow", "matplotlib", "grpcio", "confluent-kafka"}
    )


def test_extra_of_the_notebook_brings_what_its_page_names() -> None:
    installed = installed_by("notebook")
    notebook = (REPOSITORY / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
    for command, package in {"jupyter lab": "jupyterlab", "pointillist simulate": "simpy"}.items():
        assert command in notebook
        assert package in installed, command
    assert installed > installed_by("simulator")
    assert "ipykernel" in installed
    assert "ipywidgets" not in installed
    assert "extra `notebook`" in (REPOSITORY / "docs" / "notebook.md").read_text(encoding="utf-8")


def test_every_package_of_an_extra_is_known_to_who_tells_what_to_install() -> None:
    for extra, requirements in EXTRAS.items():
        wanted = names(requirements) - {"pointillist"}
        told = {name for name, extras in PACKAGES.values() if extra in extras}
        assert wanted - told <= ({"pandas"} if extra == "spark" else set()), extra
        assert told <= wanted, extra


@pytest.mark.parametrize(
    ("module", "group", "told"),
    [
        ("capstone.x86", "agent", ("capstone", "agent")),
        ("duckdb", "query", ("duckdb", "aggregator")),
        ("duckdb", "web", ("duckdb", "web")),
        ("duckdb", "demo", ("duckdb", "simulator")),
        ("matplotlib", "agent", ("matplotlib", "training")),
    ],
)
def test_extra_named_is_the_command_groups_own(
    module: str, group: str, told: tuple[str, str]
) -> None:
    assert extra_with(module, group) == told
