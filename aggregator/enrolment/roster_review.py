"""What the Helper's operator signs of a roster: its hosts' vouchers, and the change it makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from aggregator.protocol.directory import (
    PinnedParties,
    VerifiedRoster,
    check_change,
    check_fleet,
    check_start,
    difference,
)
from privacy.budget import WEEK_S
from privacy.signing import verify
from transport.files.own_names import files_ending
from wire import labels
from wire.envelope import Signed
from wire.join import split_requests
from wire.rejection import Reason, ReportRejected
from wire.roster import Plan, Roster, RosterEntry
from wire.task import DEMO_DOMAIN, Task

from .operators import OperatorKeys, check_hosts_vouched

CHANGE_PERCENT: Final = 10
"""Of a roster's hosts, a week, without a word: within t, which is at least a tenth of n_max, so
that hosts which a Leader made up are among those that the noise is made for."""

_ACCEPTED: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%|([0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class WeeklyChange:
    """What a week changes.

    hosts       added, removed or changed at least once since the roster of a week before
    of_hosts    that roster's hosts
    since       its version
    """

    hosts: int
    of_hosts: int
    since: int

    @property
    def percent(self) -> float:
        """Of the roster before; above 100 where a fleet more than doubles."""
        return 100 * self.hosts / max(self.of_hosts, 1)


def weekly_change(roster: Roster, earlier: Sequence[Roster], now_s: float) -> WeeklyChange:
    """Count the hosts that a roster and those of the week before it touch.

    Rosters that are signed and not yet in force count too: whoever signs several in one week signs
    one change.
    earlier     rosters before it, in any order, back to the one that was in force a week earlier
    Raises      ReportRejected: roster_change when one in between is not there
    """
    known = sorted(earlier, key=lambda past: past.version)
    since_s = min(roster.effective_from - WEEK_S, now_s)
    in_force = [past for past in known if past.effective_from <= since_s]
    base = in_force[-1] if in_force else known[0]
    chain = [*(past for past in known if past.version >= base.version), roster]
    first_s = f"the roster in force at {int(since_s)}, and each after it"
    whole = all(after.version == before.version + 1 for before, after in pairwise(chain))
    if not whole or not (in_force or base.version == 1):
        versions = ", ".join(str(past.version) for past in known)
        raise ReportRejected(Reason.ROSTER_CHANGE, first_s, f"versions {versions}")
    touched = {host for before, after in pairwise(chain) for host in _touched(before, after)}
    return WeeklyChange(len(touched), len(base.entries), base.version)


def check_weekly_change(change: WeeklyChange, accepted: str | None, t: int | None) -> None:
    """Refuse a change that is larger than what one may sign unseen.

    accepted    `NUMBER%` of the roster before, or a number of hosts, as a person typed it
    t           the least t of the tasks that the roster serves
    Raises      ReportRejected: roster_change; ValueError for another word
    """
    allowed = change.of_hosts * CHANGE_PERCENT // 100
    words = f"{CHANGE_PERCENT} % of {change.of_hosts:,}; --accept-change allows more"
    if t is not None and t < allowed:
        allowed, words = t, "t of a task; --accept-change allows more"
    if accepted is not None:
        allowed, words = accepted_hosts(accepted, change.of_hosts), f"accepted: {accepted}"
    if change.hosts > allowed:
        raise ReportRejected(
            Reason.ROSTER_CHANGE,
            f"at most {allowed:,} hosts changed in a week ({words})",
            f"{change.hosts:,} since version {change.since} ({change.percent:.1f} %)",
        )


def accepted_hosts(text: str, of_hosts: int) -> int:
    """Read how many hosts a person lets change: `12.5%` or `40`; raises ValueError."""
    found = _ACCEPTED.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected a share like 25% or a number of hosts, got {text!r}")
    share, number = found.groups()
    return int(number) if number else int(float(share) * of_hosts / 100)


def _touched(before: Roster, after: Roster) -> set[bytes]:
    old, new = _rows(before), _rows(after)
    hosts: set[bytes] = {*old, *new}
    return {host for host in hosts if old.get(host) != new.get(host)}


def _rows(roster: Roster) -> dict[bytes, tuple[RosterEntry, Plan]]:
    """Entries by host, without the place of the plan: it moves with the table."""
    return {e.host_id: (replace(e, plan=0), roster.plans[e.plan]) for e in roster.entries}


Counts = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class RosterEvidence:
    """What a roster is held against.

    earlier     signed rosters before it: the last is a must from version 2 on; those of the week
                before count as one change with it, those of the fortnight before that decide how
                fast weights may rise
    tasks       every signed task of the fleet: of each series that the roster names the newest
                that is in use counts. One that is no demo's keeps every rule, whatever its age
    vouchers    the join requests of hosts that are new in it, one behind the other
    operators   the keys that this party pins
    first       it is the fleet's first: there is none to compare it with
    accepted_change     how much a person lets it change (`roster_change.accepted_hosts`)
    former_helper_pk    of this party before its identity changed: earlier rosters may be under it
    fleet       the name that it must have; "": that of those before it
    """

    earlier: Sequence[bytes] = ()
    tasks: Sequence[bytes] = ()
    vouchers: bytes = field(default=b"", repr=False)
    operators: OperatorKeys = field(default_factory=dict)
    first: bool = False
    accepted_change: str | None = None
    former_helper_pk: bytes | None = None
    fleet: str = ""


NO_EVIDENCE: Final = RosterEvidence()


def review_roster(
    roster: Roster,
    evidence: RosterEvidence,
    parties: PinnedParties,
    now_s: float,
    tell: Callable[[Counts], None],
) -> Counts:
    """Check a roster that the Leader signed, as a difference to what was signed before.

    tell        is given the counts before anything is refused for them
    Returns     the counts, for the person who signs
    Raises      ReportRejected
    """
    signers = signers_of(parties, evidence.former_helper_pk)
    bodies = {_body(signed, labels.ROSTER, *signers) for signed in evidence.earlier}
    earlier = [Roster.decode_body(body) for body in bodies]
    pairs = {(pair.leader_pk, pair.helper_pk) for pair in signers}
    named = [past.fleet for past in earlier if past.fleet is not None]
    if any((fleet.leader_pk, fleet.helper_pk) not in pairs for fleet in named):
        expected = "earlier rosters that name this Leader and Helper, each in its role"
        raise ReportRejected(Reason.ROSTER_FLEET, expected, "another fleet's")
    if parties.fleet:
        roster.require_fleet(parties.leader_pk, parties.helper_pk, {parties.fleet})
    check_fleet(roster, earlier, parties)
    known = [Task.decode_body(_body(signed, labels.TASK, parties)) for signed in evidence.tasks]
    tasks = _served(roster, known, now_s)
    demo = _is_demos(roster, known, evidence)
    before = _one_before(roster, earlier, first=evidence.first)
    if earlier and roster.effective_from <= now_s and not demo:
        expected = f"a start after now, {int(now_s)}"
        raise ReportRejected(Reason.ROSTER_CHANGE, expected, roster.effective_from)
    others = {past.version: past.effective_from for past in earlier}
    check_start(roster.version, roster.effective_from, others, at_once=demo)
    counts: dict[str, int | float] = dict(difference(roster, before))
    change = None if before is None or demo else weekly_change(roster, earlier, now_s)
    if change is not None:
        counts["hosts_changed_in_a_week"] = change.hosts
        counts["percent_changed_in_a_week"] = round(change.percent, 1)
    known_roster = VerifiedRoster(roster)
    cohorts = [(t, n, hosts) for t in tasks for n, hosts in known_roster.hosts(t.series).items()]
    if below := sum(hosts < task.n_min for task, _, hosts in cohorts):
        counts["cohorts_below_n_min"] = below
    tell(counts)
    requests = split_requests(evidence.vouchers)
    pinned = evidence.operators, parties.leader_pk
    check_hosts_vouched(roster, earlier, requests, *pinned, now_s)
    if change is not None:
        t = min((task.t for task in tasks), default=None)
        check_weekly_change(change, evidence.accepted_change, t)
    if not demo:
        check_change(roster, earlier, {task.series: task.window_s for task in tasks})
    for task, cohort, _ in cohorts:
        known_roster.check_fits(task, cohort)
    return counts


def _is_demos(roster: Roster, known: Sequence[Task], evidence: RosterEvidence) -> bool:
    """Whether a roster is a demo's, which changes as it likes.

    It is not enough that the tasks that it serves are: its Leader would have a demo's task signed,
    and name its series for a week, or put it in the place of the fleet's.
    """
    return (
        bool(known)
        and all(task.domain == DEMO_DOMAIN for task in known)
        and _named(roster) <= {task.series for task in known}
        and evidence.former_helper_pk is None  # a demo's parties keep their keys
    )


def _named(roster: Roster) -> set[str]:
    return {membership.series for plan in roster.plans for membership in plan}


def signers_of(parties: PinnedParties, former_helper_pk: bytes | None) -> list[PinnedParties]:
    """Give the pairs of parties under which a roster that came before may be.

    The Leader is the same in each: a machine's parts are hashed with its key, so under another they
    would not be known again.
    """
    if former_helper_pk is None:
        return [parties]
    return [parties, PinnedParties(parties.leader_pk, former_helper_pk)]


def signed_before(
    folder: Path, content: bytes, parties: PinnedParties, former_helper_pk: bytes | None = None
) -> list[bytes]:
    """Read the rosters of a folder that both parties signed, but for the one that is asked for.

    Whoever hands a roster in may leave one out that came before it; this party's own folder does
    not. What only one party signed, or is no roster, is passed over.
    """
    asked = Signed.decode(content, labels.ROSTER).unsigned()
    found = []
    for path in files_ending(folder, ".roster"):
        signed = path.read_bytes()
        with suppress(ReportRejected):
            _body(signed, labels.ROSTER, *signers_of(parties, former_helper_pk))
            if Signed.decode(signed, labels.ROSTER).unsigned() != asked:
                found.append(signed)
    return found


def signed_tasks(folder: Path, parties: PinnedParties) -> list[bytes]:
    """Read the tasks of a folder that both parties signed, those that are over too.

    Whoever hands a roster in may name a demo's task alone, whose rosters change as they like.
    """
    found = []
    for path in files_ending(folder, ".task"):
        signed = path.read_bytes()
        with suppress(ReportRejected):
            Task.decode_body(_body(signed, labels.TASK, parties))
            found.append(signed)
    return found


def _served(roster: Roster, tasks: Sequence[Task], now_s: float) -> list[Task]:
    """The newest task in use of each series that a roster names."""
    named = _named(roster)
    found = [task for task in tasks if task.expiry > now_s and task.series in named]
    found.sort(key=lambda task: task.version)
    return list({task.series: task for task in found}.values())


def _one_before(roster: Roster, earlier: Sequence[Roster], *, first: bool) -> Roster | None:
    before = max(earlier, key=lambda past: past.version, default=None)
    last = 0 if before is None else before.version
    if roster.version != last + 1:
        expected = f"version {last + 1}, after the one before"
        raise ReportRejected(Reason.ROSTER_CHANGE, expected, roster.version)
    if first != (before is None):
        # A Leader that starts over with version 1 would have nothing compared.
        raise ReportRejected(
            Reason.ROSTER_CHANGE,
            "either the roster before this one (in signed_dir, or by --previous), or the word that "
            "it is the fleet's first (--first)",
            "both" if first else "neither",
        )
    return before


def _body(content: bytes, label: bytes, *signers: PinnedParties) -> bytes:
    """The body of a file that a Leader and a Helper of one of these pairs both signed before."""
    signed = Signed.decode(content, label)
    message = signed.unsigned()
    if not any(
        verify(parties.leader_pk, message, signed.sig_leader)
        and verify(parties.helper_pk, message, signed.sig_helper)
        for parties in signers
    ):
        reason = Reason.TASK_SIGNATURE if label == labels.TASK else Reason.ROSTER_SIGNATURE
        raise ReportRejected(reason, "both parties' signatures", "others")
    return signed.body
