"""A party's transcript, from its state file or from an export: what it keeps about every release.

An export has what anybody may see: releases, a hash over the ids of each batch's reports, and of
suppressed windows the share, which is a sum of masks. No host's vector, no host or report id, no
key; but the ids that were asked for, and where the evidence of a window was asked for, its batch
and share: they name the hosts of that window to whoever gets the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from aggregator.state.state_file import Readable, StateUnusable, open_read_only
from wire.batch import Batch, SignedBatch, SignedRelease
from wire.fields import SIGNATURE_BYTES

from . import transcript_check
from .evidence import UnreleasedShare, WindowEvidence, accepted_ids, bitmap_of, cleared_of
from .transcript_check import (
    FORMAT,
    LINKS,
    SUPPRESSED,
    UNRELEASED,
    Link,
    Transcript,
    hash_of_ids,
)

MOST_VALUE_BYTES: Final = 128 << 20
"""Of one value in a party's state: a batch of 2^20 hosts is 72 MiB."""

MOST_STEPS: Final = 500_000_000
"""Of SQLite's machine, to read a party's state; two million releases take less than a fifth."""

_STEPS_AT_ONCE: Final = 1_000_000
_NO_STATE: Final = (*transcript_check.MALFORMED, sqlite3.Error, RecursionError, struct.error)
Windows = Callable[[str, int, int], bool]
"""Says of a place whether something is wanted of it."""


def no_window(_series: str, _cohort: int, _window: int) -> bool:
    return False


def every_window(_series: str, _cohort: int, _window: int) -> bool:
    return True


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
        try:
            return transcript_check.read_export(path)
        except transcript_check.TranscriptRefused as error:
            raise StateUnusable(f"{path}: {error}") from error
    try:
        return _from_state(path, evidence_of, ids_of)
    except _NO_STATE as error:
        raise StateUnusable(f"{path}: expected a party's state, got: {error}") from error


def read_leader_tables(
    tables: Readable, evidence_of: Windows = no_window, ids_of: Windows = every_window
) -> Transcript:
    """Read the transcript of a Leader's tables; as `read_transcript`, of its own database.

    Raises        StorageUnavailable, ReportRejected
    """
    links = tuple(_leader_links(tables, evidence_of, ids_of))
    shares = tuple(_suppressed_shares(tables))
    rows = tables.execute(
        "SELECT series, cohort, \"window\", reason FROM windows WHERE state = 'suppressed'"
    )
    suppressed = {(series, cohort, at): str(reason) for series, cohort, at, reason in rows}
    return Transcript(transcript_check.LEADER, links, shares, suppressed)


def transcript_file(path: Path, party: str) -> Path:
    """Give the file, or a folder's transcript of `leader` or `helper`; raises StateUnusable."""
    if not path.is_dir():
        return path
    names = [f"{party}.sqlite", f"{party}-transcript.json", f"{party}.json"]
    for name in names:
        if (path / name).is_file():
            return path / name
    raise StateUnusable(f"{path}: expected one of {', '.join(names)} in the folder, found none")


def _from_state(path: Path, evidence_of: Windows, ids_of: Windows) -> Transcript:
    with closing(open_read_only(path)) as connection:
        # Reading a stranger's file is bounded: its pages may name each other in a circle.
        left = iter(range(MOST_STEPS // _STEPS_AT_ONCE))
        connection.set_progress_handler(lambda: next(left, None) is None, _STEPS_AT_ONCE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        names = _stored_tables(connection)
        if "windows" in names:
            return read_leader_tables(connection, evidence_of, ids_of)
        if names >= {"chain", "answers"}:
            links = tuple(_helper_links(connection, evidence_of, ids_of))
            return Transcript(transcript_check.HELPER, links, tuple(_answered_shares(connection)))
    raise StateUnusable(f"{path}: expected the state of a Leader or Helper, got another file")


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


def _leader_links(connection: Readable, evidence_of: Windows, ids_of: Windows) -> Iterable[Link]:
    rows = connection.execute(
        'SELECT task_id, series, cohort, "window", entry FROM windows '
        "WHERE state = 'released' ORDER BY series, cohort, \"window\""
    )
    for task, series, cohort, window, entry in rows:
        place = transcript_check.place_of(series, cohort, window)
        release = SignedRelease.decode(entry)
        ids, evidence = None, None
        batch_hash, share_hash = release.release.batch_hash, release.release.share_hash
        if evidence_of(*place) or ids_of(*place):
            batch, share = connection.execute(
                "SELECT batch, share FROM windows "
                'WHERE task_id = ? AND cohort = ? AND "window" = ?',
                (task, cohort, window),
            ).fetchone()
            if batch is not None:
                signed = batch[:-SIGNATURE_BYTES], batch[-SIGNATURE_BYTES:]
                kept = WindowEvidence(*signed, share or b"")
                body = Batch.decode(kept.batch)
                batch_hash = body.hash()
                evidence = kept if evidence_of(*place) else None
                ids = accepted_ids(kept.batch, bitmap_of(share, body.n))
        yield Link(*place, release, batch_hash, share_hash, ids, evidence, hash_of_ids(ids))


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
        place = transcript_check.place_of(series, cohort, window)
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
                kept = WindowEvidence(body, b"", reply or b"", cleared_of(json.loads(cleared)))
                evidence = kept if evidence_of(*place) else None
        yield Link(*place, release, batch_hash, share_hash, ids, evidence, hash_of_ids(ids))


def _suppressed_shares(connection: Readable) -> Iterable[UnreleasedShare]:
    """Windows that a Leader suppressed for what their sum was."""
    rows = connection.execute(
        'SELECT series, cohort, "window", reason, batch, share FROM windows WHERE length(share) > 0'
        " AND batch IS NOT NULL AND state = 'suppressed' ORDER BY series, cohort, \"window\""
    )
    for series, cohort, window, reason, batch, share in rows:
        batch_hash = SignedBatch.decode(batch).batch.hash()
        share_hash = hashlib.sha256(share[:-SIGNATURE_BYTES]).digest()
        yield UnreleasedShare(series, cohort, window, reason, batch_hash, share_hash, share)


def _answered_shares(connection: sqlite3.Connection) -> Iterable[UnreleasedShare]:
    """Batches that a Helper answered and was asked to sign no release of."""
    rows = connection.execute(
        "SELECT answers.series, answers.cohort, answers.window, batch_hash, share_hash "
        "FROM answers LEFT JOIN chain ON answers.series = chain.series "
        "AND answers.cohort = chain.cohort AND answers.window = chain.window "
        "WHERE entry IS NULL AND share_hash IS NOT NULL "
        "ORDER BY answers.series, answers.cohort, answers.window"
    )
    for series, cohort, window, batch_hash, share_hash in rows:
        yield UnreleasedShare(series, cohort, window, "", batch_hash, share_hash)


def export_transcript(transcript: Transcript, path: Path, asked: Iterable[bytes] = ()) -> None:
    """Write a transcript for the other party or a host to check.

    asked       ids of reports of which it tells whether they are in a release; of no others
    """
    told = frozenset(asked)
    body = {
        "format": FORMAT,
        "party": transcript.party,
        LINKS: [_exported(link, told) for link in transcript.links],
        UNRELEASED: [answered.record() for answered in transcript.unreleased],
        SUPPRESSED: [[*place, reason] for place, reason in transcript.suppressed.items()],
    }
    # A share tells exactly how many hosts it is of.
    named = bool(told) or any(answered.share for answered in transcript.unreleased)
    named = named or any(link.evidence is not None for link in transcript.links)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if named else 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if named:  # also where the file was there
            os.fchmod(descriptor, 0o600)
        file.write(json.dumps(body, indent=1) + "\n")


def _exported(link: Link, asked: frozenset[bytes]) -> dict[str, Any]:
    told = ((report_id, link.says(report_id)) for report_id in sorted(asked))
    return {
        "series": link.series,
        "cohort": link.cohort,
        "window": link.window,
        "release": link.release.encode().hex(),
        "batch_hash": link.batch_hash.hex(),
        "share_hash": link.share_hash.hex(),
        "reports": None if link.reports is None else link.reports.hex(),
        "asked": {report_id.hex(): is_in for report_id, is_in in told if is_in is not None},
    } | ({} if link.evidence is None else {"evidence": link.evidence.export()})
