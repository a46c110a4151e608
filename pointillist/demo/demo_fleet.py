"""Compose a local fleet: identities, roster, signed tasks, configuration, processes."""

from __future__ import annotations

import json
import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aggregator.enrolment.tasks import sign_task
from edge_agent.joining import hardware_names, join_request
from edge_agent.protocol.epochs import Host
from privacy.signing import SigningKey
from simulator.engine.blocks import Span
from simulator.fleet import SteadyFleet
from simulator.fleet.hosts import HostInventory
from simulator.simulated_hosts import host_of
from simulator.slice_config import SliceConfig, parts_of
from transport.files.keyfiles import (
    HostKey,
    host_binding,
    machine_id,
    write_host_key,
    write_signing_key,
)
from transport.process.privileges import LEADER_USER
from wire.catalogue import Catalogue
from wire.join import JoinRequest
from wire.task import Task

from .demo_enrolment import DemoEnrolment
from .demo_plan import ONE_WINDOW_SERIES, WINDOW_S, DemoPlan, lateness_s
from .folders import RunFolders, write_private, write_public
from .role_processes import Family, RoleProcess

SCENARIO: Final = Path(__file__).with_name("demo.toml")
START_S: Final = 60.0
LEAD_S: Final = 6
"""Between signing the tasks and the first window: hosts read them, open epochs, seal keys."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asks for.

    trace   a Kineto trace that plays as this host's GPU activity, or None
    kafka   host:port of the broker that carries everything, or None: the embedded log
    """

    plan: DemoPlan
    processes: int
    opendp_hosts: int
    seed: int | None
    dropout: float
    trace: Path | None
    kafka: str | None = None


class DemoFleet:
    """The running fleet of one demo."""

    def __init__(self, options: DemoOptions, folders: RunFolders, family: Family) -> None:
        self.options = options
        self.folders = folders
        self._family = family
        self._began_s = 0.0
        self._leader_key = SigningKey.generate()
        self._helper_key = SigningKey.generate()
        self.catalogue = Catalogue.load()
        self.tasks: list[Task] = []
        self._enrolment = DemoEnrolment(self._leader_key, self._helper_key)
        self._seed = secrets.randbits(63) if options.seed is None else options.seed

    @property
    def leader_pk(self) -> bytes:
        return self._leader_key.public_bytes

    @property
    def helper_pk(self) -> bytes:
        return self._helper_key.public_bytes

    def start(self) -> None:
        """Start every process, enrol the hosts, sign the tasks.

        Raises      ChildFailed, KeyFileRefused
        """
        self._began_s = time.monotonic()
        live = self._write_live() if self.options.plan.live else None
        self._write_parties()
        slices = self._write_slices()
        self.folders.hand_over()
        self._family.start(
            "helper", "pointillist", "helper", "run", "--config", self._toml("helper")
        )
        self._family.start(
            "leader", "pointillist", "leader", "run", "--config", self._toml("leader")
        )
        children = [
            self._family.start(config.name, "simulator.slice_process", str(path))
            for config, path in slices
        ]
        if live is not None:
            self._start_live()
        self._enrol([config for config, _ in slices], children, live)

    def _toml(self, role: str) -> str:
        return str(self.folders.base / f"{role}.toml")

    def _transport(self) -> str:
        """Where the log is, as both configurations say it."""
        if self.options.kafka is not None:
            return f"[transport.kafka]\nbootstrap = [{json.dumps(self.options.kafka)}]"
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

    def _write_slices(self) -> list[tuple[SliceConfig, Path]]:
        slices = []
        parts = parts_of(self.options.plan.hosts, self.options.processes)
        for part, span in enumerate(parts):
            config = self._slice(part, span)
            Path(config.state_dir).mkdir(mode=0o700)
            path = self.folders.base / f"{config.name}.json"
            operators = self._inventory(config).operator[span.lo : span.hi].tolist()
            lines = "\n".join(self._enrolment.token(operator).text() for operator in operators)
            write_private(Path(config.tokens_file), lines.encode())
            config.write(path)
            path.chmod(0o644)
            slices.append((config, path))
        return slices

    def _slice(self, part: int, span: Span) -> SliceConfig:
        """What the process of one part of the hosts is told."""
        options, folders = self.options, self.folders
        name, opendp, hosts = f"hosts-{part}", options.opendp_hosts, options.plan.hosts
        return SliceConfig(
            name=name,
            scenario=str(SCENARIO),
            hosts=hosts,
            seed=self._seed,
            dropout=options.dropout,
            part=part,
            parts=options.processes,
            repeats=options.seed is not None,
            opendp_hosts=opendp * span.hi // hosts - opendp * span.lo // hosts,
            state_dir=str(folders.agents / name),
            log_dir=None if options.kafka else str(folders.log),
            log_group=None if options.kafka else folders.log_group,
            kafka=options.kafka,
            truth_file=str(folders.truth / f"truth-{part}.jsonl"),
            leader_pk=self.leader_pk.hex(),
            helper_pk=self.helper_pk.hex(),
            n_min_at_least=options.plan.n_min,
            tasks=1 + len(ONE_WINDOW_SERIES),
            tokens_file=str(folders.base / f"{name}.tokens"),
        )

    def _inventory(self, config: SliceConfig) -> HostInventory:
        return SteadyFleet(config.played, self.catalogue).inventory

    def _write_live(self) -> Host:
        state = self.folders.agents / "live"
        state.mkdir(mode=0o700)
        key = SigningKey.generate()
        write_host_key(state / "host.key", HostKey(key, host_binding(machine_id(), [])))
        trace = self.options.trace
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
[bounds]
n_min_at_least = {self.options.plan.n_min}
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

    def _start_live(self) -> None:
        notes = self.folders.agents / "live" / "report-ids.jsonl"
        self._family.start("live", "pointillist.demo.live_host", self._toml("live"), str(notes))

    def _enrol(
        self, slices: list[SliceConfig], children: list[RoleProcess], live: Host | None
    ) -> None:
        """Sign the roster of the hosts that ask to join, and the tasks."""
        raw = [bytes.fromhex(r) for child in children for r in child.message(START_S)["requests"]]
        if live is not None:
            raw.append(self._live_request(live, self._inventory(slices[0])).encode())
        patience_s = lateness_s(time.monotonic() - self._began_s)
        # The first window waits for what is below this, so what takes time is above it.
        roster = self._enrolment.roster(raw, self._tasks(0, 0))
        first = math.ceil((time.time() + LEAD_S) / WINDOW_S) * WINDOW_S
        self.tasks = self._tasks(first, patience_s)
        write_public(self.folders.signed / "demo.roster", roster)
        for task in self.tasks:
            _, signed = sign_task(task, self._leader_key, self._helper_key)
            write_public(self.folders.signed / f"{task.series}.task", signed)

    def _tasks(self, first: int, patience_s: int) -> list[Task]:
        parties = self.leader_pk, self.helper_pk
        return self.options.plan.tasks(self.catalogue, first, patience_s, *parties)

    def _live_request(self, live: Host, inventory: HostInventory) -> JoinRequest:
        """Have this machine ask to join, as a host of the smallest operator."""
        other = self.catalogue.classes("gpu_model").index("other")
        token = self._enrolment.token(int(np.bincount(inventory.operator).argmin()))
        models = ((other, 1),) if self.options.trace else ()
        return join_request(live, hardware_names(machine_id(), ()), token, models)

    @property
    def processes(self) -> int:
        """Of simulated hosts."""
        return len(parts_of(self.options.plan.hosts, self.options.processes))

    @property
    def first_window(self) -> int:
        """Start of the first window, unix seconds."""
        return self.tasks[0].first_window

    @property
    def last_window(self) -> int:
        """Start of the last window, unix seconds."""
        return self.tasks[0].last_window
