"""Keys, tokens and join requests of simulated hosts, kept in one private folder."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.joining import gpu_counts, join_request
from edge_agent.protocol.epochs import Host
from privacy.signing import SigningKey
from simulator.fleet.hosts import HostInventory
from simulator.simulated_hosts import host_of
from wire.catalogue import Catalogue

KEYS_FILE: Final = "hosts.keys"
TOKENS_FILE: Final = "tokens.toml"
JOINS: Final = "joins"
SEED_BYTES: Final = 32
MAX_HOSTS: Final = 100_000

HARDWARE: Final = "simulated-host"
"""What a simulated host calls its hardware: in a roster nobody takes it for a machine."""


class IdentitiesError(ValueError):
    """A folder of identities cannot be made or read; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class EnrolmentFiles:
    """What a Leader's operator needs.

    tokens_file     [[token]] lines for the plans file
    joins           folder of *.join requests, for `leader roster build --requests`
    """

    hosts: int
    operators: int
    tokens_file: Path
    joins: Path


def make_identities(
    folder: Path, inventory: HostInventory, catalogue: Catalogue, plan: str
) -> EnrolmentFiles:
    """Make a key, a token and a join request for every host of a fleet.

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
    models = catalogue.classes("gpu_model")
    seeds, tokens = [], []
    run = secrets.token_hex(8)
    for number in range(inventory.hosts):
        seed, token = secrets.token_bytes(SEED_BYTES), secrets.token_urlsafe(32).encode()
        gpus = [models[int(inventory.gpu_model[number])]] * int(inventory.gpus[number])
        request = join_request(
            _host(seed), (f"{HARDWARE}-{run}-{number}",), token, gpu_counts(catalogue, gpus)
        )
        (joins / f"{number:06}.join").write_bytes(request.encode())
        seeds.append(seed)
        tokens.append(
            f'[[token]]\nsha256 = "{hashlib.sha256(token).hexdigest()}"\n'
            f'operator = "simulated-{int(inventory.operator[number])}"\n'
            f"plan = {json.dumps(plan)}\n"
        )
    tokens_file = folder / TOKENS_FILE
    tokens_file.write_text("\n".join(tokens))
    _write_private(folder / KEYS_FILE, b"".join(seeds))
    return EnrolmentFiles(
        inventory.hosts, len(set(inventory.operator.tolist())), tokens_file, joins
    )


def load_identities(folder: Path) -> list[Host]:
    """Read the hosts in the fleet's order.

    Raises  IdentitiesError
    """
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


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
