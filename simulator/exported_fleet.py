"""A simulated fleet before running aggregators: real identities, real enrolment, real transport.

Hosts are enrolled as live ones; then one process of the production agent's loop plays all of them
on the wall clock. Only what they measured comes from the fleet model. Docs: docs/simulate.md.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_agent.clock import Clock, SystemClock
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from privacy.noise import OpenDpSampler
from privacy.noise_table import TableSampler
from privacy.signing import SigningKey
from simulator.engine.blocks import spans
from simulator.engine.interface import BLOCK_HOSTS
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.hosts import HostInventory
from simulator.scenario import Scenario
from simulator.simulated_hosts import gpus_of, host_of, vouched_requests
from simulator.slices import LiveFleet, SimulatedWindows, WindowTruth
from transport.factory import Side, TransportSettings, open_transport, prepare_transport
from transport.files.private_files import JoinToken
from wire.catalogue import Catalogue

KEYS_FILE: Final = "hosts.keys"
OPERATORS_FILE: Final = "operators.toml"
VOUCHER_S: Final = 30 * 86_400
JOINS: Final = "joins"
SEED_BYTES: Final = 32
MAX_HOSTS: Final = 100_000

_SPOOL_OF_A_HOST = 64


class IdentitiesError(ValueError):
    """A folder of identities cannot be made or read; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class EnrolmentFiles:
    """What a Leader's operator needs, and the Helper's.

    operators_file  [[operator]] lines for the Leader's plans file and for helper.toml
    joins           folder of *.join requests, for `leader roster build --requests`
    t_at_least      of a task that serves this roster: it covers the largest operator
    n_min_at_least  of that task: half of what n_min counts may be known to one party, no more
    """

    hosts: int
    operators: int
    operators_file: Path
    joins: Path
    t_at_least: int
    n_min_at_least: int


def make_identities(
    folder: Path,
    inventory: HostInventory,
    plan: str,
    leader_pk: bytes,
    now_s: float | None = None,
) -> EnrolmentFiles:
    """Make keys of operators, and a key, a token and a join request for every host of a fleet.

    folder      is made, 0700; the keys in it are throw-away ones, and 0600 all the same
    plan        name of the [[plan]] in the Leader's plans file
    Raises      IdentitiesError where there are identities already, OSError
    """
    if inventory.hosts > MAX_HOSTS:
        raise IdentitiesError(f"expected at most {MAX_HOSTS:,} hosts, got {inventory.hosts:,}")
    if (folder / KEYS_FILE).exists():
        raise IdentitiesError(
            f"{folder}: expected a folder without identities, found {KEYS_FILE}: they may be "
            "enrolled; name another folder"
        )
    joins = folder / JOINS
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    joins.mkdir(exist_ok=True)
    not_after = int(time.time() if now_s is None else now_s) + VOUCHER_S
    operators = {
        f"simulated-{number}": SigningKey.generate() for number in set(inventory.operator.tolist())
    }
    names = [f"simulated-{number}" for number in inventory.operator.tolist()]
    tokens = (JoinToken.issue(operators[n], n, plan, leader_pk, not_after) for n in names)
    seeds = [secrets.token_bytes(SEED_BYTES) for _ in names]
    requests = vouched_requests(map(_host, seeds), tokens, gpus_of(inventory))
    for number, request in enumerate(requests):
        (joins / f"{number:06}.join").write_bytes(request.encode())
    operators_file = folder / OPERATORS_FILE
    pins = (
        f'[[operator]]\nname = {json.dumps(name)}\nkey = "{key.public_bytes.hex()}"\n'
        for name, key in operators.items()
    )
    operators_file.write_text("\n".join(pins))
    handle = os.open(folder / KEYS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(b"".join(seeds))
        file.flush()
        os.fsync(file.fileno())
    t = max(*Counter(names).values(), -(-inventory.hosts // 10))
    return EnrolmentFiles(inventory.hosts, len(operators), operators_file, joins, t, 2 * t)


def load_identities(folder: Path) -> list[Host]:
    """Read the hosts in the fleet's order. Raises IdentitiesError."""
    path = folder / KEYS_FILE
    try:
        status = path.stat()
        if status.st_mode & 0o077 or status.st_size > MAX_HOSTS * SEED_BYTES:
            raise IdentitiesError(
                f"{path}: expected a file of at most {MAX_HOSTS * SEED_BYTES} bytes that nobody "
                f"else may read, got mode {status.st_mode & 0o777:03o}, {status.st_size} bytes"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise IdentitiesError(
            f"{path}: {error.strerror}; make identities first: --export ... --enrol"
        ) from None
    if not raw or len(raw) % SEED_BYTES:
        raise IdentitiesError(f"{path}: expected keys of {SEED_BYTES} bytes, got {len(raw)} bytes")
    return [_host(raw[at : at + SEED_BYTES]) for at in range(0, len(raw), SEED_BYTES)]


def _host(seed: bytes) -> Host:
    return host_of(SigningKey.from_seed_bytes(seed))


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where the reports go and whom the hosts trust.

    folder      identities, ledger and fence, 0700
    seconds     how long to go on, by the wall clock
    domain      of the tasks that are taken: "live" (fleet and operator tasks) or "demo"
    """

    folder: Path
    transport: TransportSettings
    pins: Pins
    bounds: Bounds
    seconds: float
    domain: str = "live"


class ExportedFleet:
    def __init__(
        self,
        scenario: Scenario,
        hosts: list[Host],
        settings: ExportSettings,
        tell: Callable[[WindowTruth], None],
        clock: Clock | None = None,
    ) -> None:
        """Open ledger and log. Raises LedgerRefused, TransportUnavailable."""
        catalogue, clock = Catalogue.load(), clock or SystemClock()
        self._hosts, self._windows_seen = hosts, 0

        def count(window: WindowTruth) -> None:
            self._windows_seen += 1
            tell(window)

        (part,) = spans(len(hosts), BLOCK_HOSTS, processes=1)
        self._windows = SimulatedWindows(
            FleetModel(scenario, catalogue),
            catalogue,
            part,
            count,
            block_hosts=BLOCK_HOSTS,
            until_s=clock.unix_ms() // 1000 + settings.seconds,
        )
        prepare_transport(settings.transport, Side.AGGREGATOR)
        self._live = LiveFleet(
            hosts,
            self._windows,
            open_transport(settings.transport, Side.AGGREGATOR),
            folder=settings.folder,
            name="simulated-fleet",
            rules=ParticipantRules(
                settings.pins, settings.bounds, settings.domain, None, catalogue
            ),
            # opendp, made by others, would take minutes of every window of ten thousand hosts.
            sampler=OpenDpSampler() if len(hosts) <= 50 else TableSampler(os.urandom),
            spool_reports=_SPOOL_OF_A_HOST,
            clock=clock,
        )

    def run(self, stopping: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Report until the time is over and all is on the log, or stopped. Raises LedgerRefused."""
        tally = self._live.run(stopping)
        return {
            "hosts": len(self._hosts),
            "tasks": self._windows.opened,
            "windows": self._windows_seen,
            "epochs": tally.epochs,
            "sealed": tally.sealed,
            "published": tally.published,
            "refused": dict(tally.refused),
        }
