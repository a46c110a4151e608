"""Which windows of which hosts may be reported, what each has spent, which tasks are taken."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from edge_agent.ledger.ledger_db import counted_as
from edge_agent.ledger.ledger_records import Crowd, KnownSeries, LedgerView
from privacy.budget import WEEK_S, Entry, may_spend
from privacy.calibrate import windows_touched
from wire import labels
from wire.envelope import Signed
from wire.fields import Scheme, TaskId
from wire.rejection import Reason, ReportRejected
from wire.roster import PlanMembership
from wire.task import Task, series_name

from .epochs import HostEpoch, PartyKeys
from .protocol_events import WindowClosed, Withheld
from .task_check import Accepted, ParticipantRules, check_task

_START: Final = attrgetter("start")


class BudgetBook:
    """Entries of a batch of hosts, per series in rising order of their windows.

    Hosts with the same history share the very same Entry objects, so a batch asks once for each
    distinct history; a live host asks about the windows that a week around the candidate can meet.

    kept_from_s   entries that ended before it are forgotten, here as in the ledger
    """

    def __init__(self, histories: Iterable[Sequence[Entry]], kept_from_s: int = 0) -> None:
        self.kept_from_s = kept_from_s
        self._hosts: list[dict[str, list[Entry]]] = []
        self._longest: dict[str, int] = {}
        for history in histories:
            series: dict[str, list[Entry]] = {}
            for entry in sorted(history, key=lambda entry: entry.start):
                series.setdefault(entry.series, []).append(entry)
                self._note_length(entry)
            self._hosts.append(series)

    def spent(self, host: int, series: str, start_s: int, now_s: int) -> bool:
        """Say whether a window was spent, or a later one that is over; entries that an earlier
        agent made without a Leader count for each.
        """
        for name in counted_as(series):
            entries = self._hosts[host].get(name)
            if entries and start_s <= entries[-1].start:
                met = entries[bisect_left(entries, start_s, key=_START)]
                if met.start == start_s or met.end <= now_s:
                    return True
        return False

    def remembers(self, start_s: int) -> bool:
        """Say whether every entry that a week around a window from start_s on can meet is here."""
        return self.kept_from_s <= start_s - WEEK_S

    def may_spend(self, hosts: Sequence[int], candidate: Entry) -> list[bool]:
        """Say for each host whether the candidate fits its budget."""
        known: dict[tuple[int, ...], bool] = {}
        answers = []
        for host in hosts:
            near = self._near(host, candidate)
            key = tuple(map(id, near))
            if key not in known:
                known[key] = may_spend(near, candidate)
            answers.append(known[key])
        return answers

    def _near(self, host: int, candidate: Entry) -> list[Entry]:
        """Collect a host's entries that some 168 h meeting the candidate can meet."""
        near: list[Entry] = []
        for name, entries in self._hosts[host].items():
            if len(entries) < 64:
                near += entries
                continue
            # Only starts are sure to rise: an early, long entry may end after later, short ones.
            since_s = candidate.start - WEEK_S - self._longest[name]
            first = bisect_left(entries, since_s, key=_START)
            last = bisect_left(entries, candidate.end + WEEK_S, key=_START)
            near += entries[first:last]
        return near

    def spend(self, host: int, entry: Entry) -> None:
        entries = self._hosts[host].setdefault(entry.series, [])
        if entries and entry.start < entries[-1].start:
            insort(entries, entry, key=_START)
        else:
            entries.append(entry)
        self._note_length(entry)

    def forget_before(self, kept_from_s: int) -> None:
        """Forget entries that ended before a time, as the ledger just did."""
        if kept_from_s <= self.kept_from_s:
            return
        self.kept_from_s = kept_from_s
        for series in self._hosts:
            for entries in series.values():
                first = bisect_left(entries, kept_from_s, key=_START)
                entries[:first] = [e for e in entries[:first] if e.end >= kept_from_s]

    def _note_length(self, entry: Entry) -> None:
        length_s = entry.end - entry.start
        self._longest[entry.series] = max(length_s, self._longest.get(entry.series, 0))

    def take_back(self, host: int, entry: Entry) -> None:
        """Remove an entry whose commit was rolled back."""
        self._hosts[host][entry.series].remove(entry)


LEAD_MOST_MS: Final = 2_000
LEAD_SHARE: Final = 16
OFFSET_MOST_MS: Final = 5_000
OFFSET_SHARE: Final = 4
"""A report leaves at a lead of min(2 s, window/16) and a random offset in [0, min(5 s, window/4))
after its window's end. In the lead a host drains its sources, closes the window and seals it: it
takes less than a second on a busy one, so that how long it took moves no report."""


def task_weight(task: Task) -> int:
    """Give the weight of all sections of a task, millionths."""
    return sum(section.weight_millionths for section in task.sections)


def window_entry(task: Task, start_s: int) -> Entry:
    touched = windows_touched(task.window_s, task.windows)
    return Entry(task.series_key, start_s, start_s + task.window_s, task_weight(task), touched)


def window_fault(task: Task, event: WindowClosed, resume_after_s: int) -> Withheld | None:
    """Say why no host may report this window, or None."""
    start_s = event.window_start_s
    end_s = start_s + task.window_s
    if start_s % task.window_s or not task.first_window <= start_s <= task.last_window:
        return Withheld.WINDOW_MISALIGNED
    if event.now_s >= task.expiry or not task.ends_in_time(start_s):
        return Withheld.TASK_EXPIRED
    if event.now_s < end_s:
        return Withheld.WINDOW_OPEN
    if event.now_s > end_s + task.lateness_s:
        return Withheld.WINDOW_LATE
    if start_s <= resume_after_s:
        return Withheld.RECOVERING
    return None


def host_readiness(
    task: Task,
    event: WindowClosed,
    plan: Mapping[str, PlanMembership] | None,
    crowds: Mapping[tuple[str, int], Crowd],
    epoch: HostEpoch | None,
    *,
    spent: bool,
) -> tuple[int, HostEpoch] | Withheld:
    """Give a host's cohort and epoch for a window, or why it may not report it.
    plan, spent     its memberships, None: not on the roster; it reported it, or a later one
    """
    membership = plan.get(task.series) if plan else None
    if membership is None or membership.weight_millionths < task_weight(task):
        return Withheld.NOT_ROSTERED
    why = crowd_fault(task, crowds[task.series, membership.cohort])
    if why is not None:
        return why
    if spent:
        return Withheld.WINDOW_SPENT
    if epoch is None or epoch.header.not_after <= event.now_s:
        return Withheld.NO_EPOCH
    if not epoch.covers(event.window_start_s + task.window_s, task.lateness_s):
        return Withheld.NO_EPOCH
    return membership.cohort, epoch


def crowd_fault(task: Task, crowd: Crowd) -> Withheld | None:
    """Say why a roster's cohort breaks what the noise was made for: below n_min its hosts add too
    little together, for nothing; beyond n_max, t is below 10 % and the modulus unchecked; an
    operator beyond t knows more noise. `local` counts on no other.
    """
    if task.scheme is Scheme.LOCAL:
        return None
    if crowd.hosts < task.n_min:
        return Withheld.ROSTER_SMALL
    if crowd.hosts > task.n_max:
        return Withheld.ROSTER_LARGE
    if task.min_operators and crowd.largest_operator > task.t:
        return Withheld.OPERATOR_LARGE
    return None


def cohort_faults(ledger: LedgerView, signed: Mapping[bytes, bytes], now_s: int) -> dict[str, str]:
    """Say of each series of a ledger that its cohort keeps from being sent why.

    signed      the tasks that the ledger keeps, by task_id
    """
    current = {known.task_id for known in ledger.series.values()}
    faults = {}
    for kept in (content for task_id, content in signed.items() if task_id in current):
        try:
            task = Task.decode_body(Signed.decode(kept, labels.TASK).body)
        except ReportRejected:  # an earlier agent took times beyond the year 9999
            continue
        if task.expiry <= now_s or task.last_window + task.window_s <= now_s:
            continue
        parties = PartyKeys(task.leader_pk, task.helper_pk)
        known = [r for r in ledger.rosters if (r.leader_pk, r.helper_pk) == parties]
        in_force = [roster for roster in known if roster.effective_from <= now_s][-1:]
        plans = [plan for roster in in_force for plan in roster.plans.values() if plan]
        for membership in (plan[task.series] for plan in plans if task.series in plan):
            crowd = in_force[-1].crowds[task.series, membership.cohort]
            if why := crowd_fault(task, crowd):
                faults[task.series] = (
                    f"{why.value}: {crowd.hosts:,} hosts on the roster, {crowd.largest_operator:,} "
                    f"of one operator, for n_min {task.n_min:,}, n_max {task.n_max:,}, t {task.t:,}"
                )
    return faults


def fits_recovery(task: Task, series: KnownSeries | None) -> bool:
    """Say whether a recovered ledger that saw this series may take a task before its two weeks are
    over: a version it saw, as a later one could spread the same weight over fewer windows.
    """
    if series is None or task.version > series.version or task.window_s != series.window_s:
        return False
    return task_weight(task) <= series.weight_millionths


def draw_offsets_ms(window_s: int, count: int, random_bytes: Callable[[int], bytes]) -> list[int]:
    """Draw when reports leave, ms after their window's end: nothing in it knows the load."""
    lead_ms = min(LEAD_MOST_MS, window_s * 1000 // LEAD_SHARE)
    span_ms = max(1, min(OFFSET_MOST_MS, window_s * 1000 // OFFSET_SHARE))
    words = np.frombuffer(random_bytes(8 * count), dtype="<u8")
    offsets: list[int] = (words % np.uint64(span_ms) + np.uint64(lead_ms)).tolist()
    return offsets


class Recovering(Exception):
    """A task that a recovered ledger may not take yet."""

    reason = Withheld.RECOVERING


class TaskBook:
    """Tasks by id, and the newest version of each series, over restarts too."""

    def __init__(self, rules: ParticipantRules, view: LedgerView) -> None:
        self._rules = rules
        self._freeze_until_s = view.freeze_until_s
        self._recovered = view.series
        # By series key; by name alone what an earlier agent noted of a Leader that is not known.
        self._known: dict[str, KnownSeries] = dict(view.series)
        self._tasks: dict[TaskId, Task] = {}
        self._current: dict[str, TaskId] = {}

    @property
    def current(self) -> dict[TaskId, Task]:
        """The newest version of each Leader's series."""
        return {task_id: self._tasks[task_id] for task_id in self._current.values()}

    @property
    def windows_s(self) -> dict[str, int]:
        """The cadence of every series that this host ever took, by series key."""
        return {key: known.window_s for key, known in self._known.items()}

    @property
    def longest_window_s(self) -> int:
        """The longest cadence of them; 0 before the first."""
        return max(self.windows_s.values(), default=0)

    def find(self, task_id: TaskId) -> Task | None:
        """Give an accepted task; superseded ones stay until their last window has passed."""
        return self._tasks.get(task_id)

    def take(self, signed: bytes, now_s: int) -> tuple[Accepted, KnownSeries] | None:
        """Check a signed task and keep it; None: it is kept. Raises ReportRejected, Recovering."""
        accepted = check_task(
            signed,
            self._rules.pins,
            self._rules.bounds,
            now_s=now_s,
            domain_allowed=self._rules.serves,
            versions={key: known.version for key, known in self._known.items()},
            others=self._unfinished(now_s),
            gate=self._rules.gate,
            catalogue=self._rules.catalogue,
        )
        if accepted.task_id in self._tasks:
            return None
        self._require_same_series(accepted)
        seen = self._recovered_of(accepted.task)
        if now_s < self._freeze_until_s and not fits_recovery(accepted.task, seen):
            why = "new or heavier within two weeks of a ledger's recovery"
            raise Recovering(f"series {accepted.task.series}: {why}")
        return accepted, self._keep(accepted, now_s)

    def _recovered_of(self, task: Task) -> KnownSeries | None:
        """Find what a recovered ledger saw; what has no Leader is the first one's to come."""
        taken = {series_name(key) for key in self._known.keys() - {task.series, task.series_key}}
        nameless = None if task.series in taken else self._recovered.get(task.series)
        return self._recovered.get(task.series_key, nameless)

    def _require_same_series(self, accepted: Accepted) -> None:
        task = accepted.task
        known = self._known.get(task.series_key) or self._known.get(task.series)
        if known is None:
            return
        if task.window_s != known.window_s:
            expected = f"{task.series} with windows of {known.window_s} s for life"
            raise ReportRejected(Reason.FIELD, expected, task.window_s)
        if task.version == known.version and known.task_id not in {b"", accepted.task_id}:
            expected = f"{task.series} version {task.version} as it was"
            raise ReportRejected(Reason.TASK_SUPERSEDED, expected, "other bytes")

    def _keep(self, accepted: Accepted, now_s: int) -> KnownSeries:
        task_id, task = accepted.task_id, accepted.task
        known = KnownSeries(
            task.series_key, task.version, task_weight(task), task.window_s, bytes(task_id)
        )
        self._tasks[task_id] = task
        self._current[task.series_key] = task_id
        self._known[task.series_key] = known
        current = set(self._current.values())
        for old_id, old in list(self._tasks.items()):  # whose last open window has passed
            if old_id not in current and old.expiry + old.retention_s <= now_s:
                del self._tasks[old_id]
        return known

    def _unfinished(self, now_s: int) -> Iterable[Task]:
        """List the current tasks with windows in the present week: a past one keeps no weight."""
        return [
            task
            for task in self.current.values()
            if min(task.expiry, task.last_window + task.window_s) + WEEK_S > now_s
        ]

    def parties(self, now_s: int) -> list[PartyKeys]:
        """List the pairs of aggregators that some unfinished task reports to."""
        live = [t for t in self.current.values() if t.expiry > now_s]
        live = [t for t in live if t.last_window + t.window_s + t.lateness_s > now_s]
        return sorted({PartyKeys(t.leader_pk, t.helper_pk) for t in live})

    def longest_retention(self, parties: PartyKeys) -> int:
        """Give how long after its end an epoch with these parties may still be needed."""
        mine = [t for t in self.current.values() if (t.leader_pk, t.helper_pk) == parties]
        return max((task.retention_s for task in mine), default=0)
