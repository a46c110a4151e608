"""Configurations of a new fleet as TOML: only what differs from the defaults."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aggregator.party.channel_address import ChannelTable


def quoted(value: str | Path) -> str:
    """Write a TOML string: JSON's, but for DEL, and for the halves by which JSON escapes emoji."""
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a fleet's records go: the folder of an embedded log, or brokers of Kafka.

    group       of users that share the folder
    """

    folder: Path | None = None
    group: str | None = None
    brokers: tuple[str, ...] = ()
    tls: bool = False

    @property
    def kind(self) -> str:
        """What `simulate --export` calls it."""
        return "kafka" if self.brokers else "log"

    @property
    def text(self) -> str:
        if self.brokers:
            names = ", ".join(quoted(broker) for broker in self.brokers)
            return f"[transport.kafka]\nbootstrap = [{names}]\n" + ("tls = true\n" * self.tls)
        shared = f"group = {quoted(self.group)}\n" if self.group else ""
        return f"[transport]\nfolder = {quoted(self.folder or '')}\n{shared}"


def channel_text(end: ChannelTable) -> str:
    if end.socket is not None:
        return f"socket = {quoted(end.socket)}\n"
    files = {"ca_file": end.ca_file, "cert_file": end.cert_file, "key_file": end.key_file}
    lines = [f"{name} = {quoted(path or '')}\n" for name, path in files.items()]
    return f"address = {quoted(end.address)}\n" + "".join(lines)


def leader_text(home: Path, helper_pk: bytes, log: LogPlace, helper: ChannelTable) -> str:
    return f"""# The Leader. Every key: `pointillist sample show leader.toml`.
[leader]
key_dir = {quoted(home / "keys" / "leader")}
state_dir = {quoted(home / "state")}
signed_dir = {quoted(home / "signed")}
helper_pk = "{helper_pk.hex()}"

{log.text}
[helper]
{channel_text(helper)}
[store]
database = {quoted(home / "releases" / "releases.duckdb")}
releases_dir = {quoted(home / "releases" / "parquet")}
"""


def helper_text(
    home: Path,
    leader_pk: bytes,
    fleet: str,
    listen: ChannelTable,
    peer_group: str | None,
    log: LogPlace | None = None,
) -> str:
    """Write helper.toml of a Helper that lives in `home`.

    fleet   the name that rosters must have; "" of a Leader that has none for it yet
    log     where it compares its state with the releases at a start
    """
    named = f"fleet = {quoted(fleet)}\n" if fleet else ""
    group = f"peer_group = {quoted(peer_group)}\n" if peer_group else ""
    seen = "" if log is None else f"\n{log.text}"
    return f"""# The Helper. Every key: `pointillist sample show helper.toml`.
[helper]
key_dir = {quoted(home / "keys" / "helper")}
state_dir = {quoted(home / "state")}
# Never in the same backup as state_dir.
fence_file = {quoted(home / "fence" / "fence.json")}
signed_dir = {quoted(home / "signed")}
leader_pk = "{leader_pk.hex()}"
{named}
[listen]
{channel_text(listen)}{group}{seen}"""


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """Whom a host trusts, and the least cohort it reports into.

    fleet   the name that rosters must have; "" of a Leader that has none for it yet
    trial   takes tasks of a trial alone: the agent serves no real fleet
    """

    leader_pk: bytes
    helper_pk: bytes
    fleet: str
    n_min: int
    trial: bool


def trust_text(terms: AgentTerms) -> str:
    named = f"fleets = [{quoted(terms.fleet)}]\n" if terms.fleet else ""
    trial = "# Takes tasks of a trial, and no others.\ntrial = true\n" if terms.trial else ""
    return f"""[trust]
leaders = ["{terms.leader_pk.hex()}"]
helpers = ["{terms.helper_pk.hex()}"]
{named}{trial}
[bounds]
n_min_at_least = {terms.n_min}
"""


MEASURING: Final = """
# What this host can measure is on. What needs a right or a library that is not there is left out
# with one line in the log; `pointillist agent doctor` says which, and what to do.
[sources]
# CPU, memory, disk and network: some files of /proc a second. GPUs, by their driver: each is asked
# once a second. Hardware faults: the kernel's log.
host = true
gpus = true
faults = true
# What the kernel does, shown on this host and never reported. It counts every switch of a task: a
# program with 8,000 a second is slowed by less than 1 %, one that does nothing but switch by more
# (docs/figures.md). Ten snapshots a second; diagnosis would need 100.
ebpf = true
ebpf_hz = 10

# Calls of GPU libraries in all processes. They are watched in turns, so that no process loses more
# than this share of its time.
[sources.probes]
enabled = true
budget_percent = 0.5

# Off, as it costs: how long kernels ran. GPU programs load a library for it, and attached and idle
# it took 25.5 % of a launch-bound loop on an H100 (docs/gpu-time.md).
[sources.gpu_time]
enabled = false

# Off, as it is wrong too often: why a job was slow. It raised 90 false alarms in 4 hours without a
# fault (docs/diagnosis-figures.md).
[diagnosis]
enabled = false

# Counters of the agent itself, for Prometheus, on this machine alone.
[metrics]
port = 9469
"""
"""The tables of a new agent.toml that say what is measured."""


def agent_text(home: Path, terms: AgentTerms, log: LogPlace, *, keys: Path | None = None) -> str:
    """Write agent.toml of a host that keeps its files in `home`.

    keys    where `keys generate host --folder` wrote; `home`'s own without it
    """
    return f"""# The agent of one host. Every key: `pointillist sample show agent.toml`.
[host]
key_file = {quoted((keys or home / "keys") / "host" / "identity.key")}
state_dir = {quoted(home / "state")}
# Those that the drivers list when this host joins; its key is bound to them from then on.
gpus = "auto"

{log.text}
{trust_text(terms)}{MEASURING}"""


def export_text(identities: Path, plan: str, terms: AgentTerms, log: LogPlace) -> str:
    return f"""# Simulated hosts of a trial: whoever runs them knows what they report.
[fleet]
identities = {quoted(identities)}
plan = {quoted(plan)}
domain = "demo"

{log.text}
{trust_text(replace(terms, trial=False))}"""


def plan_entry_text(plan: str, weights: dict[str, int]) -> str:
    """Write the [[plan]] of the Leader's plans file: series -> millionths of a host's budget."""
    series = ", ".join(
        f"{name} = {{ cohort = 0, weight_millionths = {weight} }}"
        for name, weight in weights.items()
    )
    return f"[[plan]]\nname = {quoted(plan)}\nseries = {{ {series} }}\n"


def new_fleet_name(leader: str) -> str:
    """Name a fleet after its Leader, as no other is."""
    return f"{leader[:46]}-{secrets.token_hex(8)}"


def fleet_text(fleet: str, helper_pk: bytes) -> str:
    """Write the table [fleet] of the Leader's plans file."""
    return f'\n[fleet]\nname = {quoted(fleet)}\nhelper_pk = "{helper_pk.hex()}"\n'


def operator_text(name: str, key: bytes) -> str:
    return f'\n[[operator]]\nname = {quoted(name)}\nkey = "{key.hex()}"\n'


def shell_line(words: Sequence[str]) -> str:
    """Write a command as a person types it; a `*` is left for the shell."""
    return " ".join(
        "*".join(shlex.quote(part) if part else "" for part in word.split("*"))
        if "*" in word
        else shlex.quote(word)
        for word in words
    )
