"""One host for the agent's benchmark: key, enrolment, the shipped plan's tasks, a log on disk.

Everything is real but the fleet: the roster names this host alone, and both aggregators' keys are
thrown away afterwards. The agent is `pointillist agent run`, in a process of its own; started as
root it gives root up as on any host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aggregator.enrolment.tasks import build_task, sign_roster, sign_task, task_plan, windows_from
from bench.record import ROOT
from pointillist.plan_file import default_plan
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from simulator.simulated_hosts import memberships, roster_of
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import HostKey, host_binding, machine_id, write_host_key
from transport.interface import create_topics
from transport.process.privileges import AGENT_USER, ensure_users, reachable
from wire.catalogue import Catalogue
from wire.envelope import Kind, wrap
from wire.epoch import KeyAnnouncement
from wire.task import Task
from wire.topics import KEYS, ROSTERS, TASKS, announcement_key, roster_key, task_key

DAY_S: Final = 86_400
GPUS: Final = 8
SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
_STOP_S: Final = 20
_READY: Final = "task accepted"


@dataclass(frozen=True, slots=True)
class AgentHost:
    """A folder with everything that an agent needs.

    tasks   how many it accepts
    """

    folder: Path
    config: Path
    tasks: int

    @property
    def log_file(self) -> Path:
        return self.folder / "agent.log"

    @property
    def history_file(self) -> Path:
        return self.folder / "state" / "history.sqlite"


def make_host(folder: Path, *, gpus: bool = True, measuring: str | None = None) -> AgentHost:
    """Write key, roster, tasks and configuration into a folder that is the agent's own.

    measuring   the tables of what is measured; None: host, eBPF, and GPUs as `gpus` says
    """
    leader, helper = SigningKey.generate(), SigningKey.generate()
    for name in ("keys", "state"):
        (folder / name).mkdir(parents=True, mode=0o700)
    key = SigningKey.generate()
    write_host_key(folder / "keys" / "host.key", HostKey(key, host_binding(machine_id(), [])))
    tasks = _tasks(leader.public_bytes, helper.public_bytes)
    with EmbeddedLog(folder / "log") as log:
        create_topics(log)
        producer = log.producer()
        for one in _announcements(leader, helper):
            place = announcement_key(one.party_pk, one.key_id)
            producer.send(KEYS, place, wrap(Kind.KEY_ANNOUNCEMENT, one.encode()))
        producer.send(ROSTERS, roster_key(), wrap(Kind.ROSTER, _roster(key, tasks, leader, helper)))
        for task in tasks:
            signed = sign_task(task, leader, helper)[1]
            producer.send(TASKS, task_key(task.series), wrap(Kind.TASK, signed))
        producer.close()
    host = AgentHost(folder, folder / "agent.toml", len(tasks))
    sources = f"[sources]\nhost = true\ngpus = {str(gpus).lower()}\nebpf = true\n"
    measuring = measuring or f"{sources}[metrics]\nport = 0\n"
    host.config.write_text(_toml(folder, leader, helper) + measuring, encoding="utf-8")
    if os.geteuid() == 0:
        ensure_users()
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, AGENT_USER, AGENT_USER)
    return host


def _tasks(leader_pk: bytes, helper_pk: bytes) -> list[Task]:
    plan, catalogue = default_plan(), Catalogue.load()
    start = (int(time.time()) // DAY_S - 1) * DAY_S
    parties = leader_pk, helper_pk
    return [
        build_task(catalogue, task_plan(plan, one, windows_from(one, start, weeks=52), parties))
        for one in plan.tasks
    ]


def _announcements(leader: SigningKey, helper: SigningKey) -> Iterator[KeyAnnouncement]:
    now = int(time.time())
    for party in (leader, helper):
        box = HpkeKeyPair.generate().public_bytes
        bare = KeyAnnouncement(party.public_bytes, box, now - 3600, now + 2 * DAY_S)
        yield replace(bare, signature=party.sign(bare.unsigned()))


def _roster(key: SigningKey, tasks: list[Task], leader: SigningKey, helper: SigningKey) -> bytes:
    h100 = Catalogue.load().classes("gpu_model").index("H100")
    plan = memberships(sorted(tasks, key=lambda one: one.series))
    # With hosts that there are not, up to what the tasks ask for: below it nothing is sent.
    others = (secrets.token_bytes(32) for _ in range(1, max(one.n_min for one in tasks)))
    hosts = [(pk, at % 10, ((h100, GPUS),)) for at, pk in enumerate((key.public_bytes, *others))]
    return sign_roster(roster_of(hosts, plan), leader, helper)


def _toml(folder: Path, leader: SigningKey, helper: SigningKey) -> str:
    user = AGENT_USER if os.geteuid() == 0 else Path.home().name
    return f"""
[host]
key_file = "{folder}/keys/host.key"
state_dir = "{folder}/state"
gpus = {["H100"] * GPUS}
user = "{user}"
[transport]
folder = "{folder}/log"
[trust]
leaders = ["{leader.public_bytes.hex()}"]
helpers = ["{helper.public_bytes.hex()}"]
"""


def interpreter() -> Path:
    """Give a Python that the agent's user can reach, as an installed agent has one."""
    own = Path(sys.executable)
    if reachable(Path(os.__file__).resolve().parent, -1, -1):
        return own
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = Path(f"{SYSTEM_PYTHON.parent}/python{version}")
    return other if other.exists() else own


@contextmanager
def running(host: AgentHost, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run the agent until the block ends; give its pid once it has accepted every task.

    Raises      AssertionError with the agent's last lines when it does not get there
    """
    packages = [str(ROOT), *site.getsitepackages()]
    extra = {"PYTHONPATH": os.pathsep.join(packages), **(environment or {})}
    command = [str(interpreter()), "-m", "pointillist", "agent", "run", "-c", str(host.config)]
    with host.log_file.open("w") as log:
        child = subprocess.Popen(
            command, stderr=log, stdout=log, cwd="/", env={**os.environ, **extra}
        )
    try:
        deadline = time.monotonic() + 60
        while (text := host.log_file.read_text()).count(_READY) < host.tasks:
            if child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the agent did not start: {text[-2000:]}")
            time.sleep(0.2)
        yield child.pid
        assert child.poll() is None, f"the agent ended: {host.log_file.read_text()[-2000:]}"
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
