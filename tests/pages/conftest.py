"""One machine for all pages, and a trial fleet on it that has released a window."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pointillist.fleet.trial import TrialSettings
from pointillist.fleet.trial_folders import TrialFolders
from pointillist.fleet.trial_steps import TrialStep, trial_steps
from tests.closed_kit import may_mount
from tests.page_machine import PageMachine, Running, page_machine
from tests.page_runs import typed_in

TRIAL = "/srv/trial"
LEAST = TrialSettings(hosts=20, windows=720, window_s=5)
"""A trial that is smaller than the pages', and lasts as long as any test."""
HERE = "/srv/here"
"""Where commands are typed; what they name is there."""
AGENT_TOML = "/etc/pointillist/agent.toml"


@dataclass(frozen=True)
class PageFleet:
    """The trial of docs/first-fleet.md, its services running; files are the machine's."""

    folders: TrialFolders
    leader: str
    helper: str
    services: dict[str, Running]

    def released_of_all(self, machine: PageMachine) -> bool:
        """Whether the newest window was released of every host, the real one among them."""
        said = json.loads(machine.path(f"{TRIAL}/leader/state/status.json").read_bytes())
        newest = said.get("last_windows", {}).get("trial", {})
        return (newest.get("outcome"), newest.get("hosts")) == ("released", LEAST.hosts)

    def state(self, party: str) -> str:
        return f"{TRIAL}/{party}/state/{party}.sqlite"

    @property
    def keys(self) -> dict[str, str]:
        """What pages call the keys."""
        return {
            "LEADER": self.leader,
            "HELPER": self.helper,
            "HELPER_KEY": str(self.folders.helper_key),
            "KEY": str(self.folders.leader_key),
        }


@pytest.fixture(scope="session")
def machine() -> Iterator[PageMachine]:
    if not may_mount():
        pytest.skip("needs root that may mount")
    with tempfile.TemporaryDirectory(prefix="plst-") as name:
        Path(name).chmod(0o755)
        with page_machine(Path(name)) as made:
            yield made


@pytest.fixture(autouse=True)
def all_is_typed(request: pytest.FixtureRequest, machine: PageMachine) -> Iterator[None]:
    """Fail a test that did not type a command which stands in it, and so counts as run."""
    machine.typed.clear()
    yield
    source = textwrap.dedent(inspect.getsource(request.function))
    assert typed_in(ast.parse(source)) <= machine.typed


@pytest.fixture(scope="module")
def fleet(machine: PageMachine) -> Iterator[PageFleet]:
    least = f"--hosts {LEAST.hosts} --windows {LEAST.windows} --window-s {LEAST.window_s}"
    machine.type("fleet init /srv/trial", more=least)
    folders = TrialFolders(Path(TRIAL))
    leader, helper = (
        machine.answer("keys", "show", str(key))[0]["public_key"]
        for key in (folders.leader_key, folders.helper_key)
    )
    made = PageFleet(folders, leader, helper, {})
    for step in trial_steps(folders, LEAST, (leader, helper), int(time.time())):
        _take(machine, made, step)
    for folder in (HERE, "/etc/pointillist"):
        machine.path(folder).mkdir(exist_ok=True)
    for role in ("leader", "helper", "hosts/host-1"):
        for file in machine.path(f"{TRIAL}/{role}").glob("*.toml"):
            for there in (HERE, "/etc/pointillist"):
                shutil.copy(file, machine.path(there))
    machine.folder = HERE
    until(lambda: made.released_of_all(machine))
    yield made
    for service in made.services.values():
        service.end()


def _take(machine: PageMachine, fleet: PageFleet, step: TrialStep) -> None:
    """Take a step of `fleet up`, which is a command of a page with the trial's own files."""
    form = shlex.join(step.words[1:])
    if step.words[0] == "cp":
        machine.run(["sh", "-c", " ".join(step.words)])
    elif step.service == "helper":
        fleet.services["helper"] = machine.begin(
            "helper run --config /etc/pointillist/helper.toml", form
        )
        until(machine.path(str(fleet.folders.socket)).exists)
    elif step.service == "leader":
        fleet.services["leader"] = machine.begin(
            "leader run --config /etc/pointillist/leader.toml", form
        )
        until(machine.path(str(fleet.folders.leader / "state/status.json")).exists)
    elif step.service is not None:
        fleet.services[step.service] = machine.start(step.words)
    elif "join" in step.words:
        joined = machine.type(
            "agent join --config /etc/pointillist/agent.toml --token-file "
            "/srv/acme/operator/tokens/gpu-1.token --wait-s 0",
            form,
        )
        assert step.expects in joined.said
    elif "build" in step.words and "roster" in step.words:
        machine.type(
            "leader roster build --plans /srv/vendor/leader/plans.toml --requests "
            "/srv/vendor/leader/joins --log /srv/vendor/leader/leader.toml --key "
            "/srv/vendor/leader/keys/leader/identity.key --now --out /srv/vendor/leader/1.roster",
            form,
        )
    elif "--first" in step.words:
        machine.type(
            "helper countersign /srv/notary/1.roster --first --config "
            "/srv/notary/helper/helper.toml",
            form,
        )
    else:
        machine.run(step.words)


def until(there: Callable[[], bool], patience_s: float = 300) -> None:
    """Wait for what comes; the bound ends a hang alone."""
    deadline = time.monotonic() + patience_s
    while not there():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
