"""The transcript: what both parties signed about every release, and whether the two agree.

Each party keeps the chain in its state file. `export_transcript` writes what the other side may
see: releases, the random ids of the reports in each batch, and of suppressed windows the share,
which is a sum of masks. No host's vector, no host id, no key.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from privacy.signing import verify
from wire.batch import FIRST_PREV, Batch, SignedBatch, SignedRelease
from wire.ids import NO_SIGNATURE

from .directory import PinnedParties
from .state_file import StateUnusable, open_read_only
from .unreleased_shares import (
    UnreleasedShare,
    answered_shares,
    compare_unreleased,
    suppressed_shares,
)

FORMAT: Final = "pointillist-transcript-1"


@dataclass(frozen=True, slots=True)
class Link:
    """One release as one party keeps it.

    report_ids   16 B each, of the accepted hosts; None once the batch's body is a week old
    """

    series: str
    cohort: int
    window: int
    release: SignedRelease
    batch_hash: bytes
    share_hash: bytes
    report_ids: frozenset[bytes] | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """All chains of one party.

    unreleased    answered batches without a release; the Leader's, for a week
    """

    party: str
    links: tuple[Link, ...]
    unreleased: tuple[UnreleasedShare, ...] = ()

    def contains(self, report_id: bytes) -> Link | None:
        """The release that a report went into, as far as bodies are still kept."""
        for link in self.links:
            if link.report_ids is not None and report_id in link.report_ids:
                return link
        return None


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


def read_transcript(path: Path) -> Transcript:
    """Read a party's state file, or what `export_transcript` wrote.

    Raises      StateUnusable, ReportRejected, OSError
    """
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        return _from_state(path)
    return _from_export(path)


def _from_state(path: Path) -> Transcript:
    with closing(open_read_only(path)) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if "windows" in names:
            return Transcript(
                "leader", tuple(_leader_links(connection)), tuple(suppressed_shares(connection))
            )
        if "chain" in names:
            return Transcript(
                "helper", tuple(_helper_links(connection)), tuple(answered_shares(connection))
            )
    raise StateUnusable(f"{path}: expected the state of a Leader or Helper, got another file")


def _leader_links(connection: sqlite3.Connection) -> Iterable[Link]:
    rows = connection.execute(
        "SELECT series, cohort, window, entry, batch, share FROM windows "
        "WHERE state = 'released' ORDER BY series, cohort, window"
    )
    for series, cohort, window, entry, batch, share in rows:
        release = SignedRelease.decode(entry)
        ids = None
        batch_hash, share_hash = release.release.batch_hash, release.release.share_hash
        if batch is not None:
            body = SignedBatch.decode(batch).batch
            batch_hash = body.hash()
            ids = _accepted_ids(body, _bitmap_of(share, body.n))
        yield Link(series, cohort, window, release, batch_hash, share_hash, ids)


def _helper_links(connection: sqlite3.Connection) -> Iterable[Link]:
    rows = connection.execute(
        "SELECT chain.series, chain.cohort, chain.window, entry, batch_hash, share_hash, body, "
        "bitmap FROM chain JOIN answers ON answers.series = chain.series "
        "AND answers.cohort = chain.cohort AND answers.window = chain.window "
        "ORDER BY chain.series, chain.cohort, chain.window"
    )
    for series, cohort, window, entry, batch_hash, share_hash, body, bitmap in rows:
        release = SignedRelease.decode(entry)
        if release.release.batch_hash != batch_hash:
            continue  # the answer of another version of the task in the same window
        ids = None if body is None else _accepted_ids(Batch.decode(body), bitmap)
        yield Link(series, cohort, window, release, batch_hash, share_hash, ids)


def _bitmap_of(share: bytes | None, n: int) -> bytes:
    """The accepted hosts; all of them in scheme `local`, which has no share."""
    if not share:
        return b"\xff" * ((n + 7) // 8)
    return share[52 : 52 + (n + 7) // 8]


def _accepted_ids(batch: Batch, bitmap: bytes) -> frozenset[bytes]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[: batch.n]
    ids: list[bytes] = batch.entries["report_id"][bits.astype(np.bool_)].tolist()
    return frozenset(ids)


def export_transcript(transcript: Transcript, path: Path) -> None:
    """Write a transcript for the other party or a host to check."""
    links = [
        {
            "series": link.series,
            "cohort": link.cohort,
            "window": link.window,
            "release": link.release.encode().hex(),
            "batch_hash": link.batch_hash.hex(),
            "share_hash": link.share_hash.hex(),
            "report_ids": None
            if link.report_ids is None
            else sorted(report_id.hex() for report_id in link.report_ids),
        }
        for link in transcript.links
    ]
    unreleased = [answered.record() for answered in transcript.unreleased]
    body = {"format": FORMAT, "party": transcript.party, "links": links, "unreleased": unreleased}
    path.write_text(json.dumps(body, indent=1) + "\n")


def _from_export(path: Path) -> Transcript:
    try:
        body = json.loads(path.read_text())
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        links = tuple(_link(raw) for raw in body["links"])
        unreleased = tuple(UnreleasedShare.of_record(raw) for raw in body.get("unreleased", []))
        return Transcript(str(body["party"]), links, unreleased)
    except (ValueError, KeyError, TypeError) as error:
        raise StateUnusable(f"{path}: expected a transcript, got: {error}") from error


def _link(raw: dict[str, Any]) -> Link:
    ids = raw["report_ids"]
    return Link(
        str(raw["series"]),
        int(raw["cohort"]),
        int(raw["window"]),
        SignedRelease.decode(bytes.fromhex(raw["release"])),
        bytes.fromhex(raw["batch_hash"]),
        bytes.fromhex(raw["share_hash"]),
        None if ids is None else frozenset(bytes.fromhex(text) for text in ids),
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
