"""Which windows the tasks name, so that every one of them ends, and when each closes.

A task names the windows that begin after the Leader accepted it and before it accepted the next
version, for each cohort that has hosts then; other windows end as well, where reports of them come.
A window closes at once when it is complete, else when its lateness ends, or after an outage of the
log when every host has had the time to send again. One with too few hosts loses nothing by waiting
longer: one window more, and while nothing at all is read.

An outage shows in three ways: the log answers nothing, it is silent for longer than the shortest
window, or two records in it were appended that far apart.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from aggregator.protocol.directory import Directory, KnownTask
from aggregator.protocol.interfaces import BatchKey
from transport.interface import Consumer, TransportUnavailable

from .held_windows import Chain, OpenWindow

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
        self._last_read_s: float | None = None
        self._appended_s: float | None = None
        self._late_s: dict[bytes, float] = {}
        """Hosts of the roster that came late, and when the last time."""
        self._returned_s: deque[float] = deque()
        """When hosts came late that had not been late for long: of the newest window alone."""

    @property
    def level(self) -> bool:
        return self._level

    @staticmethod
    def unread(consumer: Consumer, partitions: int) -> int | None:
        """Give how many records are left to read, for `tick`.

        partitions  of the topics that it reads, together
        Raises      TransportUnavailable: some of the partitions are another member's, as one that
                    died holds them until its lease ends, or were added this moment
        """
        held = len(consumer.positions())
        if 0 < held < partitions:
            raise TransportUnavailable(
                f"another reader of the group holds {partitions - held} of {partitions} partitions,"
                " or they were added just now"
            )
        return consumer.lag()

    def tick(self, now_s: float, lag: int | None) -> None:
        """Take how many records are left to read; None while the log does not answer."""
        self._level = lag == 0
        self._back_s = min(self._back_s, now_s)  # of a clock that was ahead then
        if lag is None and self._last_read_s is not None:
            self._missed = True
        if self._level:
            if self._missed:
                self._back_s = max(self._back_s, now_s)
            self._missed = False

    def note_appended(self, appended_s: Sequence[float], now_s: float, shortest_s: int) -> None:
        """Take the times at which records were appended, in the order in which they came.

        shortest_s   the shortest window of the tasks that hosts report now
        """
        if not appended_s:
            return
        if not self._level:
            self._look_back(appended_s, now_s, shortest_s)
        if self.silent(now_s, shortest_s):
            self._back_s = max(self._back_s, now_s)
        self._last_read_s = now_s

    def _look_back(self, appended_s: Iterable[float], now_s: float, shortest_s: int) -> None:
        """Find outages in what is read late: by the log's own times, which nobody else keeps."""
        for at_s in appended_s:
            if self._appended_s is not None and at_s - self._appended_s > _longest(shortest_s):
                self._back_s = max(self._back_s, min(at_s, now_s))
            self._appended_s = max(at_s, self._appended_s or at_s)

    def silent(self, now_s: float, shortest_s: int) -> bool:
        """Whether nothing was read for longer than a window, which all of them report."""
        return self._last_read_s is not None and now_s - self._last_read_s > _longest(shortest_s)

    def came_late(self, host_id: bytes, fleet: int, now_s: float, shortest_s: int) -> None:
        """Take a report that came after its window's lateness.

        fleet        hosts on the roster
        shortest_s   as of `note_appended`
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


TaskCohort = tuple[bytes, int]
"""(task_id, cohort): its windows end in their order."""


class Schedule:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._next: dict[TaskCohort, int] = {}

    def resume(self, ended: Mapping[TaskCohort, int]) -> None:
        for (identity, cohort), window in ended.items():
            if identity in self._directory.tasks:
                self.ended(BatchKey(identity, cohort, window))

    def ended(self, key: BatchKey) -> None:
        """Note that a window ended, and with it every earlier one of its task and cohort."""
        after = self._directory.tasks[key.task_id].window_end(key.window)
        pair = key.task_id, key.cohort
        self._next[pair] = max(self._next.get(pair, after), after)

    def forget(self) -> None:
        known = self._directory.tasks
        self._next = {pair: at for pair, at in self._next.items() if pair[0] in known}

    def over(self, opened: Collection[BatchKey], now_s: float) -> Iterator[Iterator[BatchKey]]:
        """For each chain, the windows that are over and have not ended, in their order, lazily.

        opened      windows that hosts have reported
        """
        waiting: dict[Chain, list[Iterator[BatchKey]]] = {}
        for known, cohort in self._pairs():
            due = self._due(known, cohort, now_s)
            waiting.setdefault((known.task.series, cohort), []).append(due)
        reported: dict[Chain, list[BatchKey]] = {}
        for key in sorted(opened, key=_in_time):
            series = self._directory.tasks[key.task_id].task.series
            reported.setdefault((series, key.cohort), []).append(key)
        for chain in waiting.keys() | reported.keys():
            lanes = waiting.get(chain, [])
            merged = heapq.merge(reported.get(chain, []), *lanes, key=_in_time)
            yield (key for key, _again in groupby(merged))

    def _pairs(self) -> Iterator[tuple[KnownTask, int]]:
        for known in self._directory.tasks.values():
            for cohort in self._directory.cohorts(known.task.series):
                yield known, cohort

    def _due(self, known: KnownTask, cohort: int, now_s: float) -> Iterator[BatchKey]:
        named, window_s = self.named(known), known.task.window_s
        first = max(named.start, self._next.get((known.task_id, cohort), named.start))
        until = min(named.stop, int(now_s) - window_s + 1)
        for window in range(first, until, window_s):
            roster = self._directory.roster_at(window)
            if roster is not None and cohort in roster.hosts(known.task.series):
                yield BatchKey(known.task_id, cohort, window)

    def named(self, known: KnownTask) -> range:
        """The starts, seconds, of the windows that a task names, whoever is on the roster."""
        task, tasks = known.task, self._directory.tasks.values()
        begin = max(task.first_window, known.accepted_s)
        newer = [
            other.accepted_s
            for other in tasks
            if other.task.series == task.series and other.task.version > task.version
        ]
        # Hosts report no window whose lateness ends when the task has expired.
        in_time = task.expiry - task.window_s - task.lateness_s
        until = min(task.last_window + 1, in_time, *newer)
        return range(-int(-begin // task.window_s) * task.window_s, int(until), task.window_s)


def _in_time(key: BatchKey) -> tuple[int, bytes]:
    return key.window, key.task_id


EARLY_CLOSE_PERCENT: Final = 99
HELPER_S: Final = 120.0
"""A window closes so long before its retention or its task ends: later the Helper is silent."""


class CloseRule:
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
        if window is not None and window.refused_whole:
            return now_s >= end_s + known.task.lateness_s  # nothing more of it is taken
        hosts = 0 if window is None else window.n
        enough = hosts >= known.task.n_min
        if window is not None and enough and self._complete(known, key, window, before):
            return True
        return now_s >= self._until_s(known, key.window, enough, now_s)

    def _complete(
        self,
        known: KnownTask,
        key: BatchKey,
        window: OpenWindow,
        before: tuple[int, frozenset[bytes]],
    ) -> bool:
        roster = self._directory.roster_at(key.window)
        on_roster = 0 if roster is None else roster.hosts(known.task.series).get(key.cohort, 0)
        if on_roster and window.n * 100 >= on_roster * EARLY_CLOSE_PERCENT:
            return True
        last_start_s, hosts = before
        if last_start_s != key.window - known.task.window_s or not hosts:
            return False
        needed = len(hosts) * EARLY_CLOSE_PERCENT
        return window.n * 100 >= needed and len(hosts & window.hosts.keys()) * 100 >= needed

    def _until_s(self, known: KnownTask, window: int, enough: bool, now_s: float) -> float:
        task, over_s = known.task, known.over_s(window)
        due_s = known.window_end(window) + task.lateness_s
        until_s = max(due_s, self._watch.resent_s)
        if not enough:
            silent = self._watch.silent(now_s, self.shortest_s(now_s))
            longer_s = min(RESEND_S, task.window_s)
            until_s = float("inf") if silent else max(until_s, due_s + longer_s)
        return min(until_s, max(due_s, over_s - HELPER_S))

    def shortest_s(self, now_s: float) -> int:
        return min(
            (
                known.task.window_s
                for known in self._directory.tasks.values()
                if known.task.first_window + known.task.window_s <= now_s < known.task.expiry
                and now_s < known.window_end(known.task.last_window) + known.task.window_s
            ),
            default=86_400,
        )


HOSTS_READ_A_SECOND: Final = 333
"""Half of what a Leader reads: a window of 100,000 hosts has five minutes. One that is read within
a second is never too late before its retention ends."""


def begin_until_s(known: KnownTask, start: int, hosts: int) -> float:
    """When the first report of a window comes too late for all of its hosts' to be read in time."""
    over_s = known.over_s(start)
    read_s = min(hosts // HOSTS_READ_A_SECOND, known.task.retention_s / 4)
    due_s = known.window_end(start) + known.task.lateness_s
    return max(due_s, over_s - HELPER_S - read_s) if read_s else over_s
