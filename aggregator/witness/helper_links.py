"""The chain of links in the Helper's own state: made in the transaction of what they stand for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from wire.witness import NO_LINKS, ChainHead, ChainLink, LinkKind

LINK_TABLES: Final = """;
CREATE TABLE IF NOT EXISTS links (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL,
    closed_s INTEGER NOT NULL, link BLOB)
"""
"""`link` is absent where a restore took the head from the witness."""


def newest(connection: sqlite3.Connection) -> ChainHead:
    """Where the chain stands by this state."""
    row = connection.execute(
        "SELECT sequence, hash, closed_s FROM links ORDER BY sequence DESC LIMIT 1"
    ).fetchone()
    return NO_LINKS if row is None else ChainHead(*row)


def make(
    connection: sqlite3.Connection, helper_pk: bytes, kind: LinkKind, item: bytes, closed_s: int
) -> None:
    """Continue the chain inside a transaction.

    closed_s    end of the window that was answered; 0 where the link answers none
    """
    before = newest(connection)
    closed_s = max(closed_s, before.closed_s)
    link = ChainLink(helper_pk, before.sequence + 1, before.hash, closed_s, kind, item)
    connection.execute(
        "INSERT INTO links VALUES (?,?,?,?)",
        (link.sequence, link.hash(), link.closed_s, link.encode()),
    )


def after(connection: sqlite3.Connection, sequence: int) -> Iterator[ChainLink | None]:
    """The links above a sequence, in order; None for one that only the witness ever had."""
    rows = connection.execute(
        "SELECT link FROM links WHERE sequence > ? ORDER BY sequence", (sequence,)
    ).fetchall()
    for (link,) in rows:
        yield None if link is None else ChainLink.decode(link)


def holds(connection: sqlite3.Connection, head: ChainHead) -> bool:
    """Whether this state's chain passed through a head."""
    if head.sequence == 0:
        return head == NO_LINKS
    row = connection.execute(
        "SELECT hash FROM links WHERE sequence = ?", (head.sequence,)
    ).fetchone()
    return row is not None and bytes(row[0]) == head.hash


def go_on_from(connection: sqlite3.Connection, head: ChainHead) -> None:
    """Take over the head of a chain that this state did not make, inside a transaction."""
    connection.execute("DELETE FROM links WHERE sequence >= ?", (head.sequence,))
    if head.sequence:
        connection.execute(
            "INSERT INTO links VALUES (?,?,?,NULL)", (head.sequence, head.hash, head.closed_s)
        )
