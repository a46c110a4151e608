"""A demo's fleet: folders, identities, roster, signed tasks, configuration, processes.

What each process owns lies in a folder of its own: nobody reads another's keys, even in a demo.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final, Self

import numpy as np

from aggregator.enrolment.tasks import sign_task
from edge_agent.membership import hardware_names, join_request
from edge_agent.protocol.epochs import Host
from privacy.signing import SigningKey
from simulator.engine.blocks import Span
from simulator.fleet.fleet_model import SteadyFleet
from simulator.fleet.hosts import HostInventory
from simulator.simulated_hosts import host_of
from simulator.slices import SliceConfig, parts_of
from transport.factory import EmbeddedSettings, Side, open_transport
from transport.files.keyfiles import (
    HostKey,
    host_binding,
    machine_id,
    write_host_key,
    write_signing_key,
)
from transport.files.private_files import give
from transport.process.privileges import (
    AGENT_USER,
    HELPER_USER,
    LEADER_USER,
    LOG_GROUP,
    ensure_users,
)
from wire.catalogue import Catalogue
from wire.join import JoinRequest
from wire.task import Task

from .demo_plan import ONE_WINDOW_SERIES, WINDOW_S, DemoEnrolment, DemoPlan, lateness_s
from .processes import Family, RoleProcess

SCENARIO: Final = Path(__file__).with_name("demo.toml")
START_S: Final = 60.0
LEAD_S: Final = 4
"""Between signing the tasks and the first window, with the lateness of a window on top: hosts check
tasks, open epochs, seal keys. On a machine with load 8 this host's agent checked for 5.5 s."""


class RunFolders:
    """The folders of one run, under one throw-away base.

    several_users   true for root: each role then runs as a user of its own
    log_group       that may use the embedded log; None where all are one user
    """

    def __init__(self, base: Path, *, several_users: bool) -> None:
        self.base, self.several_users = base, several_users
        self.leader, self.helper, self.agents = base / "leader", base / "helper", base / "agents"
        self.releases, self.truth = base / "releases", base / "truth"
        self.signed, self.logs = base / "signed", base / "logs"
        self.log, self.kafka = base / "log", base / "kafka"
        self.socket = base / "socket" / "helper.sock"
        self.log_group = LOG_GROUP if several_users else None

    @classmethod
    def make(cls, *, embedded: bool = True) -> Self:
        """Create the base and every role's folders.

        embedded    whether the log is a file of this run; else a broker has it
        Raises      OSError, PrivilegeError, TransportUnavailable
        """
        several = ensure_users()
        folders = cls(Path(tempfile.mkdtemp(prefix="pointillist-demo-")), several_users=several)
        folders.base.chmod(0o711)
        for folder in (folders.leader, folders.helper, folders.agents):
            folder.mkdir(mode=0o700)
        for folder in (folders.releases, folders.truth, folders.signed, folders.logs):
            folder.mkdir()
            folder.chmod(0o755)  # whatever this process's umask would close
        if embedded:
            open_transport(EmbeddedSettings(folders.log, folders.log_group), Side.AGENT).close()
        return folders

    def hand_over(self) -> None:
        """Give each role its own folders; call it once everything in them is written."""
        if not self.several_users:
            return
        owners = {
            LEADER_USER: (self.leader, self.releases),
            HELPER_USER: (self.helper,),
            AGENT_USER: (self.agents, self.truth),
        }
        for user, folders in owners.items():
            for folder in folders:
                for path in (folder, *folder.rglob("*")):
                    give(path, user, user)

    def remove(self) -> None:
        """Delete everything, keys first of all."""
        shutil.rmtree(self.base, ignore_errors=True)


class DemoFleet:
    def __init__(self, plan: DemoPlan, folders: RunFolders, family: Family) -> None:
        self.plan = plan
        self.folders = folders
        self._family = family
        self._began_s = 0.0
        self._leader_key, self._helper_key = SigningKey.generate(), SigningKey.generate()
        self.leader_pk = self._leader_key.public_bytes
        self.helper_pk = self._helper_key.public_bytes
        self.catalogue = Catalogue.load()
        self.tasks: list[Task] = []
        self._enrolment = DemoEnrolment(self._leader_key, self._helper_key)
        self._seed = secrets.randbits(63) if plan.seed is None else plan.seed

    def start(self) -> None:
        """Start processes, enrol hosts, sign tasks. Raises ChildFailed, KeyFileRefused."""
        self._began_s = time.monotonic()
        live = self._write_live() if self.plan.live else None
        self._write_parties()
        slices = self._write_slices()
        self.folders.hand_over()
        for role in ("helper", "leader"):
            self._family.start(role, "pointillist", role, "run", "--config", self.toml(role))
        children = [
            self._family.start(config.name, "simulator.slices", str(self._told(config)))
            for config in slices
        ]
        if live is not None:
            words = ("pointillist", "agent", "run", "--config", self.toml("live"))
            self._family.start("live", *words)
        inventory = self._inventory(slices[0])
        self._enrol(children, None if live is None else self._live_request(live, inventory))

    def toml(self, role: str) -> str:
        return str(self.folders.base / f"{role}.toml")

    def _transport(self) -> str:
        if self.plan.kafka is not None:
            return f"[transport.kafka]\nbootstrap = [{json.dumps(self.plan.kafka)}]"
        group = self.folders.log_group
        shared = f'\ngroup = "{group}"' if group else ""
        return f"[transport]\nfolder = {json.dumps(str(self.folders.log))}{shared}"

    def _write_parties(self) -> None:
        folders = self.folders
        for folder, key in ((folders.leader, self._leader_key), (folders.helper, self._helper_key)):
            for name in ("keys", "state"):
                (folder / name).mkdir(mode=0o700)
            write_signing_key(folder / "keys" / "identity.key", key)
        socket = json.dumps(str(folders.socket))
        leader = f"""
[leader]
key_dir = {json.dumps(str(folders.leader / "keys"))}
state_dir = {json.dumps(str(folders.leader / "state"))}
signed_dir = {json.dumps(str(folders.signed))}
helper_pk = "{self.helper_pk.hex()}"
{self._transport()}
[helper]
socket = {socket}
[store]
database = {json.dumps(str(folders.leader / "state" / "releases.duckdb"))}
releases_dir = {json.dumps(str(folders.releases))}
"""
        helper = f"""
[helper]
key_dir = {json.dumps(str(folders.helper / "keys"))}
state_dir = {json.dumps(str(folders.helper / "state"))}
fence_file = {json.dumps(str(folders.helper / "fence"))}
signed_dir = {json.dumps(str(folders.signed))}
leader_pk = "{self.leader_pk.hex()}"
[listen]
socket = {socket}
peer_group = "{LEADER_USER if folders.several_users else ""}"
"""
        write_public(folders.base / "leader.toml", leader.encode())
        write_public(folders.base / "helper.toml", helper.encode())

    def _write_slices(self) -> list[SliceConfig]:
        slices = []
        parts = parts_of(self.plan.hosts, self.plan.processes)
        for part, span in enumerate(parts):
            config = self._slice(part, span)
            Path(config.state_dir).mkdir(mode=0o700)
            path = self._told(config)
            operators = self._inventory(config).operator[span.lo : span.hi].tolist()
            lines = "\n".join(self._enrolment.token(operator).text() for operator in operators)
            Path(config.tokens_file).touch(mode=0o600, exist_ok=False)
            Path(config.tokens_file).write_text(lines, encoding="utf-8")
            config.write(path)
            path.chmod(0o644)
            slices.append(config)
        return slices

    def _slice(self, part: int, span: Span) -> SliceConfig:
        plan, folders = self.plan, self.folders
        name, opendp, hosts = f"hosts-{part}", plan.opendp_hosts, plan.hosts
        return SliceConfig(
            name=name,
            scenario=str(SCENARIO),
            hosts=hosts,
            seed=self._seed,
            dropout=plan.dropout,
            part=part,
            parts=plan.processes,
            repeats=plan.seed is not None,
            opendp_hosts=opendp * span.hi // hosts - opendp * span.lo // hosts,
            state_dir=str(folders.agents / name),
            log_dir=None if plan.kafka else str(folders.log),
            log_group=None if plan.kafka else folders.log_group,
            kafka=plan.kafka,
            truth_file=str(folders.truth / f"truth-{part}.jsonl"),
            leader_pk=self.leader_pk.hex(),
            helper_pk=self.helper_pk.hex(),
            n_min_at_least=plan.n_min,
            tasks=1 + len(ONE_WINDOW_SERIES),
            tokens_file=str(folders.base / f"{name}.tokens"),
        )

    def _told(self, config: SliceConfig) -> Path:
        return self.folders.base / f"{config.name}.json"

    def _inventory(self, config: SliceConfig) -> HostInventory:
        return SteadyFleet(config.played, self.catalogue).inventory

    def _write_live(self) -> Host:
        state = self.folders.agents / "live"
        state.mkdir(mode=0o700)
        key = SigningKey.generate()
        write_host_key(state / "host.key", HostKey(key, host_binding(machine_id(), [])))
        trace = self.plan.trace
        replay = f"[[sources.replay]]\npath = {json.dumps(str(trace))}\n" if trace else ""
        gpus = '["other"]' if trace else "[]"
        toml = f"""
[host]
key_file = {json.dumps(str(state / "host.key"))}
state_dir = {json.dumps(str(state / "state"))}
gpus = {gpus}
{self._transport()}
[trust]
leaders = ["{self.leader_pk.hex()}"]
helpers = ["{self.helper_pk.hex()}"]
trial = true
[bounds]
n_min_at_least = {self.plan.n_min}
[sources]
host = true
gpus = false
faults = false
{replay}[sources.probes]
enabled = false
[metrics]
enabled = false
[diagnosis]
enabled = false
"""
        write_public(self.folders.base / "live.toml", toml.encode())
        return host_of(key)

    def _enrol(self, children: list[RoleProcess], live: JoinRequest | None) -> None:
        raw = [bytes.fromhex(r) for child in children for r in child.message(START_S)["requests"]]
        if live is not None:
            raw.append(live.encode())
        patience_s = lateness_s(time.monotonic() - self._began_s)
        # The first window waits for what is below this, so what takes time is above it.
        roster = self._enrolment.roster(raw, self._tasks(0, 0))
        first = math.ceil((time.time() + LEAD_S + patience_s) / WINDOW_S) * WINDOW_S
        self.tasks = self._tasks(first, patience_s)
        write_public(self.folders.signed / "demo.roster", roster)
        for task in self.tasks:
            _, signed = sign_task(task, self._leader_key, self._helper_key)
            write_public(self.folders.signed / f"{task.series}.task", signed)

    def _tasks(self, first: int, patience_s: int) -> list[Task]:
        parties = self.leader_pk, self.helper_pk
        return self.plan.tasks(self.catalogue, first, patience_s, *parties)

    def _live_request(self, live: Host, inventory: HostInventory) -> JoinRequest:
        """Have this machine ask to join, as a host of the smallest operator."""
        other = self.catalogue.classes("gpu_model").index("other")
        token = self._enrolment.token(int(np.bincount(inventory.operator).argmin()))
        models = ((other, 1),) if self.plan.trace else ()
        return join_request(live, hardware_names(machine_id(), ()), token, models)

    @property
    def processes(self) -> int:
        return len(parts_of(self.plan.hosts, self.plan.processes))


def write_public(path: Path, content: bytes) -> None:
    """Write a file that every role may read, whole or not at all."""
    draft = path.with_name(f".{path.name}.partial")
    draft.write_bytes(content)
    draft.chmod(0o644)
    draft.replace(path)
