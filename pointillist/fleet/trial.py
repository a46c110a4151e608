"""A trial: every party of a fleet on one machine, and simulated hosts beside this real one.

It is real in all but two things: one person makes the keys of both parties, and most hosts are
simulated, so that a window reaches n_min. Its tasks carry the domain "demo", which no agent takes
that is not told to, and which is shown wherever its numbers are.

Where a trial keeps what each party owns: a folder each, as on machines of their own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.party.channel_address import ChannelTable
from pointillist.installation import AGENT_HOME, HOST_KEYS
from privacy.signing import SigningKey
from simulator.exported_fleet import make_identities
from simulator.fleet.hosts import make_inventory
from simulator.scenario import load
from transport.files.keyfiles import (
    HostKey,
    host_binding,
    machine_id,
    write_host_key,
    write_signing_key,
)
from transport.files.private_files import JoinToken, write_token
from transport.process.privileges import AGENT_USER, HELPER_USER, LEADER_USER, ensure_users
from transport.settings.config import limited, read_tree
from wire.catalogue import Catalogue

from . import party_files
from .party_config_text import (
    AgentTerms,
    LogPlace,
    agent_text,
    export_text,
    fleet_text,
    helper_text,
    leader_text,
    new_fleet_name,
    operator_text,
    plan_entry_text,
)


class TrialFolders:
    """The folders and files of one trial, below an absolute base."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.settings = base / "trial.toml"
        self.leader = base / "leader"
        self.plan = self.leader / "plan.toml"
        self.leader_toml = self.leader / "leader.toml"
        self.leader_key = self.leader / "keys" / "leader" / "identity.key"
        self.plans = self.leader / "plans.toml"
        self.joins = self.leader / "joins"
        self.task = self.leader / "trial.task"
        self.roster = self.leader / "1.roster"
        self.releases = self.leader / "releases" / "parquet"
        self.helper = base / "helper"
        self.helper_toml = self.helper / "helper.toml"
        self.helper_key = self.helper / "keys" / "helper" / "identity.key"
        self.operator = base / "operator"
        self.simulated = base / "simulated"
        self.log = base / "log"
        self.logs = base / "logs"
        self.socket = base / "run" / "helper.sock"

    def host(self, name: str) -> Path:
        return self.base / "hosts" / name

    def agent_toml(self, name: str) -> Path:
        return self.host(name) / "agent.toml"

    def token(self, name: str) -> Path:
        return self.host(name) / "token"


FORMAT: Final = 1
PLAN: Final = "trial"
SERIES: Final = "trial"
WEIGHTS: Final = {"kernel_mix": "0.5", "host_cpu": "0.5"}
FULL_WEIGHT: Final = 1_000_000
LATENESS_S: Final = 10
TOKEN_S: Final = 30 * 86_400
SCENARIO: Final = Path(__file__).with_name("trial.toml")
LONGEST_SOCKET_BYTES: Final = 107
"""The kernel's limit of a socket's name."""

LEAST_HOSTS: Final = 20
"""With fewer hosts each adds so much noise that no number can be told from it."""
MOST_HOSTS: Final = 10_000
NAME_FORM: Final = "[a-z0-9][a-z0-9-]{0,31}"

SAID: Final = (
    "This is a trial. One person made the keys of both Leader and Helper, and {simulated} of "
    "{hosts} hosts are simulated: nothing in it is private from whoever runs this machine. Its "
    "tasks, and every number that comes of them, are of the domain demo."
)


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What a person may choose of a trial; all of it has a default.

    hosts       on the roster: one real, the others simulated
    windows     the series has; fewer of them have less noise
    operator    who vouches for the real host, as the roster names it
    host        what the real host is called here
    by_hand     its owner makes its key and has it enrolled; `fleet up` waits for that
    """

    hosts: int = limited(500, low=LEAST_HOSTS, high=MOST_HOSTS)
    windows: int = limited(20, low=1, high=10_000)
    window_s: int = limited(30, low=5, high=3600)
    operator: str = limited("mine", form=NAME_FORM)
    host: str = limited("host-1", form=NAME_FORM)
    by_hand: bool = False

    @property
    def n_min(self) -> int:
        return self.hosts * 4 // 5

    @property
    def said(self) -> str:
        """What must be said wherever the trial is shown."""
        return SAID.format(simulated=self.hosts - 1, hosts=self.hosts)


def make_trial(base: Path, settings: TrialSettings) -> TrialFolders:
    """Raises FolderUnusable, OSError, PrivilegeError, KeyFileRefused."""
    socket = TrialFolders(base.resolve()).socket
    if len(bytes(socket)) > LONGEST_SOCKET_BYTES:
        raise party_files.FolderUnusable(
            f"{base}: expected a path so short that {socket.name} in it has at most "
            f"{LONGEST_SOCKET_BYTES} bytes, got {len(bytes(socket))}"
        )
    with party_files.new_folder(base) as made:
        folders = TrialFolders(made)
        _write_trial(folders, settings)
    return folders


def _write_trial(folders: TrialFolders, settings: TrialSettings) -> None:
    ensure_users()
    leader, helper, operator = (SigningKey.generate() for _ in range(3))
    log = LogPlace(folders.log, party_files.log_group())
    pks, fleet = (leader.public_bytes, helper.public_bytes), new_fleet_name(PLAN)
    terms = AgentTerms(*pks, fleet, settings.n_min, trial=True)
    _write_parties(folders, leader, helper, fleet, log)
    _write_plan(folders, settings)
    party_files.make_folder(folders.operator, party_files.PRIVATE)
    write_signing_key(folders.operator / f"{settings.operator}.key", operator)
    _write_host(folders, settings, terms, log)
    _write_simulated(folders, settings, terms, log)
    _pin_operators(folders, settings, operator, terms)
    party_files.make_folder(folders.logs, party_files.PUBLIC)
    party_files.write_new(folders.settings, _settings_text(settings))


def read_trial(base: Path) -> TrialSettings:
    """Read what `make_trial` wrote. Raises FolderUnusable."""
    path = TrialFolders(base.resolve()).settings
    return read_tree(TrialSettings, path, error=party_files.FolderUnusable, file_format=FORMAT)


def _write_parties(
    folders: TrialFolders,
    leader_key: SigningKey,
    helper_key: SigningKey,
    fleet: str,
    log: LogPlace,
) -> None:
    parties = (
        ("leader", folders.leader, leader_key, LEADER_USER),
        ("helper", folders.helper, helper_key, HELPER_USER),
    )
    for role, home, key, user in parties:
        party_files.make_folder(home, party_files.PUBLIC)
        party_files.make_folder(home / "signed", party_files.PUBLIC)
        party_files.write_identity(home / "keys", role, key, user)
    channel = ChannelTable(socket=folders.socket)
    leader = leader_text(folders.leader, helper_key.public_bytes, log, channel)
    party_files.write_new(folders.leader_toml, leader)
    group = LEADER_USER if log.group else None
    helper = helper_text(folders.helper, leader_key.public_bytes, fleet, channel, group)
    party_files.write_new(folders.helper_toml, helper)
    party_files.make_folder(folders.joins, party_files.PUBLIC)


def _write_plan(folders: TrialFolders, settings: TrialSettings) -> None:
    weights = ", ".join(f"{name} = {weight}" for name, weight in WEIGHTS.items())
    text = f"""# What the trial's hosts are asked. Every key: docs/plan-file.md.
format = 1
name = "trial"
hosts = {settings.hosts}
n_min = {settings.n_min}

[[task]]
series = "{SERIES}"
window_s = {settings.window_s}
lateness_s = {LATENESS_S}
retention_s = 21_600
windows = {settings.windows}
weights = {{ {weights} }}
"""
    party_files.write_new(folders.plan, text)


def _write_host(
    folders: TrialFolders, settings: TrialSettings, terms: AgentTerms, log: LogPlace
) -> None:
    home = folders.host(settings.host)
    party_files.make_folder(home.parent, party_files.PUBLIC)
    party_files.make_folder(home, party_files.PUBLIC)
    if settings.by_hand:
        party_files.write_new(
            home / "agent.toml", agent_text(AGENT_HOME, terms, log, keys=HOST_KEYS)
        )
        return
    party_files.make_folder(home / "keys", 0o711)
    party_files.make_folder(home / "keys" / "host", party_files.PRIVATE, AGENT_USER)
    key = home / "keys" / "host" / "identity.key"
    write_host_key(key, HostKey(SigningKey.generate(), host_binding(machine_id(), [])))
    party_files.give_to_role(key, AGENT_USER)
    party_files.make_folder(home / "state", party_files.PRIVATE, AGENT_USER)
    party_files.write_new(home / "agent.toml", agent_text(home, terms, log))


def _write_simulated(
    folders: TrialFolders, settings: TrialSettings, terms: AgentTerms, log: LogPlace
) -> None:
    """Make identities of the simulated hosts; their requests lie where the Leader's are."""
    home = party_files.make_folder(folders.simulated, party_files.PRIVATE)
    scenario = load(SCENARIO).with_(hosts=settings.hosts - 1)
    (home / "trial.toml").write_bytes(SCENARIO.read_bytes())
    identities = home / "identities"
    inventory = make_inventory(scenario, Catalogue.load())
    made = make_identities(identities, inventory, PLAN, terms.leader_pk)
    for request in made.joins.iterdir():
        request.replace(folders.joins / request.name)
    party_files.write_new(home / "export.toml", export_text(identities, PLAN, terms, log))


def _pin_operators(
    folders: TrialFolders, settings: TrialSettings, operator: SigningKey, terms: AgentTerms
) -> None:
    """Have both parties pin who vouches for hosts, and vouch for the real one."""
    name, not_after = settings.operator, int(time.time()) + TOKEN_S
    token = JoinToken.issue(operator, name, PLAN, terms.leader_pk, not_after)
    write_token(folders.token(settings.host), token)
    simulated = (folders.simulated / "identities" / "operators.toml").read_text(encoding="utf-8")
    pins = f"{operator_text(name, operator.public_bytes)}\n{simulated}"
    plans = plan_entry_text(PLAN, {SERIES: FULL_WEIGHT}) + pins
    named = fleet_text(terms.fleet, terms.helper_pk)
    party_files.write_new(folders.plans, f"{plans}{named}")
    with folders.helper_toml.open("a") as file:
        file.write(pins)


def _settings_text(settings: TrialSettings) -> str:
    return f"""# What `pointillist fleet up` reads of this trial. {settings.said}
format = {FORMAT}
hosts = {settings.hosts}
windows = {settings.windows}
window_s = {settings.window_s}
operator = "{settings.operator}"
host = "{settings.host}"
by_hand = {str(settings.by_hand).lower()}
"""
