"""How simulated hosts are made: keys, roster, ledger, participant."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.membership import join_request
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.task_check import ParticipantRules
from privacy.noise import NoiseSampler
from privacy.signing import SigningKey
from transport.files.private_files import JoinToken
from wire.fields import hardware_id, host_id, voucher_id
from wire.join import JoinRequest
from wire.roster import FleetName, PlanMembership, Roster, RosterEntry
from wire.task import Task

from .fleet.hosts import HostInventory

_LEDGER, _FENCE, _BINDING = "ledger.sqlite", "fence", "binding"

HARDWARE: Final = "simulated-host"
"""What a simulated host calls its hardware."""

Gpus = tuple[tuple[int, int], ...]
"""(place in the catalogue's table of GPU models, how many) of one host."""


def host_of(key: SigningKey) -> Host:
    return Host(key, host_id(key.public_bytes))


def new_hosts(count: int) -> list[Host]:
    return [host_of(SigningKey.generate()) for _ in range(count)]


def gpus_of(inventory: HostInventory) -> list[Gpus]:
    pairs = zip(inventory.gpu_model.tolist(), inventory.gpus.tolist(), strict=True)
    return [((model, count),) for model, count in pairs]


def fleet_members(
    keys: Sequence[bytes], inventory: HostInventory
) -> Iterator[tuple[bytes, int, Gpus]]:
    yield from zip(keys, inventory.operator.tolist(), gpus_of(inventory), strict=True)


def vouched_requests(
    hosts: Iterable[Host], tokens: Iterable[JoinToken], gpus: Iterable[Gpus]
) -> list[JoinRequest]:
    """Have hosts ask to join under tokens of operators; their hardware says that it is made up."""
    run = secrets.token_hex(8)
    return [
        join_request(host, (f"{HARDWARE}-{run}-{number}",), token, models)
        for number, (host, token, models) in enumerate(zip(hosts, tokens, gpus, strict=True))
    ]


def memberships(tasks: Iterable[Task]) -> tuple[PlanMembership, ...]:
    """Put every host into cohort 0 of each task."""
    return tuple(
        PlanMembership(task.series, 0, sum(spec.weight_millionths for spec in task.sections))
        for task in tasks
    )


def roster_of(
    hosts: Iterable[tuple[bytes, int, Gpus]],
    plan: tuple[PlanMembership, ...],
    valid_from_s: int = 0,
    fleet: FleetName | None = None,
) -> Roster:
    """Write hosts, (public key, operator's number, GPUs), that nobody vouches for into one plan."""
    entries = [
        RosterEntry(
            host_id(key),
            key,
            f"operator-{operator}",
            0,
            gpus,
            hardware_id(key, f"{HARDWARE}-{number}"),
            voucher_id(key),
        )
        for number, (key, operator, gpus) in enumerate(hosts)
    ]
    entries.sort(key=lambda entry: entry.host_id)
    return Roster(1, valid_from_s, (plan,), tuple(entries), fleet)


def hosts_ledger(folder: Path, hosts: Sequence[Host], now_s: int, limits: SpoolLimits) -> Ledger:
    """Open the common ledger of some hosts, or make it: budgets are kept per host.

    folder      private to the hosts, with the file that binds the ledger to it
    Raises      LedgerRefused
    """
    path, fence, binding = folder / _LEDGER, folder / _FENCE, folder / _BINDING
    if path.exists():
        return Ledger.open(path, fence, binding=binding.read_bytes(), limits=limits)
    bound = secrets.token_bytes(32)
    binding.write_bytes(bound)
    ids = [host.host_id for host in hosts]
    return Ledger.create(path, fence, hosts=ids, binding=bound, now_s=now_s, limits=limits)


def participant_of(
    hosts: Sequence[Host],
    ledger: Ledger,
    sampler: NoiseSampler,
    rules: ParticipantRules,
    rounding: Callable[[int], bytes] | None = None,
) -> Participant:
    """Make the production participant of hosts; rounding None: the operating system."""
    view = ledger.view([host.host_id for host in hosts])
    return Participant(list(hosts), view, sampler, os.urandom, rules, rounding_bytes=rounding)
