"""The signed tasks and rosters that a party knows, and what a roster may change.

Rosters change at week starts alone. A series takes weight only where it was free for 168 h and the
longest window before, counted by every part of a machine: a new identity key takes no fresh budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from privacy.budget import WEEK_S, WeightChange, change_start, check_weight_changes
from privacy.errors import ParameterError
from privacy.signing import verify
from wire import labels
from wire.catalogue import Catalogue, CatalogueError
from wire.catalogue_match import match_task
from wire.envelope import Signed
from wire.fields import NO_SIGNATURE, Scheme, TaskId, task_id
from wire.rejection import Reason, ReportRejected
from wire.roster import Plan, Roster, RosterEntry
from wire.task import DEMO_DOMAIN, Task

NOTHING: Final[Plan] = ()
Plans = tuple[Plan, ...]
"""The plans that one part of a machine had in a row of rosters; `NOTHING` without an entry."""


def check_start(
    version: int, effective_from: int, others: Mapping[int, int], *, at_once: bool = False
) -> None:
    """A roster starts with a week, and rosters come into force in the order of their versions.

    others      version -> effective_from, seconds, of the other rosters known; none: the first
                roster of a deployment, in force whenever it says
    at_once     every task is a demo's: any second will do
    Raises      ReportRejected: roster_change
    """
    if not others:
        return
    if effective_from % WEEK_S and not at_once:
        raise ReportRejected(Reason.ROSTER_CHANGE, "the start of a week", effective_from)
    for other, since_s in others.items():
        if (other < version) != (since_s < effective_from):
            raise ReportRejected(
                Reason.ROSTER_CHANGE,
                f"a start {'after' if other < version else 'before'} version {other}'s {since_s}",
                effective_from,
            )


def check_change(roster: Roster, earlier: Sequence[Roster], window_s: Mapping[str, int]) -> None:
    """Refuse a roster that gives a machine weight which was not free long enough.

    earlier     rosters before it, in any order; those of the last fortnights decide
    window_s    series -> seconds of its windows; one that is not named counts as weekly
    Raises      ReportRejected: roster_change
    """
    rosters = [*sorted(earlier, key=lambda known: known.version), roster]
    longest_s = max((window_s.get(name, WEEK_S) for name in _series(rosters)), default=WEEK_S)
    for plans in _histories(rosters):
        starts = [known.effective_from for known in rosters]
        changes = _changes(plans, starts, window_s)
        try:
            # The first roster known stands: it was in force before anything here changes.
            check_weight_changes(_weights(plans[0]), changes, longest_s)
        except ParameterError as error:
            raise ReportRejected(Reason.ROSTER_CHANGE, "weights within the rules", error) from error


def check_fleet(roster: Roster, earlier: Iterable[Roster], parties: PinnedParties) -> None:
    """Refuse a roster of another fleet, or of none after one that named it.

    Raises      ReportRejected: roster_fleet
    """
    names = {past.fleet.name for past in earlier if past.fleet is not None}
    if parties.fleet and (roster.fleet is not None or names):
        names = {parties.fleet}
    roster.require_fleet(parties.leader_pk, parties.helper_pk, names)


def difference(roster: Roster, before: Roster | None) -> dict[str, int]:
    """Count hosts added, removed and changed, for the person who countersigns."""
    old = {} if before is None else {e.host_id: (e, before.plans[e.plan]) for e in before.entries}
    new = {e.host_id: (e, roster.plans[e.plan]) for e in roster.entries}
    both = [(old[host], new[host]) for host in old.keys() & new.keys()]
    return {
        "hosts_added": len(new.keys() - old.keys()),
        "hosts_removed": len(old.keys() - new.keys()),
        "hosts_with_another_plan": sum(was[1] != now[1] for was, now in both),
        "hosts_with_another_operator": sum(was[0].operator != now[0].operator for was, now in both),
        "hosts_with_other_hardware": sum(was[0].hardware != now[0].hardware for was, now in both),
    }


def _series(rosters: Sequence[Roster]) -> set[str]:
    return {membership.series for roster in rosters for plan in roster.plans for membership in plan}


def _histories(rosters: Sequence[Roster]) -> set[Plans]:
    """The distinct rows of plans that keys and parts have had: few, however many the hosts are."""
    numbers: dict[Plan, int] = {NOTHING: 0}
    by_part: list[dict[bytes, int]] = []
    for roster in rosters:
        plans = [numbers.setdefault(plan, len(numbers)) for plan in roster.plans]
        by_part.append(
            {part: plans[e.plan] for e in roster.entries for part in (e.host_id, *e.hardware_ids)}
        )
    parts = set[bytes]().union(*by_part)
    known = list(numbers)
    rows = {tuple(plan_of.get(part, 0) for plan_of in by_part) for part in parts}
    return {tuple(known[number] for number in row) for row in rows}


def _weights(plan: Plan) -> dict[str, int]:
    return {membership.series: membership.weight_millionths for membership in plan}


def _changes(
    plans: Plans, starts: Sequence[int], window_s: Mapping[str, int]
) -> list[WeightChange]:
    found = []
    for before, after, start in zip(plans, plans[1:], starts[1:], strict=False):
        old, new = _weights(before), _weights(after)
        for series in sorted(old.keys() | new.keys()):
            if old.get(series, 0) != new.get(series, 0):
                seconds = window_s.get(series, WEEK_S)
                at = change_start(seconds, start)
                found.append(WeightChange(series, seconds, at, new.get(series, 0)))
    return found


_NO_TASK_S: Final = 86_400
"""How far back a party looks that knows no task."""


class OneKeyTwice(ValueError):
    """Leader and Helper by one identity key: each would be both, in another's fleet too."""


@dataclass(frozen=True, slots=True)
class PinnedParties:
    """The Ed25519 identity keys, 32 B each, that this party's own configuration names.

    helper_pk   empty for a Leader without a Helper (scheme `local`)
    fleet       the name that rosters must have; "": the first that names its fleet says it
    """

    leader_pk: bytes
    helper_pk: bytes
    fleet: str = ""

    def __post_init__(self) -> None:
        if self.leader_pk == self.helper_pk:
            got = f"{self.leader_pk.hex()[:16]}... in both"
            raise OneKeyTwice(f"expected a key in one role, Leader or Helper, got {got}")


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A task whose signatures verified; `d` is computed once.

    accepted_s   when this party accepted it first, over all its restarts
    """

    task_id: TaskId
    task: Task
    d: int
    signed_bytes: bytes
    accepted_s: float

    def window_end(self, window: int) -> int:
        return window + self.task.window_s

    def over_s(self, window: int) -> int:
        """The last second of its retention or of the task: a report of it is answered by then."""
        return min(self.window_end(window) + self.task.retention_s, self.task.expiry - 1)

    def require_unexpired(self, window: int, now_s: float) -> None:
        """Refuse what comes after the task's expiry, and windows that it left no time for.

        Raises      ReportRejected: task_expired
        """
        expiry = self.task.expiry
        if expiry <= now_s:
            raise ReportRejected(Reason.TASK_EXPIRED, f"use before {expiry}", int(now_s))
        if not self.task.ends_in_time(window):
            raise ReportRejected(
                Reason.TASK_EXPIRED, f"a window whose lateness ends before {expiry}", window
            )

    def require_window(self, window: int) -> None:
        """Raises      ReportRejected: window_misaligned, window_outside_task"""
        task = self.task
        if window % task.window_s:
            raise ReportRejected(
                Reason.WINDOW_MISALIGNED, f"a multiple of {task.window_s} s", window
            )
        if not task.first_window <= window <= task.last_window:
            raise ReportRejected(Reason.WINDOW_OUTSIDE_TASK, "a window of the task", window)


class VerifiedRoster:
    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.version = roster.version
        self.effective_from = roster.effective_from
        self.entries: Mapping[bytes, RosterEntry] = {e.host_id: e for e in roster.entries}
        self._cohorts = [{m.series: m.cohort for m in plan} for plan in roster.plans]
        self._members: dict[str, dict[bytes, int]] = {}
        self._sizes: dict[str, Counter[int]] = {}
        self._census: dict[tuple[str, int], tuple[int, int]] = {}
        self._operators: Counter[str] | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def cohort(self, host_id: bytes, series: str) -> int | None:
        members = self._members.get(series)
        if members is None:
            members = self._members[series] = self._members_of(series)
        return members.get(host_id)

    def _members_of(self, series: str) -> dict[bytes, int]:
        """Cohort by host, made once a series: one cache miss a report instead of five."""
        cohorts = [plan.get(series) for plan in self._cohorts]
        found = {host: cohorts[entry.plan] for host, entry in self.entries.items()}
        return {host: cohort for host, cohort in found.items() if cohort is not None}

    def hosts(self, series: str) -> Mapping[int, int]:
        """How many hosts serve a series, by cohort; cohorts without one are not in it."""
        found = self._sizes.get(series)
        if found is None:
            found = self._sizes[series] = Counter(self._members_of(series).values())
        return found

    def operator_hosts(self, operator: str) -> int:
        if self._operators is None:
            self._operators = Counter(entry.operator for entry in self.entries.values())
        return self._operators[operator]

    def check_fits(self, task: Task, cohort: int) -> None:
        """Refuse a task whose bounds this roster has outgrown.

        Raises      ReportRejected: roster_bound
        """
        key = (task.series, cohort)
        found = self._census.get(key)
        if found is None:
            operators = Counter(
                entry.operator
                for host, entry in self.entries.items()
                if self.cohort(host, task.series) == cohort
            )
            found = operators.total(), max(operators.values(), default=0)
            self._census[key] = found
        hosts, largest_operator = found
        if hosts > task.n_max:
            raise ReportRejected(Reason.ROSTER_BOUND, f"at most n_max = {task.n_max} hosts", hosts)
        # The operator rule is for tasks that have one.
        if task.min_operators and largest_operator > task.t:
            raise ReportRejected(
                Reason.ROSTER_BOUND, f"at most t = {task.t} hosts of one operator", largest_operator
            )


class Directory:
    """Tasks by id and rosters by version; refuses what either party did not sign."""

    def __init__(
        self,
        parties: PinnedParties,
        accepted_s: Mapping[bytes, float] | None = None,
        catalogue: Catalogue | None = None,
    ) -> None:
        """Start empty.

        catalogue    tasks that name it, or the one before, must have its sections; those of others
                     were held to theirs when they were countersigned
        accepted_s   when tasks were accepted first, by task_id, as far as a durable state says so
        """
        self.parties = parties
        self._catalogue = catalogue
        self._accepted_s = dict(accepted_s or {})
        self.tasks: dict[bytes, KnownTask] = {}
        self.rosters: dict[int, VerifiedRoster] = {}
        self._newest: dict[str, int] = {}
        self._window_s: dict[str, int] = {}
        self._demos_alone = True

    def add_task(self, signed_bytes: bytes, now_s: float, *, at_start: bool = False) -> KnownTask:
        """Verify and keep a task; the same bytes again change nothing.

        at_start    read back after a restart: superseded and expired versions are still in use
                    until the retention of their last window ends
        Raises      ReportRejected: task_signature, task_expired, task_superseded, catalogue, field,
                    length
        """
        signed = Signed.decode(signed_bytes, labels.TASK)
        task = self._verified_task(signed)
        if self._catalogue is not None and self._catalogue.named(task.catalogue_hash) is not None:
            try:
                match_task(self._catalogue, task)
            except CatalogueError as error:
                raise ReportRejected(Reason.CATALOGUE, "the catalogue's sections", error) from error
        identity = task_id(signed.unsigned())
        if identity in self.tasks:
            return self.tasks[identity]
        self._check_current(task, now_s, at_start)
        window_s = self._window_s.setdefault(task.series, task.window_s)
        if task.window_s != window_s:
            raise ReportRejected(
                Reason.FIELD, f"{task.series} windows of {window_s} s for life", task.window_s
            )
        accepted_s = self._accepted_s.setdefault(identity, now_s)
        known = KnownTask(identity, task, task.d, signed_bytes, accepted_s)
        self.tasks[identity] = known
        self._demos_alone &= task.domain == DEMO_DOMAIN
        self._newest[task.series] = max(task.version, self._newest.get(task.series, -1))
        return known

    def _check_current(self, task: Task, now_s: float, at_start: bool) -> None:
        until_s = max(task.expiry, _over_s(task)) if at_start else task.expiry
        if until_s <= now_s:
            raise ReportRejected(Reason.TASK_EXPIRED, f"an expiry after {int(now_s)}", task.expiry)
        newest = self._newest.get(task.series, -1)
        same = (k.task.version for k in self.tasks.values() if k.task.series == task.series)
        if task.version in same if at_start else task.version <= newest:
            raise ReportRejected(
                Reason.TASK_SUPERSEDED, f"{task.series} after version {newest}", task.version
            )

    def _verified_task(self, signed: Signed) -> Task:
        self._verify(signed, Reason.TASK_SIGNATURE, leader_only=False)
        task = Task.decode_body(signed.body)
        local = task.scheme is Scheme.LOCAL
        helper_pk = b"" if local else self.parties.helper_pk
        if (task.leader_pk, task.helper_pk) != (self.parties.leader_pk, helper_pk):
            raise ReportRejected(Reason.TASK_SIGNATURE, "the pinned parties", "other keys")
        if not local and signed.sig_helper == NO_SIGNATURE:
            raise ReportRejected(Reason.TASK_SIGNATURE, "the Helper's signature", "none")
        return task

    def _verify(self, signed: Signed, reason: Reason, *, leader_only: bool) -> None:
        """Both signatures; a Helper signature of zeros is for the scheme `local` alone."""
        message = signed.unsigned()
        if not verify(self.parties.leader_pk, message, signed.sig_leader):
            raise ReportRejected(reason, "the pinned Leader's signature", "another")
        if leader_only or signed.sig_helper == NO_SIGNATURE:
            return
        if not verify(self.parties.helper_pk, message, signed.sig_helper):
            raise ReportRejected(reason, "the pinned Helper's signature", "another")

    def add_roster(self, signed_bytes: bytes) -> VerifiedRoster:
        """Verify and keep a roster; a version is never replaced.

        Raises      ReportRejected: roster_signature, roster_fleet, roster_change, field, length
        """
        signed = Signed.decode(signed_bytes, labels.ROSTER)
        local = self.parties.helper_pk == b""
        self._verify(signed, Reason.ROSTER_SIGNATURE, leader_only=local)
        if not local and signed.sig_helper == NO_SIGNATURE:
            raise ReportRejected(Reason.ROSTER_SIGNATURE, "the Helper's signature", "none")
        roster = Roster.decode_body(signed.body)
        known = self.rosters.get(roster.version)
        if known is None:
            self._check_roster(roster)
            known = self.rosters[roster.version] = VerifiedRoster(roster)
        return known

    def _check_roster(self, roster: Roster) -> None:
        earlier = [r.roster for v, r in self.rosters.items() if v < roster.version]
        check_fleet(roster, earlier, self.parties)
        others = {version: known.effective_from for version, known in self.rosters.items()}
        tasks = [known.task for known in self.tasks.values()]
        # A fleet's task that is over and dropped still keeps the rules.
        demo = bool(tasks) and self._demos_alone
        check_start(roster.version, roster.effective_from, others, at_once=demo)
        if not demo:
            check_change(roster, earlier, {task.series: task.window_s for task in tasks})

    def roster_at(self, window: int) -> VerifiedRoster | None:
        in_force = [r for r in self.rosters.values() if r.effective_from <= window]
        return max(in_force, key=lambda r: r.version, default=None)

    def cohorts(self, series: str) -> frozenset[int]:
        return frozenset(cohort for r in self.rosters.values() for cohort in r.hosts(series))

    def longest_retention_s(self) -> int:
        """Seconds for which an epoch may still be needed after its end.

        A report's epoch ends after its window does, and nobody takes or answers the report later
        than the retention after the window's end: the window's length plays no part.
        """
        return max((k.task.retention_s for k in self.tasks.values()), default=_NO_TASK_S)

    def longest_reach_s(self) -> int:
        """Seconds since a window began of which a report may still be taken or answered."""
        spans = (k.task.window_s + k.task.retention_s for k in self.tasks.values())
        return max(spans, default=_NO_TASK_S)

    def drop_past_tasks(self, now_s: float, used: Collection[bytes] = ()) -> list[TaskId]:
        past = [
            known.task_id
            for known in self.tasks.values()
            if known.task.expiry <= now_s
            and known.task_id not in used
            and _over_s(known.task) <= now_s
        ]
        for identity in past:
            del self.tasks[identity]
        return past


def _over_s(task: Task) -> int:
    return task.last_window + task.window_s + task.retention_s
