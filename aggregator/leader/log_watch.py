"""Whether the log served without a break, by what the Leader reads of it.

Reports of a window are due when its lateness ends. After an outage they come later through no
fault of their hosts, which try again at pauses of up to 30 s: until they have had the time for it,
windows that lack reports stay open. An outage shows in three ways: the log answers nothing, it is
silent for longer than the shortest window, or two records in it were appended that far apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from transport.port import Consumer, TransportUnavailable

RESEND_S: Final = 60.0
"""A host tries again within 30 s; reading its control topics and sending may each wait for a
time-out, 5 s by default, and a broker that has just come back may refuse the first try."""

SILENCE_SLACK_S: Final = 15.0
"""Hosts send within 5 s after a window; the rest is for a broker that is slow."""

RETURNING_PER_MILLE: Final = 10
RETURNING_LEAST: Final = 3
"""Late reports of this part of the fleet's hosts, and of so many, within the shortest window (or
RESEND_S where that is shorter) keep windows open; those of fewer do not: some are always late."""

LATE_AGAIN_WINDOWS: Final = 10
"""A host that was late within so many windows counts no further time: hosts that are late for ever
hold releases up once."""


class LogWatch:
    """What the Leader knows of outages of the log; times are its own clock's, unix seconds."""

    def __init__(self, *, resumed: bool = False) -> None:
        """Start watching.

        resumed     the Leader has run before: for how long it and the log were away is not known
        """
        self._missed = resumed
        self._level = False
        self._back_s = -math.inf
        self._heard_s: float | None = None
        self._appended_s: float | None = None
        self._late_s: dict[bytes, float] = {}
        """Hosts of the roster that came late, and when the last time."""
        self._returned_s: deque[float] = deque()
        """When hosts came late that had not been late for long: of the newest window alone."""

    @property
    def level(self) -> bool:
        """Whether the log answers and everything in it was read."""
        return self._level

    @staticmethod
    def unread(consumer: Consumer, partitions: int) -> int | None:
        """Give how many records are left to read, for `tick`.

        partitions  of the topics that it reads, together
        Raises      TransportUnavailable: another member of the group holds some of the partitions,
                    as one that died does until its lease ends
        """
        held = len(consumer.positions())
        if 0 < held < partitions:
            raise TransportUnavailable(
                f"another reader of the group holds {partitions - held} of {partitions} partitions"
            )
        return consumer.lag()

    def tick(self, now_s: float, lag: int | None) -> None:
        """Take how many records are left to read; None while the log does not answer."""
        self._level = lag == 0
        if lag is None and self._heard_s is not None:
            self._missed = True
        if self._level:
            if self._missed:
                self._back_s = max(self._back_s, now_s)
            self._missed = False

    def heard(self, appended_s: Sequence[float], now_s: float, shortest_s: int) -> None:
        """Take the times at which records were appended, in the order in which they came.

        shortest_s   the shortest window of the tasks that hosts report now
        """
        if not appended_s:
            return
        if not self._level:
            self._look_back(appended_s, now_s, shortest_s)
        if self.silent(now_s, shortest_s):
            self._back_s = max(self._back_s, now_s)
        self._heard_s = now_s

    def _look_back(self, appended_s: Iterable[float], now_s: float, shortest_s: int) -> None:
        """Find outages in what is read late: by the log's own times, which nobody else keeps."""
        for at_s in appended_s:
            if self._appended_s is not None and at_s - self._appended_s > _longest(shortest_s):
                self._back_s = max(self._back_s, min(at_s, now_s))
            self._appended_s = max(at_s, self._appended_s or at_s)

    def silent(self, now_s: float, shortest_s: int) -> bool:
        """Whether no host has been heard for longer than a window, which all of them report."""
        return self._heard_s is not None and now_s - self._heard_s > _longest(shortest_s)

    def came_late(self, host_id: bytes, fleet: int, now_s: float, shortest_s: int) -> None:
        """Take a report that came after its window's lateness.

        fleet        hosts on the roster
        shortest_s   as of `heard`
        """
        window_s = min(RESEND_S, shortest_s)
        before_s = self._late_s.get(host_id, -math.inf)
        self._late_s[host_id] = now_s
        if now_s - before_s <= LATE_AGAIN_WINDOWS * max(RESEND_S, shortest_s):
            return
        self._returned_s.append(now_s)
        while self._returned_s[0] <= now_s - window_s:
            self._returned_s.popleft()
        if len(self._returned_s) >= max(fleet * RETURNING_PER_MILLE / 1000, RETURNING_LEAST):
            self._back_s = max(self._back_s, now_s)
            self._returned_s.clear()

    @property
    def resent_s(self) -> float:
        """When every host has had the time to send again; infinite while that is not known."""
        return self._back_s + RESEND_S if self._level and not self._missed else math.inf


def _longest(shortest_s: int) -> float:
    return shortest_s + SILENCE_SLACK_S
