"""Hold a Helper's chain of answers against its witnesses; nothing leaves that one has not taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from wire.witness import NO_LINKS, ChainHead, ChainLink, LinkKind


class WitnessUnavailable(Exception):
    """The witness is away, refuses, or answers what it may not; the Helper waits and asks again."""


class RollbackSeen(Exception):
    """State and witness contradict each other: nothing may be answered; says how to go on."""


class Witness(Protocol):
    """Keeps one Helper's chain outside its machine; used by one thread at a time.

    A link is taken only where it continues the chain; one that was taken is durable when `append`
    returns, and again changes nothing. Chains of several Helpers do not meet. Every call ends
    within a stated time. Each witness is held to it by test_conformance_witness.py.
    """

    def head(self) -> ChainHead:
        """Say where the chain stands; raises WitnessUnavailable."""
        ...

    def append(self, link: ChainLink) -> ChainHead:
        """Take a link if it continues the chain; say where the chain stands then.

        Returns     the link's own head when it was taken, now or before; else another
        Raises      WitnessUnavailable: it may have been taken or not
        """
        ...

    def close(self) -> None:
        """Let go of the connection, once or again."""
        ...


GO_ON: Final = (
    "nothing is answered: if this machine or its state came back from a backup or snapshot, end "
    "every other copy and start this one once with --after-restore, or set up a Helper with a new "
    "identity"
)
LOST: Final = (
    "nothing is answered: bring the witness's own records back; where they are lost, or the "
    "witness is a new one, start once with --after-restore"
)


class ChainRecords(Protocol):
    def chain_end(self) -> ChainHead: ...

    def links_after(self, sequence: int) -> list[ChainLink | None]: ...

    def passed_through(self, head: ChainHead) -> bool: ...

    def restored(self, now_s: float, head: ChainHead) -> None: ...


class WitnessedChain:
    """One chain and its witnesses: each has to hold a link before anything leaves.

    They are asked in one order: of two copies of a Helper the second is refused by the first of
    them, and never divides them. Without a witness everything passes.
    """

    def __init__(self, records: ChainRecords, *witnesses: Witness) -> None:
        self._records, self._witnesses = records, witnesses
        self._heads: list[ChainHead] = []
        """What each witness is known to hold; empty before all have answered."""
        self._contradiction: RollbackSeen | None = None

    @property
    def witnessed(self) -> int | None:
        """Links that every witness is known to hold; None before they have answered."""
        return min((head.sequence for head in self._heads), default=None)

    def settle(self) -> None:
        """Have each witness hold every link; the first time they are asked for their heads before.

        Raises      WitnessUnavailable, after which it may be called again; RollbackSeen for good
        """
        if self._contradiction is not None:
            raise self._contradiction
        try:
            if not self._heads:
                heads = [witness.head() for witness in self._witnesses]
                for head in heads:
                    self._compare(head, _said(heads))
                self._heads = heads
            self._append()
        except RollbackSeen as error:
            self._contradiction = error
            raise

    def after_restore(self, now_s: float) -> None:
        """Go on from the witnesses' head, with every window closed that it, or the clock, says.

        The operator vouches that no other copy of this Helper runs. Links that a witness lacks
        are given to it where this chain has them, from the witness's head up to the furthest.
        Raises      WitnessUnavailable, RollbackSeen
        """
        if not self._witnesses:
            raise WitnessUnavailable("; ".join(NO_WITNESS))
        heads = [witness.head() for witness in self._witnesses]
        if len(set(heads)) > 1 and not all(map(self._records.passed_through, heads)):
            raise RollbackSeen(
                "witnesses: expected one head, or heads that this Helper's own chain passed "
                f"through, found others{_said(heads)}: nobody has the links between them; nothing "
                "is answered: bring their own records back, or set up a Helper with a new identity"
            )
        self._records.restored(now_s, heads[0])  # the one, or on this chain, which is kept
        self._heads = heads
        self._append()

    def _append(self) -> None:
        end = self._records.chain_end().sequence
        for place, witness in enumerate(self._witnesses):
            before = self._heads[place].sequence
            for link in self._records.links_after(before) if before != end else ():
                if link is None:
                    raise RollbackSeen(
                        f"witness: expected link {self._heads[place].sequence + 1}, which this "
                        "Helper had from it after a restore, found none: the witness was rolled "
                        "back; nothing is answered: bring its own records back, or set up a "
                        "Helper with a new identity"
                    )
                head = witness.append(link)
                if head != link.head():
                    raise RollbackSeen(
                        f"witness: expected it to hold link {link.sequence} of this Helper, found "
                        f"another chain of {head.sequence} links there: another copy of this "
                        f"Helper has answered; {GO_ON}"
                    )
                self._heads[place] = head

    def _compare(self, head: ChainHead, said: str) -> None:
        """Judge a head at a start: level, one behind after a crash, or somebody lost links.

        No witness is further behind a sound Helper: the next link waits for each.
        """
        own = self._records.chain_end()
        if head.sequence > own.sequence:
            raise RollbackSeen(
                f"state: expected the {head.sequence} links that the witness holds, found "
                f"{own.sequence}{said}: this Helper was rolled back; {GO_ON}"
            )
        if not self._records.passed_through(head):
            raise RollbackSeen(
                f"witness: expected link {head.sequence} of this Helper, found another{said}: "
                f"another copy of this Helper has answered; {GO_ON}"
            )
        if head.sequence < own.sequence - 1:
            raise RollbackSeen(
                f"witness: expected {own.sequence - 1} links or {own.sequence}, found "
                f"{head.sequence}{said}: the witness was rolled back; {LOST}"
            )


def _said(heads: Sequence[ChainHead]) -> str:
    """What each of several witnesses said, in the order of the configuration."""
    said = (f"{head.sequence} links up to {head.hash.hex()[:16]}" for head in heads)
    return f" (they hold {'; '.join(said)})" if len(heads) > 1 else ""


NO_WITNESS: Final = (
    (
        "--after-restore: expected a table [witness] in the configuration, got none: without a "
        "witness nobody knows what this Helper answered before"
    ),
    (
        "set it up anew under a new identity: pointillist keys generate helper, an empty state_dir "
        "and no fence_file, tasks and rosters countersigned with the new key"
    ),
)
"""What is wrong, and the way out."""


LINK_TABLES: Final = """;
CREATE TABLE IF NOT EXISTS links (sequence INTEGER PRIMARY KEY, hash BLOB NOT NULL,
    closed_s INTEGER NOT NULL, link BLOB)
"""
"""`link` is absent where a restore took the head from the witness."""


def newest(connection: sqlite3.Connection) -> ChainHead:
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
