"""How much of a roster one week may change: what the Helper's tool signs without being told to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from privacy.budget import WEEK_S
from wire.rejection import Reason, ReportRejected
from wire.roster import Plan, Roster, RosterEntry

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
    """Read how many hosts a person lets change: `12.5%` or `40`.

    Raises      ValueError
    """
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
    found = {}
    for entry in roster.entries:
        where = RosterEntry(
            entry.host_id, entry.ed25519_pk, entry.operator, 0, entry.gpu_models,
            entry.hardware, entry.voucher_id,
        )  # fmt: skip
        found[bytes(entry.host_id)] = (where, roster.plans[entry.plan])
    return found
