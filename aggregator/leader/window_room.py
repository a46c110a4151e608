"""Which windows a process takes on: one that cannot be finished is refused whole.

Half of every window would be worth nothing: a window below n_min is not released. So under more
load than fits, windows that have begun go on, and the next is refused until there is room and time.
A refused window costs a fraction of one that is taken, which is how a Leader catches up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aggregator.protocol.directory import KnownTask
from wire.rejection import Reason, ReportRejected

from .schedule import HELPER_S
from .window_sums import OpenWindow

HOSTS_READ_A_SECOND: Final = 333
"""Half of what a Leader reads: a window of 100,000 hosts has five minutes. One that is read within
a second is never too late before its retention ends."""


class WindowRoom:
    """Bounds the vectors of windows that have not ended."""

    def __init__(self, most_bytes: int) -> None:
        """Take the bytes that all of them may have together; one window alone may have more."""
        self._most_bytes = most_bytes

    def begin(
        self,
        window: OpenWindow,
        known: KnownTask,
        start: int,
        hosts: int,
        received_s: float,
        held: Iterable[OpenWindow],
    ) -> None:
        """Set room aside for a window whose first authentic report has come.

        hosts       whose reports may come
        received_s  when the report came, by the party's own clock
        held        all windows that have not ended
        Raises      ReportRejected: overload, as for every later report of the window
        """
        wanted = hosts * window.row_bytes
        if window.expected is None:
            taken = sum(other.held_bytes for other in held)
            if received_s > begin_until_s(known, start, hosts):
                self._refuse(window, "a window with time to be read", "one that comes too late")
            if taken and taken + wanted > self._most_bytes:
                room = max(0, self._most_bytes - taken)
                self._refuse(window, f"a window of at most {room} bytes", wanted)
        window.room_bytes = wanted

    def _refuse(self, window: OpenWindow, expected: str, got: object) -> None:
        window.refused = True
        raise ReportRejected(Reason.OVERLOAD, expected, got)


def begin_until_s(known: KnownTask, start: int, hosts: int) -> float:
    """When the first report of a window comes too late for all of its hosts' to be read in time."""
    over_s = known.over_s(start)
    read_s = min(hosts // HOSTS_READ_A_SECOND, known.task.retention_s / 4)
    due_s = known.window_end(start) + known.task.lateness_s
    return max(due_s, over_s - HELPER_S - read_s) if read_s else over_s
