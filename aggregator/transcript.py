"""The transcript: what both parties signed about every release, and whether the two agree.

Each party keeps the chain in its state file. `export_transcript` writes what the other side may
see: releases, the random ids of the reports in each batch, and of suppressed windows the share,
which is a sum of masks. No host's vector, no host id, no key; but where the evidence of a window
was asked for, its batch and share: they name the hosts of that window to whoever gets the file.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from privacy.signing import verify
from wire.batch import FIRST_PREV, SignedRelease
from wire.ids import NO_SIGNATURE

from .directory import PinnedParties
from .state_file import StateUnusable, open_read_only
from .unreleased_shares import (
    UnreleasedShare,
    answered_shares,
    compare_unreleased,
    suppressed_shares,
)
from .window_evidence import WindowEvidence, accepted_ids, bitmap_of

FORMAT: Final = "pointillist-transcript-1"
MOST_EXPORT_BYTES: Final = 512 << 20
"""A week of a minute's ids of 1,000 hosts is 350 MiB; with all of it in memory, a bound of it."""
MOST_VALUE_BYTES: Final = 128 << 20
"""Of one value in a party's state: a batch of 2^20 hosts is 72 MiB."""

MOST_STEPS: Final = 500_000_000
"""Of SQLite's machine, to read a party's state; two million releases take less than a fifth."""

_STEPS_AT_ONCE: Final = 1_000_000
_NOT_AN_EXPORT: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
Place = tuple[str, int, int]
"""Series, cohort and window start."""
Windows = Callable[[str, int, int], bool]
"""Says of a place whether something is wanted of it."""


def no_window(_series: str, _cohort: int, _window: int) -> bool:
    """Want nothing of any window."""
    return False


def every_window(_series: str, _cohort: int, _window: int) -> bool:
    """Want it of every window."""
    return True


@dataclass(frozen=True, slots=True)
class Link:
    """One release as one party keeps it.

    report_ids   16 B each, of the accepted hosts; None once the batch's body is a week old
    evidence     batch and share; None where they were not asked for, or are a week old
    """

    series: str
    cohort: int
    window: int
    release: SignedRelease
    batch_hash: bytes
    share_hash: bytes
    report_ids: frozenset[bytes] | None
    evidence: WindowEvidence | None = None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.series, self.cohort, self.window


@dataclass(frozen=True, slots=True)
class Transcript:
    """All chains of one party.

    unreleased   answered batches without a release; the Leader's, for a week
    suppressed   windows that were settled without a release, and why: the Leader's word, unsigned
    """

    party: str
    links: tuple[Link, ...]
    unreleased: tuple[UnreleasedShare, ...] = ()
    suppressed: Mapping[Place, str] = field(default_factory=lambda: MappingProxyType({}))

    def contains(self, report_id: bytes) -> Link | None:
        """The release that a report went into, as far as bodies are still kept."""
        for link in self.links:
            if link.report_ids is not None and report_id in link.report_ids:
                return link
        return None

    def links_of(self, place: Place) -> list[Link]:
        """The releases of one window; one, but where a task changed its version in it."""
        return [link for link in self.links if link.place == place]


@dataclass(slots=True)
class TranscriptVerdict:
    """What `verify_transcripts` found; sound when `problems` is empty."""

    releases: int = 0
    chains: int = 0
    unsigned: int = 0
    unreleased: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether both chains agree."""
        return not self.problems


def read_transcript(
    path: Path, *, evidence_of: Windows = no_window, ids_of: Windows = every_window
) -> Transcript:
    """Read a party's state file, or what `export_transcript` wrote; either may be a stranger's.

    evidence_of   of which windows batch and share are read
    ids_of        of which windows the ids of the accepted reports are read
    Raises        StateUnusable, ReportRejected, OSError
    """
    with path.open("rb") as file:
        head = file.read(16)
    if not head.startswith(b"SQLite format 3"):
        return _from_export(path)
    try:
        return _from_state(path, evidence_of, ids_of)
    except (sqlite3.Error, TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
        raise StateUnusable(f"{path}: expected a party's state, got: {error}") from error


def transcript_file(path: Path, party: str) -> Path:
    """Give the transcript of `leader` or `helper` in a folder; a file stands for itself.

    Raises      StateUnusable
    """
    if not path.is_dir():
        return path
    names = [f"{party}.sqlite", f"{party}-transcript.json", f"{party}.json"]
    for name in names:
        if (path / name).is_file():
            return path / name
    raise StateUnusable(f"{path}: expected one of {', '.join(names)} in the folder, found none")


def _from_state(path: Path, evidence_of: Windows, ids_of: Windows) -> Transcript:
    with closing(open_read_only(path)) as connection:
        _hold_back(connection)
        names = _stored_tables(connection)
        if "windows" in names:
            links = tuple(_leader_links(connection, evidence_of, ids_of))
            shares = tuple(suppressed_shares(connection))
            return Transcript("leader", links, shares, _suppressed(connection))
        if names >= {"chain", "answers"}:
            links = tuple(_helper_links(connection, evidence_of, ids_of))
            return Transcript("helper", links, tuple(answered_shares(connection)))
    raise StateUnusable(f"{path}: expected the state of a Leader or Helper, got another file")


def _hold_back(connection: sqlite3.Connection) -> None:
    """Bound what reading a stranger's file takes: its pages may name each other in a circle."""
    left = iter(range(MOST_STEPS // _STEPS_AT_ONCE))
    connection.set_progress_handler(lambda: next(left, None) is None, _STEPS_AT_ONCE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")


def _stored_tables(connection: sqlite3.Connection) -> set[str]:
    """Name the tables whose rows lie in the file as they are.

    A view, or a column that is worked out, is a program of whoever made the file: 4 KiB of it can
    run without an end.
    """
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND NOT EXISTS "
        "(SELECT 1 FROM pragma_table_xinfo(sqlite_master.name) WHERE hidden > 0)"
    )
    return {str(name) for (name,) in rows}


def _suppressed(connection: sqlite3.Connection) -> dict[Place, str]:
    rows = connection.execute(
        "SELECT series, cohort, window, reason FROM windows WHERE state = 'suppressed'"
    )
    return {(series, cohort, window): str(reason) for series, cohort, window, reason in rows}


def _leader_links(
    connection: sqlite3.Connection, evidence_of: Windows, ids_of: Windows
) -> Iterable[Link]:
    rows = connection.execute(
        "SELECT task_id, series, cohort, window, entry FROM windows "
        "WHERE state = 'released' ORDER BY series, cohort, window"
    )
    for task, series, cohort, window, entry in rows:
        place: Place = series, cohort, window
        release = SignedRelease.decode(entry)
        ids, evidence = None, None
        batch_hash, share_hash = release.release.batch_hash, release.release.share_hash
        if evidence_of(*place) or ids_of(*place):
            batch, share = connection.execute(
                "SELECT batch, share FROM windows WHERE task_id = ? AND cohort = ? AND window = ?",
                (task, cohort, window),
            ).fetchone()
            if batch is not None:
                kept = WindowEvidence.of_leader(batch, share)
                body = kept.decoded_batch()
                batch_hash = body.hash()
                evidence = kept if evidence_of(*place) else None
                ids = accepted_ids(kept.batch, bitmap_of(share, body.n))
        yield Link(*place, release, batch_hash, share_hash, ids, evidence)


def _helper_links(
    connection: sqlite3.Connection, evidence_of: Windows, ids_of: Windows
) -> Iterable[Link]:
    rows = connection.execute(
        "SELECT task_id, chain.series, chain.cohort, chain.window, entry, batch_hash, share_hash "
        "FROM chain JOIN answers ON answers.series = chain.series "
        "AND answers.cohort = chain.cohort AND answers.window = chain.window "
        "ORDER BY chain.series, chain.cohort, chain.window"
    )
    for task, series, cohort, window, entry, batch_hash, share_hash in rows:
        place: Place = series, cohort, window
        release = SignedRelease.decode(entry)
        if release.release.batch_hash != batch_hash:
            continue  # the answer of another version of the task in the same window
        ids, evidence = None, None
        if evidence_of(*place) or ids_of(*place):
            body, bitmap, reply, cleared = connection.execute(
                "SELECT body, bitmap, reply, rejections FROM answers "
                "WHERE task_id = ? AND cohort = ? AND window = ?",
                (task, cohort, window),
            ).fetchone()
            if body is not None:
                ids = accepted_ids(body, bitmap)
                kept = WindowEvidence(body, b"", reply or b"", json.loads(cleared))
                evidence = kept if evidence_of(*place) else None
        yield Link(*place, release, batch_hash, share_hash, ids, evidence)


def export_transcript(transcript: Transcript, path: Path) -> None:
    """Write a transcript for the other party or a host to check."""
    body = {
        "format": FORMAT,
        "party": transcript.party,
        "links": [_exported(link) for link in transcript.links],
        "unreleased": [answered.record() for answered in transcript.unreleased],
        "suppressed": [[*place, reason] for place, reason in transcript.suppressed.items()],
    }
    path.write_text(json.dumps(body, indent=1) + "\n")


def _exported(link: Link) -> dict[str, Any]:
    ids = link.report_ids
    return {
        "series": link.series,
        "cohort": link.cohort,
        "window": link.window,
        "release": link.release.encode().hex(),
        "batch_hash": link.batch_hash.hex(),
        "share_hash": link.share_hash.hex(),
        "report_ids": None if ids is None else sorted(report_id.hex() for report_id in ids),
    } | ({} if link.evidence is None else {"evidence": link.evidence.export()})


def _from_export(path: Path) -> Transcript:
    size = path.stat().st_size
    if size > MOST_EXPORT_BYTES:
        raise StateUnusable(f"{path}: expected at most {MOST_EXPORT_BYTES} bytes, got {size}")
    try:
        body = json.loads(path.read_text())
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        links = tuple(_link(raw) for raw in body["links"])
        suppressed = {
            (str(series), int(cohort), int(window)): str(reason)
            for series, cohort, window, reason in body.get("suppressed", ())
        }
        unreleased = tuple(UnreleasedShare.of_record(raw) for raw in body.get("unreleased", []))
        return Transcript(str(body["party"]), links, unreleased, suppressed)
    except _NOT_AN_EXPORT as error:
        found = str(error) or type(error).__name__
        raise StateUnusable(f"{path}: expected a transcript, got: {found}") from error


def _link(raw: dict[str, Any]) -> Link:
    ids, evidence = raw["report_ids"], raw.get("evidence")
    return Link(
        str(raw["series"]),
        int(raw["cohort"]),
        int(raw["window"]),
        SignedRelease.decode(bytes.fromhex(raw["release"])),
        bytes.fromhex(raw["batch_hash"]),
        bytes.fromhex(raw["share_hash"]),
        None if ids is None else frozenset(bytes.fromhex(text) for text in ids),
        None if evidence is None else WindowEvidence.of_export(evidence),
    )


def verify_transcripts(
    leader: Transcript, helper: Transcript, parties: PinnedParties
) -> TranscriptVerdict:
    """Check both chains and that they are one.

    A release that the Helper has not signed yet is counted, and is no problem at a chain's end.
    """
    verdict = TranscriptVerdict()
    theirs = _by_chain(helper)
    ours = _by_chain(leader)
    verdict.chains = len(ours)
    for name, links in ours.items():
        _check_chain("leader", name, links, parties, verdict)
        _compare(name, links, theirs.get(name, []), verdict)
        verdict.releases += len(links)
    for name, links in theirs.items():
        _check_chain("helper", name, links, parties, verdict)
        if name not in ours:
            verdict.problems.append(f"{name}: the Helper has a chain that the Leader lacks")
    verdict.unreleased = len(leader.unreleased)
    verdict.problems += compare_unreleased(leader.unreleased, helper.unreleased, parties.helper_pk)
    return verdict


def _by_chain(transcript: Transcript) -> dict[str, list[Link]]:
    chains: dict[str, list[Link]] = {}
    for link in transcript.links:
        chains.setdefault(f"{link.series}/{link.cohort}", []).append(link)
    for links in chains.values():
        links.sort(key=lambda link: link.window)
    return chains


def _check_chain(
    party: str, name: str, links: list[Link], parties: PinnedParties, verdict: TranscriptVerdict
) -> None:
    prev = FIRST_PREV
    for link in links:
        where = f"{name} window {link.window} ({party})"
        release, signed = link.release.release, link.release
        if release.prev != prev:
            verdict.problems.append(f"{where}: the chain is broken")
        if (release.batch_hash, release.share_hash) != (link.batch_hash, link.share_hash):
            verdict.problems.append(f"{where}: the release names another batch or share")
        if not verify(parties.leader_pk, release.unsigned(), signed.sig_leader):
            verdict.problems.append(f"{where}: the Leader's signature does not hold")
        if signed.sig_helper == NO_SIGNATURE and party == "leader":
            verdict.unsigned += 1
        elif not verify(parties.helper_pk, release.unsigned(), signed.sig_helper):
            verdict.problems.append(f"{where}: the Helper's signature does not hold")
        prev = release.hash()


def _compare(name: str, ours: list[Link], theirs: list[Link], verdict: TranscriptVerdict) -> None:
    kept = {link.window: link for link in theirs}
    for link in ours:
        other = kept.pop(link.window, None)
        where = f"{name} window {link.window}"
        if other is None:
            if link.release.sig_helper != NO_SIGNATURE:
                verdict.problems.append(f"{where}: the Helper has no such release")
        elif other.release.release != link.release.release:
            verdict.problems.append(f"{where}: the two parties signed different releases")
        elif None not in (other.report_ids, link.report_ids) and (
            other.report_ids != link.report_ids
        ):
            verdict.problems.append(f"{where}: the two parties name different reports")
    for window in kept:
        verdict.problems.append(f"{name} window {window}: the Leader has no such release")


def find_report(transcripts: Iterable[Transcript], report_id: bytes) -> dict[str, Link | None]:
    """In which release of each party a report is."""
    return {transcript.party: transcript.contains(report_id) for transcript in transcripts}


__all__ = [
    "Link",
    "Transcript",
    "TranscriptVerdict",
    "export_transcript",
    "find_report",
    "read_transcript",
    "verify_transcripts",
]
