"""What the Helper must never forget: answers, the hosts they used, epochs seen, and its fence.

A commit first compares the fence, so of two live Helpers on one state the older cannot answer. A
state restored from a backup is behind the counts of a small side file: then every window that had
closed is refused. Both restored together look sound, so answers and releases make a chain for a
witness.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import (
    BODY_RETENTION_S,
    HOST_ID_BYTES,
    BatchKey,
    CommittedAnswer,
)
from aggregator.state import state_file
from aggregator.state.state_file import COUNTERS, KEEP_COUNTER, transaction, write_durably
from aggregator.witness import chain as helper_links
from aggregator.witness.chain import LINK_TABLES
from wire.batch import SignedRelease
from wire.witness import ChainHead, ChainLink, LinkKind, answer_item

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS fence (one INTEGER PRIMARY KEY CHECK (one = 1),
    fence INTEGER NOT NULL, commits INTEGER NOT NULL, refuse_before_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS answers (task_id BLOB, cohort INTEGER, window INTEGER,
    series TEXT NOT NULL, batch_hash BLOB NOT NULL, bitmap BLOB NOT NULL,
    n_batch INTEGER NOT NULL, rejections TEXT NOT NULL, committed_s INTEGER NOT NULL,
    body BLOB, used BLOB, reply BLOB, share_hash BLOB,
    PRIMARY KEY (task_id, cohort, window)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answers_series ON answers (series, window);
CREATE INDEX IF NOT EXISTS answers_hash ON answers (batch_hash);
CREATE TABLE IF NOT EXISTS epochs (host_id BLOB, epoch_id BLOB, epoch_hash BLOB NOT NULL,
    not_before INTEGER NOT NULL, not_after INTEGER NOT NULL, ledger_ctr INTEGER NOT NULL,
    dead INTEGER NOT NULL, PRIMARY KEY (host_id, epoch_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (host_id BLOB PRIMARY KEY, ledger_ctr INTEGER NOT NULL,
    not_before INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chain (series TEXT, cohort INTEGER, window INTEGER,
    entry BLOB NOT NULL, PRIMARY KEY (series, cohort, window)) WITHOUT ROWID
"""


class FencedOut(Exception):
    """A newer Helper holds this state; this one must stop."""


class HelperState:
    def __init__(
        self, path: Path, fence_path: Path, now_s: float, *, linked_as: bytes | None = None
    ) -> None:
        """Take the state over from any older Helper.

        now_s       unix seconds; a restore found now refuses windows that ended before it
        linked_as   identity whose answers and releases are chained for a witness; None: no chain
        Raises      StateUnusable
        """
        self._fence_path, self._linked_as = fence_path, linked_as
        self._db = state_file.open_state(path, _SCHEMA + LINK_TABLES)
        self.fence, self.refuse_before_s = self._take_over(now_s)
        """Windows that ended by then are refused: set at a restore."""

    def _take_over(self, now_s: float) -> tuple[int, int]:
        side = _read_side(self._fence_path)
        with transaction(self._db) as connection:
            row = connection.execute("SELECT fence, commits, refuse_before_s FROM fence").fetchone()
            fence, commits, refuse_before_s = row or (0, 0, 0)
            fresh = row is None and side is None
            behind = side is not None and commits < side[1]
            if behind or (not fresh and (row is None or side is None)):
                refuse_before_s = max(refuse_before_s, math.ceil(now_s))
            fence = max(fence, side[0] if side else 0) + 1
            commits = max(commits, side[1] if side else 0)
            connection.execute(
                "INSERT OR REPLACE INTO fence VALUES (1, ?, ?, ?)",
                (fence, commits, refuse_before_s),
            )
        _write_side(self._fence_path, fence, commits)
        return fence, refuse_before_s

    def answer(self, key: BatchKey) -> CommittedAnswer | None:
        return self._answer("task_id = ? AND cohort = ? AND window = ?", astuple(key))

    def answer_of_hash(self, batch_hash: bytes) -> CommittedAnswer | None:
        return self._answer("batch_hash = ?", (batch_hash,))

    def _answer(self, where: str, values: tuple[Any, ...]) -> CommittedAnswer | None:
        row = self._first(f"SELECT * FROM answers WHERE {where}", values)  # noqa: S608
        if row is None:
            return None
        task_id, cohort, window, series, batch_hash, bitmap, n_batch, rejections, *rest = row
        key, reasons = BatchKey(task_id, cohort, window), json.loads(rejections)
        return CommittedAnswer(key, series, batch_hash, bitmap, n_batch, reasons, *rest)

    def used_hosts(self, series: str, window: int) -> frozenset[bytes]:
        """Hosts already counted in this window of the series, in any version and cohort."""
        rows = self._db.execute(
            "SELECT used FROM answers WHERE series = ? AND window = ?", (series, window)
        )
        return frozenset(
            used[at : at + HOST_ID_BYTES]
            for (used,) in rows
            if used is not None
            for at in range(0, len(used), HOST_ID_BYTES)
        )

    def commit(self, answer: CommittedAnswer, closed_s: int) -> None:
        """Make a verdict final, in one fenced transaction, then count it beside the state.

        closed_s    end of the window
        Raises      FencedOut when a newer Helper took over, StateUnusable when the window was
                    answered meanwhile
        """
        with self._changing() as commits:
            try:
                self._db.execute(
                    "INSERT INTO answers VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", _row(answer)
                )
            except sqlite3.IntegrityError as error:
                raise state_file.StateUnusable(
                    "window answered by another commit; restart"
                ) from error
            self._db.execute("UPDATE fence SET commits = ?", (commits + 1,))
            item = answer_item(answer.batch_hash, answer.bitmap)
            self._link(LinkKind.ANSWER, item, closed_s)
        _write_side(self._fence_path, self.fence, commits + 1)

    def _link(self, kind: LinkKind, item: bytes, closed_s: int = 0) -> None:
        if self._linked_as is not None:
            helper_links.make(self._db, self._linked_as, kind, item, closed_s)

    @contextmanager
    def _changing(self) -> Iterator[int]:
        """Change, unless a newer Helper is live; gives the commits so far."""
        with transaction(self._db) as connection:
            yield self._fenced(connection)

    def _first(self, sql: str, values: tuple[Any, ...]) -> Any:
        return self._db.execute(sql, values).fetchone()

    def chain_end(self) -> ChainHead:
        return helper_links.newest(self._db)

    def links_after(self, sequence: int) -> list[ChainLink | None]:
        """The links above a sequence, in order; None for one that only the witness ever had."""
        return list(helper_links.after(self._db, sequence))

    def passed_through(self, head: ChainHead) -> bool:
        return helper_links.holds(self._db, head)

    def restored(self, now_s: float, head: ChainHead) -> None:
        """Refuse every window that ended by now or by the witness's word, and go on from its head.

        A chain that the witness's is the beginning of is kept.
        """
        with self._changing():
            closed_s = max(head.closed_s, helper_links.newest(self._db).closed_s, math.ceil(now_s))
            if not helper_links.holds(self._db, head):
                helper_links.go_on_from(self._db, head)
            self._db.execute(
                "UPDATE fence SET refuse_before_s = max(refuse_before_s, ?)", (closed_s,)
            )
        self.refuse_before_s = max(self.refuse_before_s, closed_s)

    def keep_reply(self, key: BatchKey, reply: bytes, share_hash: bytes) -> None:
        with self._changing():
            self._db.execute(
                "UPDATE answers SET reply = ?, share_hash = ? WHERE task_id = ? AND cohort = ? "
                "AND window = ? AND reply IS NULL",
                (reply, share_hash, key.task_id, key.cohort, key.window),
            )

    def keep_epochs(
        self, epochs: Iterable[KnownEpoch], counters: Mapping[bytes, tuple[int, int]]
    ) -> None:
        with self._changing():
            self._db.executemany(
                "INSERT INTO epochs VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
                "dead = max(dead, excluded.dead)",
                [
                    (
                        *(epoch.host_id, epoch.epoch_id, epoch.epoch_hash, epoch.not_before),
                        *(epoch.not_after, epoch.ledger_ctr, int(epoch.dead)),
                    )
                    for epoch in epochs
                ],
            )
            self._db.executemany(KEEP_COUNTER, [(h, *mark) for h, mark in counters.items()])

    def epochs(self) -> Iterator[KnownEpoch]:
        for h, e, eh, nb, na, ctr, dead in self._db.execute("SELECT * FROM epochs"):
            yield KnownEpoch(h, e, eh, nb, na, ctr, bool(dead))

    def counters(self) -> dict[bytes, tuple[int, int]]:
        return {host: (ctr, begun_s) for host, ctr, begun_s in self._db.execute(COUNTERS)}

    def chain(self, series: str, cohort: int) -> list[tuple[int, bytes]]:
        return list(
            self._db.execute(
                "SELECT window, entry FROM chain WHERE series = ? AND cohort = ? ORDER BY window",
                (series, cohort),
            )
        )

    def chain_entry(self, series: str, cohort: int, window: int) -> bytes | None:
        of = "SELECT entry FROM chain WHERE series = ? AND cohort = ? AND window = ?"
        row = self._first(of, (series, cohort, window))
        return None if row is None else bytes(row[0])

    def entry_of_batch(self, batch_hash: bytes) -> bytes | None:
        """The countersigned release of this very batch; bodies of batches are not read for it."""
        row = self._first(
            "SELECT entry FROM answers JOIN chain USING (series, cohort, window) "
            "WHERE batch_hash = ?",
            (batch_hash,),
        )
        return None if row is None else bytes(row[0])

    def chain_head(self, series: str, cohort: int) -> tuple[int, bytes] | None:
        found: tuple[int, bytes] | None = self._first(
            "SELECT window, entry FROM chain WHERE series = ? AND cohort = ? "
            "ORDER BY window DESC LIMIT 1",
            (series, cohort),
        )
        return found

    def keep_release(self, series: str, cohort: int, window: int, entry: bytes) -> None:
        """Append a countersigned release to its chain, and count it beside the state.

        The first entry of a window stays.
        """
        with self._changing() as before:
            commits = before
            kept = self._db.execute(
                "INSERT OR IGNORE INTO chain VALUES (?,?,?,?)", (series, cohort, window, entry)
            )
            if kept.rowcount:
                commits = before + 1
                self._db.execute("UPDATE fence SET commits = ?", (commits,))
                release = SignedRelease.decode(entry).release
                self._link(LinkKind.RELEASE, release.hash())
        _write_side(self._fence_path, self.fence, commits)

    def prune(self, now_s: float, epoch_retention_s: int) -> None:
        with self._changing():
            self._db.execute(
                "UPDATE answers SET body = NULL, used = NULL "
                "WHERE committed_s < ? AND body IS NOT NULL",
                (int(now_s) - BODY_RETENTION_S,),
            )
            self._db.execute(
                "DELETE FROM epochs WHERE not_after <= ?", (int(now_s) - epoch_retention_s,)
            )

    def counts(self) -> dict[str, int]:
        tables = {"answers": "answers", "epochs": "epochs", "releases": "chain"}
        return {
            name: self._first(f"SELECT count(*) FROM {table}", ())[0]  # noqa: S608
            for name, table in tables.items()
        }

    def close(self) -> None:
        self._db.close()

    def check_writable(self) -> None:
        """Make sure that the disk takes a commit. Raises StorageUnavailable, FencedOut."""
        with self._changing() as commits:
            self._db.execute("UPDATE fence SET commits = ?", (commits,))

    def _fenced(self, connection: sqlite3.Connection) -> int:
        fence, commits = connection.execute("SELECT fence, commits FROM fence").fetchone()
        side = _read_side(self._fence_path)
        newest = max(fence, side[0] if side else 0)
        if newest != self.fence:
            raise FencedOut(f"expected fence {self.fence}, got {newest}: a newer Helper is live")
        if side is not None and side[1] < commits:  # a full disk held its count up
            _write_side(self._fence_path, fence, commits)
        return int(commits)


def _row(answer: CommittedAnswer) -> tuple[object, ...]:
    key, series, batch_hash, bitmap, n_batch, rejections, *rest = astuple(answer)
    reasons = json.dumps(rejections, sort_keys=True)
    return *key, series, batch_hash, bitmap, n_batch, reasons, *rest


def _read_side(path: Path) -> tuple[int, int] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return int(record["fence"]), int(record["commits"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise state_file.StateUnusable(f"{path}: expected a fence file, got {error}") from error


def _write_side(path: Path, fence: int, commits: int) -> None:
    write_durably(path, json.dumps({"fence": fence, "commits": commits}).encode())
