"""What a witness process keeps: one append-only chain for each Helper, in a file of SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aggregator.state.state_file import SCHEMA_VERSION, open_state, transaction
from wire.witness import NO_LINKS, ChainHead, ChainLink

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS heads (helper_pk BLOB, sequence INTEGER, hash BLOB NOT NULL,
    closed_s INTEGER NOT NULL, link BLOB NOT NULL, PRIMARY KEY (helper_pk, sequence)) WITHOUT ROWID
"""


class WitnessStore:
    """Chains by Helper; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises      StateUnusable, OSError
        """
        self._connection = open_state(path, _SCHEMA)

    def head(self, helper_pk: bytes) -> ChainHead:
        """Where a Helper's chain stands."""
        row = self._connection.execute(
            "SELECT sequence, hash, closed_s FROM heads WHERE helper_pk = ? "
            "ORDER BY sequence DESC LIMIT 1",
            (helper_pk,),
        ).fetchone()
        return NO_LINKS if row is None else ChainHead(*row)

    def append(self, link: ChainLink) -> ChainHead:
        """Take a link if it continues its chain, durably; say where the chain stands then.

        Raises      StorageUnavailable
        """
        with transaction(self._connection) as connection:
            head = self.head(link.helper_pk)
            if (head.sequence + 1, head.hash) != (link.sequence, link.prev):
                return head
            connection.execute(
                "INSERT INTO heads VALUES (?,?,?,?,?)",
                (link.helper_pk, link.sequence, link.hash(), link.closed_s, link.encode()),
            )
        return link.head()

    def check_writable(self) -> None:
        """Make sure that the disk takes a commit.

        Raises      StorageUnavailable
        """
        with transaction(self._connection) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def lengths(self) -> dict[str, int]:
        """Links by Helper, in hex."""
        rows = self._connection.execute("SELECT helper_pk, max(sequence) FROM heads GROUP BY 1")
        return {bytes(helper_pk).hex(): sequence for helper_pk, sequence in rows}

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
