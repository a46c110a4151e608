"""`pointillist leader run` as a process: a configuration for it, and what its status says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privacy.signing import SigningKey
from tests.fleet_kit import fleet_folder
from tests.protocol_kit import seeded_bytes
from transport.files.keyfiles import write_signing_key
from transport.process.privileges import LEADER_USER, ensure_users


@pytest.fixture
def place() -> Iterator[Path]:
    with fleet_folder() as folder:
        yield folder


def configuration(folder: Path) -> Path:
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    write_signing_key(keys / "identity.key", SigningKey.generate())
    shared = ensure_users()
    if shared:
        for path in (keys, keys / "identity.key"):
            shutil.chown(path, LEADER_USER, LEADER_USER)
    (folder / "signed").mkdir()
    path = folder / "leader.toml"
    path.write_text(
        f"""
[leader]
key_dir = "{keys}"
state_dir = "{folder}/state"
signed_dir = "{folder}/signed"
helper_pk = "{SigningKey.from_seed_bytes(seeded_bytes("helper")).public_bytes.hex()}"

[transport]
folder = "{folder}/log"
{'group = "pointillist"' if shared else ""}

[helper]
socket = "{folder}/nobody.sock"

[store]
database = "{folder}/store/releases.duckdb"
releases_dir = "{folder}/releases"
"""
    )
    return path


def status(folder: Path, name: str = "state") -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / name / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return document
