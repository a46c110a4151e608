"""A machine installed anew has no ledger: the rosters alone keep it from a second budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction

import pytest

from aggregator.enrolment.roster_draft import draft_roster
from aggregator.enrolment.tasks import sign_roster
from aggregator.protocol.directory import check_change
from edge_agent.protocol.roster_book import RosterBook
from edge_agent.protocol.task_check import Pins
from privacy.budget import WEEK_S, Entry, peak
from privacy.calibrate import windows_touched
from tests.enrolment_kit import LEADER, host, request, token
from tests.protocol_kit import signing_key
from wire.fields import HostId
from wire.join import JoinRequest
from wire.rejection import ReportRejected
from wire.roster import Plan, PlanMembership, Roster

HELPER = signing_key("helper")
X = 2904 * WEEK_S
"""The week at which the new key follows: not the start of a window of eight weeks."""
WINDOWS_S = {"hour": 3600, "day": 86_400, "week": WEEK_S, "eight": 8 * WEEK_S}
PLAN: Plan = (
    PlanMembership("hour", 0, 400_000),
    PlanMembership("day", 0, 300_000),
    PlanMembership("week", 0, 200_000),
    PlanMembership("eight", 0, 100_000),
)
OTHER: Plan = (PlanMembership("week", 0, 1_000_000),)
PARTS = ("GPU-a", "GPU-b")


def before(*asked: JoinRequest) -> Roster:
    requests = {str(number): one for number, one in enumerate(asked)}
    start_s = X - 20 * WEEK_S
    return draft_roster(None, {"fleet": PLAN}, requests, start_s).roster


def after(
    past: Roster, asked: JoinRequest, remove: Collection[bytes], plan: Plan = PLAN
) -> tuple[Roster, Sequence[object]]:
    draft = draft_roster(past, {"fleet": plan}, {"new": asked}, X, remove=remove)
    return draft.roster, draft.refused


def everything(identity: HostId, rosters: Sequence[Roster]) -> list[Entry]:
    """What an agent that forgets all it did would report: each window that the rosters give it."""
    pins = Pins(frozenset({LEADER.public_bytes}), frozenset({HELPER.public_bytes}))
    book = RosterBook(pins, (identity,))
    for roster in rosters:
        book.add(sign_roster(roster, LEADER, HELPER), WINDOWS_S)
    (parties,) = book._rosters
    found = []
    for series, window_s in WINDOWS_S.items():
        touched = windows_touched(window_s, 10**6)
        first = (X - 3 * WEEK_S) // window_s * window_s
        for start in range(first, X + 3 * WEEK_S, window_s):
            view = book.in_force(parties, start)
            membership = ((view and view.plans[identity]) or {}).get(series)
            if membership is not None:
                weight = membership.weight_millionths
                found.append(Entry(series, start, start + window_s, weight, touched))
    return found


def test_both_keys_of_a_machine_together_stay_within_one_budget() -> None:
    old, new = request("old", PARTS), request("new", PARTS, token("second"))
    past = before(old)
    roster, refused = after(past, new, [host("old").host_id])
    assert not refused
    check_change(roster, [past], WINDOWS_S)
    spent = [everything(host(name).host_id, [past, roster]) for name in ("old", "new")]
    assert min(map(len, spent)) > 500, "each has its windows"
    both = sorted((entry.series, entry.start) for part in spent for entry in part)
    assert len(set(both)) == len(both), "no window is given twice"
    assert Fraction(9, 10) < peak([*spent[0], *spent[1]]) <= 1


@pytest.mark.parametrize("parts", [PARTS, ("machine-new", "GPU-b")])
def test_machine_on_the_roster_is_known_by_any_part(parts: Sequence[str]) -> None:
    new = request("new", parts, token("second"))
    roster, refused = after(before(request("old", PARTS)), new, [])
    assert len(roster.entries) == 1
    assert len(refused) == 1


def test_new_key_takes_no_weight_that_was_not_free() -> None:
    """Another plan at once would be a second budget for the week that both plans touch."""
    new = request("new", PARTS, token("second"))
    past = before(request("old", PARTS))
    roster, _ = after(past, new, [host("old").host_id], OTHER)
    with pytest.raises(ReportRejected, match="roster_change"):
        check_change(roster, [past], WINDOWS_S)
    heavier = [Entry("week", start, start + WEEK_S, 1_000_000, 2) for start in (X, X + WEEK_S)]
    alone = [*everything(host("old").host_id, [past]), *heavier]
    assert peak(alone) > 1


def test_new_key_takes_none_even_weeks_later() -> None:
    """It left at X, and comes back with more: what it spent in the week before is still told."""
    past = before(request("old", PARTS))
    gone = draft_roster(past, {}, {}, X, remove=[host("old").host_id]).roster
    back = draft_roster(
        gone, {"fleet": OTHER}, {"new": request("new", PARTS, token("second"))}, X + WEEK_S
    )
    assert not back.refused
    with pytest.raises(ReportRejected, match="roster_change"):
        check_change(back.roster, [past, gone], WINDOWS_S)
