"""Compose a local fleet: identities, roster, signed tasks, configuration, processes."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.tasks import sign_roster, sign_task
from privacy.signing import SigningKey
from simulator.slice_config import SliceConfig
from transport.keyfiles import HostKey, host_binding, machine_id, write_host_key, write_signing_key
from transport.privileges import LEADER_USER
from wire.catalogue import Catalogue
from wire.ids import hardware_hash, host_id
from wire.roster import PlanMembership, Roster, RosterEntry
from wire.task import Task

from .demo_plan import (
    EVENT_SERIES,
    GPUS_PER_HOST,
    MIX_SERIES,
    MIX_WEIGHTS,
    OPERATORS,
    WINDOW_S,
    DemoPlan,
    lateness_s,
)
from .folders import RunFolders, write_public
from .role_processes import Family, RoleProcess

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
    late: float
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
        self.roster: Roster | None = None

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
        live_pk = self._write_live() if self.options.plan.live else None
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
        if live_pk is not None:
            self._start_live()
        self._enrol(children, live_pk)
        self._sign_tasks()

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
        options, folders = self.options, self.folders
        share = math.ceil(options.plan.hosts / options.processes)
        slices = []
        for number, first in enumerate(range(0, options.plan.hosts, share)):
            name = f"hosts-{number}"
            state = folders.agents / name
            state.mkdir(mode=0o700)
            config = SliceConfig(
                name=name,
                first_host=first,
                hosts=min(share, options.plan.hosts - first),
                gpus_per_host=GPUS_PER_HOST,
                dropout=options.dropout,
                late=options.late,
                seed=options.seed,
                opendp_hosts=self._opendp_share(first, share),
                state_dir=str(state),
                log_dir=None if options.kafka else str(folders.log),
                log_group=None if options.kafka else folders.log_group,
                kafka=options.kafka,
                truth_file=str(folders.truth / f"truth-{number}.jsonl"),
                leader_pk=self.leader_pk.hex(),
                helper_pk=self.helper_pk.hex(),
                n_min_at_least=options.plan.n_min,
                tasks=1 + len(EVENT_SERIES),
            )
            path = folders.base / f"{name}.json"
            config.write(path)
            path.chmod(0o644)
            slices.append((config, path))
        return slices

    def _opendp_share(self, first: int, share: int) -> int:
        """Spread the hosts that draw by opendp over the processes."""
        total, hosts = self.options.opendp_hosts, self.options.plan.hosts
        return total * min(first + share, hosts) // hosts - total * first // hosts

    def _write_live(self) -> bytes:
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
"""
        write_public(self.folders.base / "live.toml", toml.encode())
        return key.public_bytes

    def _start_live(self) -> None:
        notes = self.folders.agents / "live" / "report-ids.jsonl"
        self._family.start("live", "pointillist.demo.live_host", self._toml("live"), str(notes))

    def _enrol(self, slices: list[RoleProcess], live_pk: bytes | None) -> None:
        keys = [bytes.fromhex(key) for child in slices for key in child.message(START_S)["hosts"]]
        model = self.catalogue.classes("gpu_model").index("H100")
        entries = [
            self._entry(key, number, ((model, GPUS_PER_HOST),)) for number, key in enumerate(keys)
        ]
        if live_pk is not None:
            other = self.catalogue.classes("gpu_model").index("other")
            gpus = ((other, 1),) if self.options.trace else ()
            entries.append(self._entry(live_pk, len(keys), gpus))
        plan = tuple(
            PlanMembership(series, 0, sum(weights.values()))
            for series, weights in {MIX_SERIES: MIX_WEIGHTS, **EVENT_SERIES}.items()
        )
        self.roster = Roster(1, 0, (plan,), tuple(sorted(entries, key=lambda entry: entry.host_id)))
        signed = sign_roster(self.roster, self._leader_key, self._helper_key)
        write_public(self.folders.signed / "demo.roster", signed)

    def _entry(self, key: bytes, number: int, gpus: tuple[tuple[int, int], ...]) -> RosterEntry:
        operator = f"operator-{number % OPERATORS}"
        return RosterEntry(
            host_id(key), key, operator, 0, gpus, hardware_hash((f"demo-host-{number}",))
        )

    def _sign_tasks(self) -> None:
        first = math.ceil((time.time() + LEAD_S) / WINDOW_S) * WINDOW_S
        patience_s = lateness_s(time.monotonic() - self._began_s)
        parties = self.leader_pk, self.helper_pk
        self.tasks = self.options.plan.tasks(self.catalogue, first, patience_s, *parties)
        for task in self.tasks:
            _, signed = sign_task(task, self._leader_key, self._helper_key)
            write_public(self.folders.signed / f"{task.series}.task", signed)

    @property
    def first_window(self) -> int:
        """Start of the first window, unix seconds."""
        return self.tasks[0].first_window

    @property
    def last_window(self) -> int:
        """Start of the last window, unix seconds."""
        return self.tasks[0].last_window
