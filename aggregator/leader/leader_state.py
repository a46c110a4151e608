"""What the Leader keeps beside the log: closed batches, releases and their chain, epochs.

A closed batch is stored before it is sent, so that after a crash the same bytes are sent again. Its
SQL is what SQLite and PostgreSQL both take, with `?` for values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aggregator.protocol.interfaces import BODY_RETENTION_S, BatchKey
from aggregator.state import state_file
from aggregator.state.state_file import COUNTERS, StateUnusable
from wire.batch import SignedRelease

from . import leader_events as events
from .held_windows import Chain, StoredRelease

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS windows (task_id BLOB, cohort INTEGER, window INTEGER,
    series TEXT NOT NULL, state TEXT NOT NULL, reason TEXT, closed_s REAL NOT NULL,
    rejections TEXT NOT NULL, batch BLOB, share BLOB, entry BLOB, vector BLOB,
    PRIMARY KEY (task_id, cohort, window)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS windows_chain ON windows (series, cohort, window);
CREATE INDEX IF NOT EXISTS windows_state ON windows (state);
CREATE TABLE IF NOT EXISTS kept_epochs (place INTEGER PRIMARY KEY, host_id BLOB NOT NULL,
    epoch_id BLOB NOT NULL, not_after INTEGER NOT NULL, dead INTEGER NOT NULL, raw BLOB NOT NULL,
    UNIQUE (host_id, epoch_id));
CREATE TABLE IF NOT EXISTS counters (host_id BLOB PRIMARY KEY, ledger_ctr INTEGER NOT NULL,
    not_before INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (task_id BLOB PRIMARY KEY, accepted_s REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS to_publish (place INTEGER PRIMARY KEY, series TEXT NOT NULL,
    cohort INTEGER NOT NULL, entry BLOB NOT NULL)
"""
_KEPT_BY_NAME: Final = (
    "CREATE TABLE IF NOT EXISTS epochs (host_id, epoch_id, not_after, dead, raw)",
    """INSERT INTO kept_epochs (host_id, epoch_id, not_after, dead, raw)
        SELECT host_id, epoch_id, not_after, dead, raw FROM epochs""",
    "DROP TABLE epochs",
)
"""The first version kept epochs in the order of their names: each went to a page of its own.

It would find none where they are now, and not say so: it must not open the file again.
"""


class LeaderFile:
    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises      StateUnusable when it is damaged or another Leader holds it;
                    StorageUnavailable when the disk takes nothing
        """
        lock, expected = path.with_name(path.name + ".lock"), f"{path}: expected no other Leader"
        self._lock = state_file.hold(lock, f"{expected}, got a live one")
        try:
            self._connection = state_file.open_state(path, _SCHEMA, [_KEPT_BY_NAME])
        except BaseException:
            os.close(self._lock)
            raise

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> state_file.StatementRows:
        return self._connection.execute(sql, values)

    def transaction(self) -> AbstractContextManager[state_file.Statements]:
        return state_file.transaction(self._connection)

    def close(self) -> None:
        self._connection.close()
        os.close(self._lock)


_PUBLISH: Final = (
    "INSERT INTO to_publish (series, cohort, entry) SELECT series, cohort, entry FROM windows "
    "WHERE task_id = ? AND cohort = ? AND \"window\" = ? AND state = 'released'"
)

_NEWEST: Final = (
    "SELECT series, cohort, {0} FROM windows JOIN (SELECT series, cohort, "
    'max("window") AS "window" FROM windows WHERE {1} GROUP BY series, cohort) AS newest '
    'USING (series, cohort, "window") WHERE {1}'
)
"""Of each chain a column of the newest window for which something holds."""

CLOSED: Final = "frozen"
RELEASED: Final = "released"
SUPPRESSED: Final = "suppressed"


@dataclass(frozen=True, slots=True)
class FinalRelease:
    """A release as it stays, which readers of the log have not been given yet."""

    place: int
    series: str
    cohort: int
    entry: bytes


class LeaderState:
    def __init__(self, where: Path | state_file.StateTables) -> None:
        """Take the state over.

        where       a file, opened or created; or tables that are open
        Raises      StateUnusable when the file is damaged or another Leader holds it
        """
        self._tables = LeaderFile(where) if isinstance(where, Path) else where

    def keep_epochs(self, effect: events.KeepEpochs) -> None:
        """Store verified epochs and the hosts' largest ledger counters; a twin marks one dead."""
        with self._tables.transaction() as tables:
            tables.executemany(
                "INSERT INTO kept_epochs (host_id, epoch_id, not_after, dead, raw) "
                "VALUES (?,?,?,?,?) ON CONFLICT (host_id, epoch_id) DO UPDATE "
                "SET dead = excluded.dead WHERE excluded.dead > kept_epochs.dead",
                [
                    (e.known.host_id, e.known.epoch_id, e.known.not_after, int(e.known.dead), e.raw)
                    for e in effect.epochs
                ],
            )
            tables.executemany(
                state_file.KEEP_COUNTER,
                [(e.known.host_id, e.header.ledger_ctr, e.known.not_before) for e in effect.epochs],
            )

    def epoch_bytes(self, wanted: list[bytes]) -> Iterator[bytes]:
        """The raw epochs of host_id 16 B || epoch_id 16 B each, as far as they are kept."""
        for name in wanted:
            raw = self.raw_epoch(name)
            if raw is not None:
                yield raw

    def raw_epoch(self, name: bytes) -> bytes | None:
        """The raw epoch of host_id 16 B || epoch_id 16 B, if it is kept.

        Raises      StateUnusable: asked for in the midst of an event, which is not taken twice
        """
        try:
            row = self._tables.execute(
                "SELECT raw FROM kept_epochs WHERE host_id = ? AND epoch_id = ?",
                (name[:16], name[16:]),
            ).fetchone()
        except state_file.StorageUnavailable as error:
            raise StateUnusable(str(error)) from error
        return None if row is None else bytes(row[0])

    def epochs(self) -> Iterator[tuple[bytes, bool]]:
        for raw, dead in self._tables.execute("SELECT raw, dead FROM kept_epochs"):
            yield raw, bool(dead)

    def counters(self) -> dict[bytes, tuple[int, int]]:
        return {host: (ctr, begun_s) for host, ctr, begun_s in self._tables.execute(COUNTERS)}

    def store_task(self, effect: events.StoreTask) -> None:
        values = (effect.task_id, effect.accepted_s)
        self._change("INSERT INTO tasks VALUES (?,?) ON CONFLICT DO NOTHING", values)

    def _change(self, sql: str, values: Sequence[Any]) -> None:
        with self._tables.transaction() as tables:
            tables.execute(sql, values)

    def accepted_s(self) -> dict[bytes, float]:
        return dict(self._tables.execute("SELECT task_id, accepted_s FROM tasks"))

    @property
    def resumed(self) -> bool:
        (known,) = self._tables.execute(
            "SELECT EXISTS (SELECT 1 FROM windows) OR EXISTS (SELECT 1 FROM kept_epochs)"
        ).fetchone()
        return bool(known)

    def last_ended(self) -> dict[tuple[bytes, int], int]:
        rows = self._tables.execute(
            'SELECT task_id, cohort, max("window") FROM windows GROUP BY task_id, cohort'
        )
        return {(task, cohort): window for task, cohort, window in rows}

    def last_batches(self) -> dict[Chain, bytes]:
        rows = self._tables.execute(_NEWEST.format("batch", "batch IS NOT NULL"))
        return {(series, cohort): batch for series, cohort, batch in rows}

    def store_frozen(self, effect: events.StoreFrozen) -> None:
        """Store a batch's bytes; the first ones of a window stay."""
        rejections = json.dumps(dict(effect.rejections))
        self._change(
            "INSERT INTO windows VALUES (?,?,?,?,?,NULL,?,?,?,NULL,NULL,NULL) "
            "ON CONFLICT DO NOTHING",
            (
                *(*_place(effect.key), effect.series, CLOSED, effect.closed_s),
                *(rejections, effect.signed_batch),
            ),
        )

    def closed(self) -> list[events.StoreFrozen]:
        rows = self._tables.execute(
            'SELECT task_id, cohort, "window", series, batch, closed_s, rejections FROM windows '
            'WHERE state = ? ORDER BY "window"',
            (CLOSED,),
        )
        return [
            events.StoreFrozen(BatchKey(*key), series, batch, closed_s, json.loads(rejections))
            for *key, series, batch, closed_s, rejections in rows
        ]

    def store_release(self, effect: events.StoreRelease) -> None:
        with self._tables.transaction() as tables:
            settled = tables.execute(
                "UPDATE windows SET state = ?, share = ?, entry = ?, vector = ? "
                'WHERE task_id = ? AND cohort = ? AND "window" = ? AND state = ?',
                (
                    *(RELEASED, effect.share_bytes, effect.entry, effect.vector),
                    *(*_place(effect.key), CLOSED),
                ),
            )
            if settled.rowcount and not effect.vector:  # no signature is to come
                tables.execute(_PUBLISH, _place(effect.key))

    def store_suppressed(self, effect: events.StoreSuppressed) -> None:
        self._change(
            "INSERT INTO windows VALUES (?,?,?,?,?,?,?,'{}',NULL,?,NULL,NULL) "
            'ON CONFLICT (task_id, cohort, "window") DO UPDATE SET state = excluded.state, '
            "reason = excluded.reason, share = excluded.share WHERE windows.state = ?",
            (
                *(*_place(effect.key), effect.series, SUPPRESSED, effect.reason),
                *(effect.now_s, effect.share_bytes, CLOSED),
            ),
        )

    def store_countersigned(self, effect: events.StoreCountersigned) -> None:
        self._store_signed("entry", effect.entry, effect.key)

    def store_unsigned(self, effect: events.StoreUnsigned) -> None:
        self._store_signed("reason", effect.reason, effect.key)

    def _store_signed(self, column: str, value: bytes | str, key: BatchKey) -> None:
        """Keep what came of asking for the signature, erase the vector."""
        with self._tables.transaction() as tables:
            tables.execute(
                f"UPDATE windows SET {column} = ?, vector = NULL "  # noqa: S608
                'WHERE task_id = ? AND cohort = ? AND "window" = ?',
                (value, *_place(key)),
            )
            tables.execute(_PUBLISH, _place(key))

    def to_publish(self, most: int) -> list[FinalRelease]:
        """The oldest final releases that are not on the log, in the order of each chain."""
        rows = self._tables.execute(
            "SELECT place, series, cohort, entry FROM to_publish ORDER BY place LIMIT ?", (most,)
        )
        return [FinalRelease(*row) for row in rows]

    def published(self, last: FinalRelease) -> None:
        """Forget those up to this one: the log has them durably."""
        self._change("DELETE FROM to_publish WHERE place <= ?", (last.place,))

    def settled(self, since_s: float) -> list[BatchKey]:
        """Windows settled that started after `since_s`: reports of them may still come."""
        rows = self._tables.execute(
            'SELECT task_id, cohort, "window" FROM windows WHERE state <> ? AND "window" >= ?',
            (CLOSED, int(since_s)),
        )
        return [BatchKey(*row) for row in rows]

    def releases(self) -> list[StoredRelease]:
        rows = self._tables.execute(
            'SELECT task_id, cohort, "window", series, entry, vector FROM windows '
            'WHERE state = ? ORDER BY series, cohort, "window"',
            (RELEASED,),
        )
        return [
            StoredRelease(BatchKey(task, cohort, window), (series, cohort), entry, vector or b"")
            for task, cohort, window, series, entry, vector in rows
        ]

    def heads(self) -> dict[Chain, bytes]:
        rows = self._tables.execute(_NEWEST.format("entry", f"state = '{RELEASED}'"))
        return {
            (series, cohort): SignedRelease.decode(entry).release.hash()
            for series, cohort, entry in rows
        }

    def unsigned(self) -> list[StoredRelease]:
        return [release for release in self.releases() if release.vector]

    def prune(self, now_s: float, epoch_retention_s: int) -> None:
        """Erase batch bodies and shares of settled windows after a week, and past epochs."""
        with self._tables.transaction() as tables:
            tables.execute(
                "UPDATE windows SET batch = NULL, share = NULL "
                "WHERE state <> ? AND closed_s < ? AND batch IS NOT NULL",
                (CLOSED, now_s - BODY_RETENTION_S),
            )
            tables.execute(
                "DELETE FROM kept_epochs WHERE not_after <= ?", (int(now_s) - epoch_retention_s,)
            )

    def counts(self) -> dict[str, int]:
        rows = self._tables.execute("SELECT state, count(*) FROM windows GROUP BY state")
        return dict(rows)

    def close(self) -> None:
        self._tables.close()


def _place(key: BatchKey) -> tuple[bytes, int, int]:
    return key.task_id, key.cohort, key.window
