"""A Leader's tables in a file of its machine; in a database they are `standby`'s.

`LeaderState` says what is kept, in SQL that SQLite and PostgreSQL both take, with `?` for values.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from aggregator.state.state_file import StateUnusable, open_state, transaction
from aggregator.state.state_tables import StatementRows, Statements

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
    """Tables in an SQLite file, locked for as long as they are open."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises      StateUnusable when it is damaged or another Leader holds it;
                    StorageUnavailable when the disk takes nothing
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateUnusable(f"{path}: expected no other Leader, got a live one") from error
        try:
            self._connection = open_state(path, _SCHEMA, [_KEPT_BY_NAME])
        except BaseException:
            os.close(self._lock)
            raise

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        """Read."""
        return self._connection.execute(sql, values)

    def transaction(self) -> AbstractContextManager[Statements]:
        """Change."""
        return transaction(self._connection)

    def close(self) -> None:
        """Let go of the file and of its lock."""
        self._connection.close()
        os.close(self._lock)
