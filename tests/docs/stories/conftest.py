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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pointillist.fleet.trial import TrialFolders, TrialSettings
from pointillist.fleet.trial_run import TrialStep, trial_steps
from tests.closed_kit import may_mount
from tests.page_machine import PageMachine, Running, page_machine
from tests.page_runs import typed_in
from tests.wait_kit import until

TRIAL = "/srv/trial"
LEAST = TrialSettings(hosts=20, windows=720, window_s=5, by_hand=True)
"""A trial that is smaller than the pages', and lasts as long as any test."""
HERE = "/srv/here"
"""Where commands are typed; what they name is there."""
AGENT_TOML = "/etc/pointillist/agent.toml"
JOIN = "agent join --token-file /etc/pointillist/token"


@dataclass(frozen=True)
class PageFleet:
    """A trial whose host was enrolled by docs/first-host.md; files are the machine's.

    host_said   what commands of that page said, in its order
    """

    folders: TrialFolders
    leader: str
    helper: str
    services: dict[str, Running]
    host_said: list[tuple[str, str]]

    def released_of_all(self, machine: PageMachine) -> bool:
        """Whether the newest window was released of every host, the real one among them."""
        said = json.loads(machine.path(f"{TRIAL}/leader/state/status.json").read_bytes())
        newest = said.get("last_windows", {}).get("trial", {})
        return (newest.get("outcome"), newest.get("hosts")) == ("released", LEAST.hosts)

    def state(self, party: str) -> str:
        return f"{TRIAL}/{party}/state/{party}.sqlite"

    @property
    def keys(self) -> dict[str, str]:
        return {
            "LEADER": self.leader,
            "HELPER": self.helper,
            "HELPER_KEY": str(self.folders.helper_key),
            "KEY": str(self.folders.leader_key),
        }


@pytest.fixture(scope="module")
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
    machine.type("fleet init /srv/trial --host-by-hand --windows 240", more=least)
    folders = TrialFolders(Path(TRIAL))
    leader, helper = (
        machine.answer("keys", "show", str(key))[0]["public_key"]
        for key in (folders.leader_key, folders.helper_key)
    )
    made = PageFleet(folders, leader, helper, {}, [])
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
    elif step.requests:
        _ask_to_join(machine, fleet)
    elif step.service is not None:
        _see_enrolment(machine, fleet)
        fleet.services[step.service] = machine.start(step.words)
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


def _ask_to_join(machine: PageMachine, fleet: PageFleet) -> None:
    """Type what the page of a first host has up to the host's request."""
    given, said = fleet.folders.host(LEAST.host), fleet.host_said
    machine.run(["install", "-D", "-m", "644", f"{given}/agent.toml", AGENT_TOML])
    machine.run(["install", "-m", "600", f"{given}/token", "/etc/pointillist/token"])
    said.append(("agent doctor", machine.type("agent doctor", code=1).said))
    said.append(("keys generate host", machine.type("keys generate host").said))
    said.append(("agent doctor", machine.type("agent doctor").said))
    running = machine.begin("agent run --config /etc/pointillist/agent.toml")
    fleet.services["host"] = running
    said.append((f"agent run --config {AGENT_TOML}", running.until('"no_roster"')))
    said.append(("agent top --once", machine.type("agent top --once").said))
    said.append(("agent sent", machine.type("agent sent").said))
    joined = machine.type(
        "agent join --config /etc/pointillist/agent.toml --token-file "
        "/srv/acme/operator/tokens/gpu-1.token --wait-s 0",
        f"agent join --config {AGENT_TOML} --token-file /etc/pointillist/token --wait-s 0",
    )
    said.append((JOIN, joined.said))


def _see_enrolment(machine: PageMachine, fleet: PageFleet) -> None:
    joined = machine.type("agent join --token-file /etc/pointillist/token")
    fleet.host_said.append((JOIN, joined.said))
