"""When a window closes: nothing in it is waited for any more.

Complete windows close at once. Others close when their lateness ends, or after an outage of the log
when every host has had the time to send again. A window with too few hosts for a release loses
nothing by waiting longer, so it does: one window more, and while nobody at all is heard.
"""

from __future__ import annotations

from typing import Final

from .directory import Directory, KnownTask
from .helper_state import BatchKey
from .leader_windows import EARLY_CLOSE_PERCENT, freeze_early
from .log_watch import RESEND_S, LogWatch
from .window_sums import OpenWindow

HELPER_S: Final = 120.0
"""A window closes so long before its retention ends, after which the Helper answers nothing."""


class CloseRule:
    """Says when windows close, by the Leader's clock and by what it knows of the log."""

    def __init__(self, directory: Directory, watch: LogWatch) -> None:
        self._directory, self._watch = directory, watch

    def closes(
        self,
        known: KnownTask,
        key: BatchKey,
        window: OpenWindow | None,
        before: tuple[int, frozenset[bytes]],
        now_s: float,
    ) -> bool:
        """Whether a window takes no further report.

        window      what it has gathered, None when nobody has reported it
        before      start and hosts of the window that closed last in its chain
        """
        end_s = known.window_end(key.window)
        if now_s < end_s:
            return False
        hosts = 0 if window is None else window.n
        enough = hosts >= known.task.n_min
        if window is not None and enough and self._complete(known, key, window, before):
            return True
        return now_s >= self._until_s(known, end_s, enough, now_s)

    def _complete(
        self,
        known: KnownTask,
        key: BatchKey,
        window: OpenWindow,
        before: tuple[int, frozenset[bytes]],
    ) -> bool:
        """Whether nearly all hosts have reported: of the window before, or of the roster."""
        roster = self._directory.roster_at(key.window)
        on_roster = 0 if roster is None else roster.hosts(known.task.series).get(key.cohort, 0)
        if on_roster and window.n * 100 >= on_roster * EARLY_CLOSE_PERCENT:
            return True
        return freeze_early(window, before, key.window - known.task.window_s)

    def _until_s(self, known: KnownTask, end_s: int, enough: bool, now_s: float) -> float:
        task = known.task
        due_s = end_s + task.lateness_s
        until_s = max(due_s, self._watch.resent_s)
        if not enough:
            silent = self._watch.silent(now_s, self.shortest_s(now_s))
            longer_s = min(RESEND_S, task.window_s)
            until_s = float("inf") if silent else max(until_s, due_s + longer_s)
        return min(until_s, max(due_s, end_s + task.retention_s - HELPER_S))

    def shortest_s(self, now_s: float) -> int:
        """The shortest window of the tasks that hosts report now; a day where there is none."""
        return min(
            (
                one.task.window_s
                for one in self._directory.tasks.values()
                if one.task.first_window + one.task.window_s <= now_s < one.task.expiry
                and now_s < one.window_end(one.task.last_window) + one.task.window_s
            ),
            default=86_400,
        )
