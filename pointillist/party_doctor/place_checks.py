"""Checks of what a party keeps: its keys, its folders, and room on their disks."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from aggregator.party.party_health import is_present
from transport.files.keyfiles import KeyFileRefused, load_hpke_key, load_signing_key
from transport.process.doctor_findings import Finding
from transport.process.file_rights import way_in

from .finding_of import FindingOf

_LEAST_BYTES: Final = 64 << 20
_LOW_SHARE: Final = 0.05
COPIES: Final = "*.sqlite.schema-*"
_DAY_S: Final = 86_400
_COPY_DAYS: Final = 30
"""Longer than any retention: a state put back after it has forgotten every window that is open."""


def key_check(party: str, key_dir: Path, peer_pk: bytes) -> Callable[[], Finding]:
    """Check identity and daily keys: there, this user's alone, and not the other party's."""
    told = FindingOf("keys", "keys")
    make = f"pointillist keys generate {party}, and key_dir names its folder"

    def check() -> Finding:
        try:
            identity = load_signing_key(key_dir / "identity.key")
            daily = [load_hpke_key(path) for path in sorted(key_dir.glob("*.hpke"))]
        except KeyFileRefused as error:
            found, do = error.parts
            return told.broken(found, do or f"chmod 600 it, for the user that runs; or {make}")
        if identity.public_bytes == peer_pk:
            return told.broken(
                "the other party's key is this party's own",
                "one party must not be both: pin the key that the other one published",
            )
        now_s = time.time()
        live = sum(key.not_before <= now_s <= key.not_after for key in daily)
        line = f"identity {identity.public_bytes.hex()[:16]}..., {live} daily keys in force"
        return told.ok(line if live else f"{line}; the first start makes one")

    return check


def folder_checks(
    folders: Mapping[str, Path], *, started_by_root: bool
) -> list[tuple[str, str, Callable[[], Finding]]]:
    """Check that each folder can be written, and that its disk has room."""
    return [
        ("folders", name, _folder_check(FindingOf("folders", name), path, started_by_root))
        for name, path in folders.items()
    ]


def _folder_check(told: FindingOf, path: Path, started_by_root: bool) -> Callable[[], Finding]:
    def check() -> Finding:
        if not path.is_dir():
            above = next(folder for folder in path.parents if folder.exists())
            if started_by_root or os.access(above, os.W_OK | os.X_OK):
                return told.ok(f"{path}: none yet; the first start makes it")
            return told.broken(
                f"expected {path}, found none", f"start once as root, or make {path}"
            )
        if not os.access(path, os.W_OK | os.X_OK):
            return told.broken(f"{path} cannot be written by this user", f"chown {path} to it")
        usage = shutil.disk_usage(path)
        line = f"{path}, {usage.free >> 20:,} MiB free"
        if usage.free < _LEAST_BYTES:
            return told.broken(line, "make room: what cannot be written is not answered")
        if usage.free < _LOW_SHARE * usage.total:
            return told.absent(line, "make room soon: less than a twentieth is left")
        return told.ok(line)

    return check


def copies_check(state_dir: Path) -> Callable[[], Finding]:
    """Name the copies of the state that upgrades left, and say when one has served its time."""
    told = FindingOf("folders", "copies")

    def check() -> Finding:
        copies = [path for path in sorted(state_dir.glob(COPIES)) if path.suffix != ".new"]
        if not copies:
            return told.ok("no copy of the state from an upgrade")
        now_s, named, old = time.time(), [], []
        for path in copies:
            status = path.stat()
            days = int(now_s - status.st_mtime) // _DAY_S
            named.append(f"{path.name}, {status.st_size >> 20:,} MiB, {days} days old")
            old += [str(path)] if days >= _COPY_DAYS else []
        line = f"from upgrades: {'; '.join(named)}"
        if old:
            return told.absent(line, f"rm {' '.join(old)}: nobody goes back so far")
        return told.ok(line)

    return check


def running_check(party: str, status_file: Path) -> Callable[[], Finding]:
    """Say whether the party runs."""
    told = FindingOf(party, "process")
    start = f"pointillist {party} run --config FILE"

    def check() -> Finding:
        try:
            runs = is_present(status_file)
        except PermissionError as error:
            return told.absent(f"{status_file} cannot be read by this user", way_in(error) or start)
        return told.ok("runs") if runs else told.absent("does not run", start)

    return check


def stray_fence_check(state_dir: Path, fence_file: Path) -> Callable[[], Finding]:
    """Check that one backup cannot take the Helper's state and its fence."""
    told = FindingOf("folders", "fence")

    def check() -> Finding:
        if fence_file.is_relative_to(state_dir):
            return told.absent(
                f"{fence_file} lies in state_dir", "move it: one backup must not hold both"
            )
        return told.ok(f"{fence_file}, apart from state_dir")

    return check
