"""What the Helper must never forget: answers, the hosts they used, epochs seen, and its fence.

One answer per (task, cohort, window) for ever. A commit is one immediate transaction that first
compares the fence, so of two live Helpers on one state the older cannot answer. A small side file
counts answers and releases: a state restored from a backup is behind it, and then every window that
had closed by the restore is refused. Two files restored together, as a snapshot of the whole
machine does, look sound by themselves: answers and releases make a chain for a witness.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import BODY_RETENTION_S, HOST_ID_BYTES, Answer, BatchKey
from aggregator.state.state_file import (
    COUNTERS,
    KEEP_COUNTER,
    StateUnusable,
    open_state,
    transaction,
    write_durably,
)
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
        Raises      StateUnusable, TransportUnavailable never
        """
        self._path, self._fence_path, self._linked_as = path, fence_path, linked_as
        self._connection = open_state(path, _SCHEMA + LINK_TABLES)
        self.fence, self._refuse_before_s = self._take_over(now_s)

    @property
    def refuse_before_s(self) -> int:
        """Windows that ended by then are refused: set at a restore."""
        return self._refuse_before_s

    def _take_over(self, now_s: float) -> tuple[int, int]:
        side = _read_side(self._fence_path)
        with transaction(self._connection) as connection:
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

    def answer(self, key: BatchKey) -> Answer | None:
        row = self._connection.execute(
            _SELECT + "WHERE task_id = ? AND cohort = ? AND window = ?",
            (key.task_id, key.cohort, key.window),
        ).fetchone()
        return None if row is None else _answer(row)

    def answer_of_hash(self, batch_hash: bytes) -> Answer | None:
        row = self._connection.execute(_SELECT + "WHERE batch_hash = ?", (batch_hash,)).fetchone()
        return None if row is None else _answer(row)

    def used_hosts(self, series: str, window: int) -> frozenset[bytes]:
        """Hosts already counted in this window of the series, in any version and cohort."""
        rows = self._connection.execute(
            "SELECT used FROM answers WHERE series = ? AND window = ?", (series, window)
        )
        return frozenset(
            used[at : at + HOST_ID_BYTES]
            for (used,) in rows
            if used is not None
            for at in range(0, len(used), HOST_ID_BYTES)
        )

    def commit(self, answer: Answer, closed_s: int) -> None:
        """Make a verdict final, in one fenced transaction, then count it beside the state.

        closed_s    end of the window
        Raises      FencedOut when a newer Helper took over, StateUnusable when the window was
                    answered meanwhile
        """
        with transaction(self._connection) as connection:
            commits = self._fenced(connection) + 1
            try:
                connection.execute(
                    "INSERT INTO answers VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", _row(answer)
                )
            except sqlite3.IntegrityError as error:
                raise StateUnusable("window answered by another commit; restart") from error
            connection.execute("UPDATE fence SET commits = ?", (commits,))
            item = answer_item(answer.batch_hash, answer.bitmap)
            self._link(connection, LinkKind.ANSWER, item, closed_s)
        _write_side(self._fence_path, self.fence, commits)

    def _link(
        self, connection: sqlite3.Connection, kind: LinkKind, item: bytes, closed_s: int = 0
    ) -> None:
        if self._linked_as is not None:
            helper_links.make(connection, self._linked_as, kind, item, closed_s)

    def chain_end(self) -> ChainHead:
        return helper_links.newest(self._connection)

    def links_after(self, sequence: int) -> list[ChainLink | None]:
        """The links above a sequence, in order; None for one that only the witness ever had."""
        return list(helper_links.after(self._connection, sequence))

    def passed_through(self, head: ChainHead) -> bool:
        return helper_links.holds(self._connection, head)

    def restored(self, now_s: float, head: ChainHead) -> None:
        """Refuse every window that ended by now or by the witness's word, and go on from its head.

        A chain that the witness's is the beginning of is kept.
        """
        with transaction(self._connection) as connection:
            self._fenced(connection)
            closed_s = max(
                head.closed_s, helper_links.newest(connection).closed_s, math.ceil(now_s)
            )
            if not helper_links.holds(connection, head):
                helper_links.go_on_from(connection, head)
            connection.execute(
                "UPDATE fence SET refuse_before_s = max(refuse_before_s, ?)", (closed_s,)
            )
        self._refuse_before_s = max(self._refuse_before_s, closed_s)

    def keep_reply(self, key: BatchKey, reply: bytes, share_hash: bytes) -> None:
        with transaction(self._connection) as connection:
            self._fenced(connection)
            connection.execute(
                "UPDATE answers SET reply = ?, share_hash = ? WHERE task_id = ? AND cohort = ? "
                "AND window = ? AND reply IS NULL",
                (reply, share_hash, key.task_id, key.cohort, key.window),
            )

    def keep_epochs(
        self, epochs: Iterable[KnownEpoch], counters: Mapping[bytes, tuple[int, int]]
    ) -> None:
        """Remember verified epochs, dead ones too, and the largest ledger counter of each host."""
        with transaction(self._connection) as connection:
            self._fenced(connection)
            connection.executemany(
                "INSERT INTO epochs VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
                "dead = max(dead, excluded.dead)",
                [_epoch_row(epoch) for epoch in epochs],
            )
            connection.executemany(KEEP_COUNTER, [(h, *mark) for h, mark in counters.items()])

    def epochs(self) -> Iterator[KnownEpoch]:
        for h, e, eh, nb, na, ctr, dead in self._connection.execute("SELECT * FROM epochs"):
            yield KnownEpoch(h, e, eh, nb, na, ctr, bool(dead))

    def counters(self) -> dict[bytes, tuple[int, int]]:
        return {host: (ctr, begun_s) for host, ctr, begun_s in self._connection.execute(COUNTERS)}

    def chain(self, series: str, cohort: int) -> list[tuple[int, bytes]]:
        return list(
            self._connection.execute(
                "SELECT window, entry FROM chain WHERE series = ? AND cohort = ? ORDER BY window",
                (series, cohort),
            )
        )

    def chain_entry(self, series: str, cohort: int, window: int) -> bytes | None:
        row = self._connection.execute(
            "SELECT entry FROM chain WHERE series = ? AND cohort = ? AND window = ?",
            (series, cohort, window),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def entry_of_batch(self, batch_hash: bytes) -> bytes | None:
        """The countersigned release of this very batch; bodies of batches are not read for it."""
        row = self._connection.execute(
            "SELECT entry FROM answers JOIN chain USING (series, cohort, window) "
            "WHERE batch_hash = ?",
            (batch_hash,),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def chain_head(self, series: str, cohort: int) -> tuple[int, bytes] | None:
        row = self._connection.execute(
            "SELECT window, entry FROM chain WHERE series = ? AND cohort = ? "
            "ORDER BY window DESC LIMIT 1",
            (series, cohort),
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def keep_release(self, series: str, cohort: int, window: int, entry: bytes) -> None:
        """Append a countersigned release to its chain, and count it beside the state.

        The first entry of a window stays.
        """
        with transaction(self._connection) as connection:
            commits = self._fenced(connection)
            kept = connection.execute(
                "INSERT OR IGNORE INTO chain VALUES (?,?,?,?)", (series, cohort, window, entry)
            )
            if kept.rowcount:
                commits += 1
                connection.execute("UPDATE fence SET commits = ?", (commits,))
                release = SignedRelease.decode(entry).release
                self._link(connection, LinkKind.RELEASE, release.hash())
        _write_side(self._fence_path, self.fence, commits)

    def prune(self, now_s: float, epoch_retention_s: int) -> None:
        with transaction(self._connection) as connection:
            self._fenced(connection)
            connection.execute(
                "UPDATE answers SET body = NULL, used = NULL "
                "WHERE committed_s < ? AND body IS NOT NULL",
                (int(now_s) - BODY_RETENTION_S,),
            )
            connection.execute(
                "DELETE FROM epochs WHERE not_after <= ?", (int(now_s) - epoch_retention_s,)
            )

    def counts(self) -> dict[str, int]:
        (answers,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
        (epochs,) = self._connection.execute("SELECT count(*) FROM epochs").fetchone()
        (chain,) = self._connection.execute("SELECT count(*) FROM chain").fetchone()
        return {"answers": answers, "epochs": epochs, "releases": chain}

    def close(self) -> None:
        self._connection.close()

    def check_writable(self) -> None:
        """Make sure that the disk takes a commit.

        Raises      StorageUnavailable, FencedOut
        """
        with transaction(self._connection) as connection:
            commits = self._fenced(connection)
            connection.execute("UPDATE fence SET commits = ?", (commits,))

    def _fenced(self, connection: sqlite3.Connection) -> int:
        fence, commits = connection.execute("SELECT fence, commits FROM fence").fetchone()
        side = _read_side(self._fence_path)
        newest = max(fence, side[0] if side else 0)
        if newest != self.fence:
            raise FencedOut(f"expected fence {self.fence}, got {newest}: a newer Helper is live")
        if side is not None and side[1] < commits:  # a full disk held its count up
            _write_side(self._fence_path, fence, commits)
        return int(commits)


_SELECT: Final = (
    "SELECT task_id, cohort, window, series, batch_hash, bitmap, n_batch, rejections, "
    "committed_s, body, used, reply, share_hash FROM answers "
)


def _answer(row: tuple[object, ...]) -> Answer:
    task_id, cohort, window, series, batch_hash, bitmap, n_batch, rejections, *rest = row
    key = BatchKey(task_id, cohort, window)  # type: ignore[arg-type]
    reasons = json.loads(str(rejections))
    return Answer(key, series, batch_hash, bitmap, n_batch, reasons, *rest)  # type: ignore[arg-type]


def _epoch_row(epoch: KnownEpoch) -> tuple[object, ...]:
    return (
        *(epoch.host_id, epoch.epoch_id, epoch.epoch_hash, epoch.not_before, epoch.not_after),
        *(epoch.ledger_ctr, int(epoch.dead)),
    )


def _row(answer: Answer) -> tuple[object, ...]:
    key = answer.key
    rejections = json.dumps(answer.rejections, sort_keys=True)
    return (
        *(key.task_id, key.cohort, key.window, answer.series, answer.batch_hash, answer.bitmap),
        *(answer.n_batch, rejections, answer.committed_s, answer.body, answer.used),
        *(answer.reply, answer.share_hash),
    )


def _read_side(path: Path) -> tuple[int, int] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return int(record["fence"]), int(record["commits"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StateUnusable(f"{path}: expected a fence file, got {error}") from error


def _write_side(path: Path, fence: int, commits: int) -> None:
    write_durably(path, json.dumps({"fence": fence, "commits": commits}).encode())
