"""What a party's tables take, in SQL that SQLite and PostgreSQL both take, with `?` for values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class LeadershipLost(Exception):
    """Another machine leads, or may: this one must stop."""


class OtherLeader(Exception):
    """A database holds the state of another Leader."""


class StatementRows(Protocol):
    """What a statement gives."""

    @property
    def rowcount(self) -> int: ...

    def __iter__(self) -> Any: ...

    def fetchone(self) -> Any: ...


class Readable(Protocol):
    """Takes statements that change nothing."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        """Run one.

        Raises      StorageUnavailable, sqlite3.Error
        """
        ...


class Statements(Readable, Protocol):
    """Takes statements of one change."""

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> Any:
        """Run one for each of these values."""
        ...


class StateTables(Readable, Protocol):
    """A Leader's tables; one process at a time changes them."""

    def transaction(self) -> AbstractContextManager[Statements]:
        """Change, durably when the block has ended.

        Raises      StorageUnavailable: nothing was changed; LeadershipLost: another leads
        """
        ...

    def close(self) -> None:
        """Let go of them."""
        ...
