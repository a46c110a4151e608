"""Checks of signed_dir: tasks and roster under both signatures, fresh, and fit to release."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aggregator.enrolment.operators import OperatorKeys
from aggregator.protocol.directory import Directory, KnownTask, PinnedParties, VerifiedRoster
from transport.process.doctor_findings import Check, Finding
from wire.rejection import ReportRejected

from .finding_of import FindingOf

SOON_S: Final = 7 * 86_400
_NAMED: Final = 3
_COUNTERSIGN: Final = "have it signed: `pointillist task sign`, `pointillist helper countersign`"


@dataclass(frozen=True, slots=True)
class SignedFiles:
    """What a party would take up of its signed_dir.

    unreadable, refused   files, and why
    """

    directory: Directory
    unreadable: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def tasks(self) -> dict[str, KnownTask]:
        """The newest task of each series."""
        found = sorted(self.directory.tasks.values(), key=lambda known: known.task.version)
        return {known.task.series: known for known in found}

    @property
    def roster(self) -> VerifiedRoster | None:
        """The newest roster."""
        rosters = self.directory.rosters
        return rosters[max(rosters)] if rosters else None


def read_signed(folder: Path, parties: PinnedParties, now_s: float) -> SignedFiles:
    """Read a signed_dir as the party does.

    Raises      OSError where the folder itself cannot be read
    """
    directory = Directory(parties)
    unreadable, refused = [], []
    names = sorted(folder.iterdir())
    for path in [p for end in (".task", ".roster") for p in names if p.suffix == end]:
        try:
            content = path.read_bytes()
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
            continue
        try:
            if path.suffix == ".task":
                directory.add_task(content, now_s, at_start=True)
            else:
                directory.add_roster(content)
        except ReportRejected as error:
            refused.append(f"{path.name}: {error}")
    return SignedFiles(directory, tuple(unreadable), tuple(refused))


def signed_checks(
    folder: Path,
    parties: PinnedParties,
    catalogue_hash: bytes,
    pinned: OperatorKeys | None = None,
    now_s: float | None = None,
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks of a signed_dir.

    pinned      the Helper's operators; None for a Leader, whose plans file has them
    """
    now_s = time.time() if now_s is None else now_s

    def read() -> SignedFiles:
        return read_signed(folder, parties, now_s)

    yield "signed", "files", lambda: _files(folder, read())
    yield "signed", "tasks", lambda: _tasks(read(), now_s)
    yield "signed", "catalogue", lambda: _catalogue(read(), catalogue_hash)
    yield "signed", "roster", lambda: _roster(read(), now_s)
    yield "signed", "cohorts", lambda: _cohorts(read())
    if pinned is not None:
        yield "signed", "operators", lambda: _operators(read(), pinned)


def _files(folder: Path, signed: SignedFiles) -> Finding:
    told = FindingOf("signed", "files")
    if signed.unreadable:
        return told.broken(
            _few(signed.unreadable), f"chmod a+r {folder}/*: one such file stops all of them"
        )
    if signed.refused:
        return told.broken(_few(signed.refused), f"{_COUNTERSIGN}, or take it out of {folder}")
    count = len(signed.directory.tasks) + len(signed.directory.rosters)
    return told.ok(f"{count} under both signatures in {folder}")


def _tasks(signed: SignedFiles, now_s: float) -> Finding:
    told = FindingOf("signed", "tasks")
    if not signed.tasks:
        return told.broken("expected a task under both signatures, found none", _COUNTERSIGN)
    ends = {series: known.task.last_window for series, known in signed.tasks.items()}
    said = ", ".join(f"{series} until {_date(at)}" for series, at in ends.items())
    if all(at < now_s for at in ends.values()):
        return told.broken(f"every series is over: {said}", "sign a new version, or a new series")
    if any(now_s <= at < now_s + SOON_S for at in ends.values()):
        return told.absent(said, "sign what follows: a series ends within a week")
    return told.ok(said)


def _catalogue(signed: SignedFiles, catalogue_hash: bytes) -> Finding:
    told = FindingOf("signed", "catalogue")
    other = [s for s, k in signed.tasks.items() if k.task.catalogue_hash != catalogue_hash]
    if other:
        line = f"{', '.join(other)}: of another catalogue than this party's"
        return told.absent(line, "let both parties and the agents have one version")
    return told.ok("that of every task")


def _roster(signed: SignedFiles, now_s: float) -> Finding:
    told = FindingOf("signed", "roster")
    roster = signed.roster
    if roster is None:
        return told.broken(
            "expected a roster under both signatures, found none",
            "pointillist leader roster build, then pointillist helper countersign",
        )
    line = f"version {roster.version}, {len(roster):,} hosts"
    if roster.effective_from > now_s:
        return told.absent(
            f"{line}, from {_date(roster.effective_from)} on", "nothing: wait for it"
        )
    return told.ok(line)


def _cohorts(signed: SignedFiles) -> Finding:
    """Check that the hosts of the newest roster can reach what each task asks for."""
    told = FindingOf("signed", "cohorts")
    if signed.roster is None:
        return told.absent("no roster to look at", "see roster")
    short: list[str] = []
    enough: list[str] = []
    for series, known in signed.tasks.items():
        task = known.task
        hosts = sum(signed.roster.hosts(series).values())
        line = f"{series}: {hosts:,} hosts of n_min {task.n_min:,}"
        operators = len(Counter(entry.operator for entry in signed.roster.entries.values()))
        if operators < task.min_operators:
            line += f", {operators} operators of {task.min_operators}"
        fits = hosts >= task.n_min and operators >= task.min_operators
        (enough if fits else short).append(line)
    if short:
        return told.broken(_few(short), "nothing is released until hosts are enrolled")
    return told.ok(_few(enough))


def _operators(signed: SignedFiles, pinned: OperatorKeys) -> Finding:
    """Check that whoever vouched for hosts of the roster is pinned here."""
    told = FindingOf("signed", "operators")
    pin = "put what `pointillist operator keygen` printed into helper.toml, got by another way"
    if not pinned:
        return told.broken("no [[operator]] is pinned: no new host is signed for", pin)
    hosts = signed.roster.entries.values() if signed.roster else ()
    strange = sorted({entry.operator for entry in hosts} - set(pinned))
    if strange:
        return told.absent(f"on the roster and not pinned: {_few(strange)}", pin)
    return told.ok(f"{len(pinned)} pinned")


def _date(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%MZ}"


def _few(lines: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return "; ".join(lines[:_NAMED]) + more
