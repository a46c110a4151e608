"""How much of the agent strangers may take: processes and rows that are kept, rows read in a drain.

What a row takes of memory (its newest states, its name, and what the last 32 windows had of it) is
some 2 kB, so that all of them stay near 200 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

MOST_PROCESSES: Final = 256
"""Each takes two descriptors, of which a process may have 1,024 unless it is given more."""
MOST_ROWS: Final = 3 << 15
"""Of all processes: GPU programs have some hundreds to 2,000, and 4,096 at most."""
NAMES_OF_A_ROW: Final = 512
"""Bytes of names that count as one row more."""
MOST_READ: Final = 1 << 13
"""Rows that one drain reads, some 60 us each; who is not reached is read in the next."""
MOST_LEARNT: Final = 512
"""New names that one drain learns, up to 1 ms each; a process is told of when all of its are."""
MOST_TAKEN: Final = 16
"""Processes that are taken in at once; the others wait at the socket."""


class Held(NamedTuple):
    """What one process takes, and whose it is."""

    uid: int
    rows: int
    names_bytes: int = 0

    @property
    def weight(self) -> int:
        """Give it in rows."""
        return self.rows + self.names_bytes // NAMES_OF_A_ROW


def has_room(held: Iterable[Held], more: Held) -> bool:
    """Tell whether one more process fits: nobody but root takes more than half of what there is."""
    every = [*held, more]
    own = [one for one in every if one.uid == more.uid]
    return _fits(every, 1) and (more.uid == 0 or _fits(own, 2))


def _fits(held: list[Held], part: int) -> bool:
    rows = sum(one.weight for one in held)
    return part * len(held) <= MOST_PROCESSES and part * rows <= MOST_ROWS
