"""What a party keeps: its process, keys and folders, and what lies signed for it."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from aggregator.enrolment.operators import OperatorKeys
from aggregator.party.health import is_present
from aggregator.protocol.directory import Directory, KnownTask, PinnedParties, VerifiedRoster
from transport.files.keyfiles import KeyFileRefused, load_hpke_key, load_signing_key
from transport.files.own_names import files_ending
from transport.process.doctor_checks import (
    Result,
    absent,
    broken,
    check,
    left_by_others,
    not_writable,
    ok,
)
from transport.process.privileges import way_in
from wire.rejection import ReportRejected

_LEAST_BYTES: Final = 64 << 20
_LOW_SHARE: Final = 0.05
COPIES: Final = "*.sqlite.schema-*"
_DAY_S: Final = 86_400
_COPY_DAYS: Final = 30
"""Longer than any retention: a state put back after it has forgotten every window that is open."""
SOON_S: Final = 7 * 86_400
_NAMED: Final = 3
_COUNTERSIGN: Final = "have it signed: `pointillist task sign`, `pointillist helper countersign`"


def running(party: str, status_file: Path) -> Result:
    start = f"pointillist {party} run --config FILE"
    try:
        return ok("runs") if is_present(status_file) else absent("does not run", start)
    except PermissionError as error:
        return absent(f"{status_file} cannot be read by this user", way_in(error) or start)


def party_keys(party: str, key_dir: Path, peer_pk: bytes) -> Result:
    """Check identity and daily keys: there, this user's alone, and not the other party's."""
    make = f"pointillist keys generate {party}, and key_dir names its folder"
    try:
        identity = load_signing_key(key_dir / "identity.key")
        daily = [load_hpke_key(path) for path in sorted(key_dir.glob("*.hpke"))]
    except KeyFileRefused as error:
        found, do = error.parts
        return broken(found, do or f"chmod 600 it, for the user that runs; or {make}")
    if identity.public_bytes == peer_pk:
        return broken(
            "the other party's key is this party's own",
            "one party must not be both: pin the key that the other one published",
        )
    if (closed := not_writable(key_dir, ": each day has its key")) is not None:
        return closed
    now_s = time.time()
    live = sum(key.not_before <= now_s <= key.not_after for key in daily)
    line = f"identity {identity.public_bytes.hex()[:16]}..., {live} daily keys in force"
    return ok(line if live else f"{line}; the first start makes one")


def folder(path: Path, started_by_root: bool) -> Result:
    if not path.is_dir():
        above = next(folder for folder in path.parents if folder.exists())
        if started_by_root or os.access(above, os.W_OK | os.X_OK):
            return ok(f"{path}: none yet; the first start makes it")
        return broken(f"expected {path}, found none", f"start once as root, or make {path}")
    if (closed := not_writable(path) or left_by_others(path.iterdir())) is not None:
        return closed
    usage = shutil.disk_usage(path)
    line = f"{path}, {usage.free >> 20:,} MiB free"
    if usage.free < _LEAST_BYTES:
        return broken(line, "make room: what cannot be written is not answered")
    if usage.free < _LOW_SHARE * usage.total:
        return absent(line, "make room soon: less than a twentieth is left")
    return ok(line)


def copies(state_dir: Path) -> Result:
    """Name the copies of the state that upgrades left, and say when one has served its time."""
    found = [path for path in sorted(state_dir.glob(COPIES)) if path.suffix != ".new"]
    if not found:
        return ok("no copy of the state from an upgrade")
    now_s, named, old = time.time(), [], []
    for path in found:
        status = path.stat()
        days = int(now_s - status.st_mtime) // _DAY_S
        named.append(f"{path.name}, {status.st_size >> 20:,} MiB, {days} days old")
        old += [str(path)] if days >= _COPY_DAYS else []
    line = f"from upgrades: {'; '.join(named)}"
    return absent(line, f"rm {' '.join(old)}: nobody goes back so far") if old else ok(line)


def fence(state_dir: Path, fence_file: Path) -> Result:
    """Check that one backup cannot take the Helper's state and its fence."""
    if fence_file.is_relative_to(state_dir):
        return absent(f"{fence_file} lies in state_dir", "move it: one backup must not hold both")
    return ok(f"{fence_file}, apart from state_dir")


@dataclass
class SignedFiles:
    """A signed_dir: tasks and roster under both signatures, fresh, and fit to release.

    pinned      the Helper's operators; None for a Leader, whose plans file has them
    """

    folder: Path
    parties: PinnedParties
    catalogue_hash: bytes
    pinned: OperatorKeys | None = None
    now_s: float = field(default_factory=time.time)

    @cached_property
    def _read(self) -> tuple[Directory, list[str], list[str]]:
        """Read it as the party does; give also which files cannot be read, or are refused, and why.

        Raises      OSError where the folder itself cannot be read
        """
        directory = Directory(self.parties)
        unreadable, refused = list[str](), list[str]()
        self.folder.stat()  # a folder that is missing has no file
        for path in [
            p for end in (".task", ".roster") for p in files_ending(self.folder, end, folders=None)
        ]:
            try:
                content = path.read_bytes()
            except OSError as error:
                unreadable.append(f"{path.name}: {error.strerror}")
                continue
            try:
                if path.suffix == ".task":
                    directory.add_task(content, self.now_s, at_start=True)
                else:
                    directory.add_roster(content)
            except ReportRejected as error:
                refused.append(f"{path.name}: {error}")
        return directory, unreadable, refused

    @property
    def _tasks(self) -> dict[str, KnownTask]:
        found = sorted(self._read[0].tasks.values(), key=lambda known: known.task.version)
        return {known.task.series: known for known in found}

    @property
    def _roster(self) -> VerifiedRoster | None:
        rosters = self._read[0].rosters
        return rosters[max(rosters)] if rosters else None

    @check("signed", "files")
    def _look_at_files(self) -> Result:
        directory, unreadable, refused = self._read
        if unreadable:
            do = f"chmod a+r {self.folder}/*: one such file stops all of them"
            return broken(_few(unreadable), do)
        if refused:
            return broken(_few(refused), f"{_COUNTERSIGN}, or take it out of {self.folder}")
        count = len(directory.tasks) + len(directory.rosters)
        return ok(f"{count} under both signatures in {self.folder}")

    @check("signed", "tasks")
    def _look_at_tasks(self) -> Result:
        ends = {series: known.task.last_window for series, known in self._tasks.items()}
        if not ends:
            return broken("expected a task under both signatures, found none", _COUNTERSIGN)
        said = ", ".join(f"{series} until {_date(at)}" for series, at in ends.items())
        if all(at < self.now_s for at in ends.values()):
            return broken(f"every series is over: {said}", "sign a new version, or a new series")
        if any(self.now_s <= at < self.now_s + SOON_S for at in ends.values()):
            return absent(said, "sign what follows: a series ends within a week")
        return ok(said)

    @check("signed", "catalogue")
    def _look_at_catalogue(self) -> Result:
        own = self.catalogue_hash
        other = [s for s, known in self._tasks.items() if known.task.catalogue_hash != own]
        if other:
            line = f"{', '.join(other)}: of another catalogue than this party's"
            return absent(line, "sign tasks of this one once all agents read it: docs/upgrades.md")
        return ok("that of every task")

    @check("signed", "roster")
    def _look_at_roster(self) -> Result:
        roster = self._roster
        if roster is None:
            return broken(
                "expected a roster under both signatures, found none",
                "pointillist leader roster build, then pointillist helper countersign",
            )
        line = f"version {roster.version}, {len(roster):,} hosts"
        if roster.effective_from > self.now_s:
            return absent(f"{line}, from {_date(roster.effective_from)} on", "nothing: wait for it")
        if roster.roster.fleet is None:
            return absent(f"{line}, of no named fleet", "[fleet] in the plans file names the next")
        return ok(line)

    @check("signed", "cohorts")
    def _look_at_cohorts(self) -> Result:
        """Check that the hosts of the newest roster can reach what each task asks for."""
        roster, short, enough = self._roster, list[str](), list[str]()
        if roster is None:
            return absent("no roster to look at", "see roster")
        operators = len(Counter(entry.operator for entry in roster.entries.values()))
        for series, known in self._tasks.items():
            task, hosts = known.task, sum(roster.hosts(series).values())
            line = f"{series}: {hosts:,} hosts of n_min {task.n_min:,}"
            if operators < task.min_operators:
                line += f", {operators} operators of {task.min_operators}"
            fits = hosts >= task.n_min and operators >= task.min_operators
            (enough if fits else short).append(line)
        if short:
            return broken(_few(short), "nothing is released until hosts are enrolled")
        return ok(_few(enough))

    @check("signed", "operators")
    def _look_at_operators(self) -> Result | None:
        """Check that whoever vouched for hosts of the roster is pinned here."""
        pin = "put what `pointillist operator keygen` printed into helper.toml, got by another way"
        if self.pinned is None:
            return None
        roster = self._roster
        if not self.pinned:
            return broken("no [[operator]] is pinned: no new host is signed for", pin)
        hosts = roster.entries.values() if roster else ()
        strange = sorted({entry.operator for entry in hosts} - set(self.pinned))
        if strange:
            return absent(f"on the roster and not pinned: {_few(strange)}", pin)
        return ok(f"{len(self.pinned)} pinned")


def _date(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%MZ}"


def _few(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return "; ".join(lines[:_NAMED]) + more
