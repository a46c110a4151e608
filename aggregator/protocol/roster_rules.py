"""What a roster may change, and which tasks a roster's size fits: the same rules for every party.

Rosters change hosts, cohorts and weights at week starts alone, each after the one before. A series
takes weight only where it was free for 168 h and the longest window before, counted by every part
of a machine: a new identity key on any of the same hardware takes no fresh budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from privacy.budget import WEEK_S, WeightChange, change_start, check_weight_changes
from privacy.errors import ParameterError
from wire.rejection import Reason, ReportRejected
from wire.roster import Plan, Roster
from wire.task import Task

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


def check_census(task: Task, hosts: int, largest_operator: int) -> None:
    """A roster serves a task while n_max covers its hosts, and t the hosts of one operator.

    hosts, largest_operator   of the task's series in one cohort; the operator rule is for tasks
                              that have one
    Raises      ReportRejected: roster_bound
    """
    if hosts > task.n_max:
        raise ReportRejected(Reason.ROSTER_BOUND, f"at most n_max = {task.n_max} hosts", hosts)
    if task.min_operators and largest_operator > task.t:
        raise ReportRejected(
            Reason.ROSTER_BOUND, f"at most t = {task.t} hosts of one operator", largest_operator
        )


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
