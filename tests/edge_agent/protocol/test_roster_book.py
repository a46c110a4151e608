"""What a host asks of a roster, whoever signed it: crowd sizes, week starts, room before weight."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import Crowd, KnownRoster
from edge_agent.protocol.eligibility import crowd_fault
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
    Withheld,
)
from edge_agent.protocol.roster_book import RosterBook
from privacy.noise_table import LiveSampler
from tests.agent_world import (
    T0,
    WEEK_S,
    MemoryRuntime,
    World,
    close_window,
    new_ledger,
    reports,
    started,
)
from wire import labels
from wire.envelope import Signed
from wire.fields import Scheme, task_id
from wire.rejection import Reason, ReportRejected
from wire.roster import Roster


def book(world: World, *, weekly: bool = True) -> RosterBook:
    return RosterBook(world.pins, tuple(h.host_id for h in world.identities), weekly)


def refused(rosters: RosterBook, signed: bytes, windows_s: dict[str, int] | None = None) -> Reason:
    with pytest.raises(ReportRejected) as refusal:
        rosters.add(signed, windows_s or {})
    return refusal.value.reason


def test_roster_counts_hosts_and_the_largest_operator_per_cohort() -> None:
    world = World(13)
    view = book(world).add(world.roster({"minute": 100_000}, cohort=7, crowd=13))
    assert view is not None
    assert view.crowds == {("minute", 7): (13, 2)}


def test_first_roster_may_be_in_force_at_once_and_later_ones_only_from_a_week_start() -> None:
    world = World(1)
    rosters = book(world)
    rosters.add(world.roster({"minute": 100_000}, effective_from=T0 + 77))
    late = world.roster({"minute": 100_000}, version=2, effective_from=T0 + WEEK_S + 1)
    assert refused(rosters, late) is Reason.ROSTER_CHANGE
    rosters.add(world.roster({"minute": 100_000}, version=2, effective_from=T0 + WEEK_S))
    same = world.roster({"minute": 100_000}, version=3, effective_from=T0 + WEEK_S)
    assert refused(rosters, same) is Reason.ROSTER_CHANGE
    alone = world.roster({"minute": 100_000}, version=9, effective_from=T0 + 1)
    assert refused(book(world), alone) is Reason.ROSTER_CHANGE


def test_weight_increases_only_after_room_was_made() -> None:
    world = World(1)
    windows_s = {"minute": 60, "day": 86_400}
    rosters = book(world)
    rosters.add(world.roster({"minute": 600_000, "day": 400_000}), windows_s)
    moved = {"minute": 900_000, "day": 100_000}
    at_once = world.roster(moved, version=2, effective_from=T0)
    assert refused(rosters, at_once, windows_s) is Reason.ROSTER_CHANGE
    first = {"minute": 600_000, "day": 100_000}
    rosters.add(world.roster(first, version=2, effective_from=T0), windows_s)
    early = world.roster(moved, version=3, effective_from=T0 + WEEK_S)
    assert refused(rosters, early, windows_s) is Reason.ROSTER_CHANGE
    rosters.add(world.roster(moved, version=3, effective_from=T0 + 2 * WEEK_S), windows_s)


def test_host_that_missed_where_room_was_made_takes_the_newest_roster() -> None:
    """Away for two changes, it would refuse every later roster, for ever."""
    world, windows_s = World(1), {"minute": 60, "day": 86_400}
    rosters = book(world)
    rosters.add(world.roster({"minute": 600_000, "day": 400_000}), windows_s)
    moved = {"minute": 900_000, "day": 100_000}
    rosters.add(world.roster(moved, version=3, effective_from=T0 + 2 * WEEK_S), windows_s)
    back = {"minute": 600_000, "day": 400_000}
    at_once = world.roster(back, version=4, effective_from=T0 + 3 * WEEK_S)
    assert refused(rosters, at_once, windows_s) is Reason.ROSTER_CHANGE


def test_demo_rosters_change_when_they_like() -> None:
    world = World(1)
    rosters = book(world, weekly=False)
    rosters.add(world.roster({"minute": 100_000}))
    rosters.add(world.roster({"minute": 900_000}, version=2, effective_from=T0 + 12_345))


def test_live_participant_refuses_a_roster_in_the_middle_of_a_week() -> None:
    world = World(1)
    live = world.participant(rules=world.rules(domain="live"), sampler=LiveSampler(os.urandom))
    runtime = MemoryRuntime(live)
    runtime.tell(RosterReceived(world.roster({"minute": 100_000}, effective_from=T0), T0))
    late = world.roster({"minute": 900_000}, version=2, effective_from=T0 + 12_345, cohort=8)
    runtime.tell(RosterReceived(late, T0))
    assert [refusal.reason for refusal in runtime.refused] == [Reason.ROSTER_CHANGE]


def test_participant_withholds_while_the_roster_outgrows_the_task() -> None:
    world = World(12)
    task = world.task(n_max=11, n_min=10, t=2)
    rules = world.rules(bounds=dataclasses.replace(world.rules().bounds, n_min_at_least=10))
    runtime, (tid,) = started(world, [task], participant=world.participant(rules=rules))
    close_window(runtime, world, task, tid, T0)
    assert reports(runtime.published) == []
    assert {r.reason for r in runtime.refused} == {Withheld.ROSTER_LARGE}


def test_crowd_of_one_operator_beyond_t_is_a_fault_where_operators_count() -> None:
    task = World(1).task(n_max=100, n_min=80, t=10)
    assert crowd_fault(task, Crowd(100, 10)) is None
    assert crowd_fault(task, Crowd(100, 11)) is Withheld.OPERATOR_LARGE
    assert crowd_fault(task, Crowd(80, 8)) is None
    assert crowd_fault(task, Crowd(79, 8)) is Withheld.ROSTER_SMALL
    assert crowd_fault(task, Crowd(101, 1)) is Withheld.ROSTER_LARGE
    own = dataclasses.replace(task, min_operators=0)
    assert crowd_fault(own, Crowd(100, 100)) is None
    local = dataclasses.replace(task, scheme=Scheme.LOCAL)
    assert crowd_fault(local, Crowd(101, 100)) is None
    assert crowd_fault(local, Crowd(1, 1)) is None


def restarted(world: World, ledger: Ledger, signed: bytes, now_s: int) -> MemoryRuntime:
    """A live agent that starts on its ledger and is given one task and one roster."""
    rules, view = world.rules(domain="live"), ledger.view(world.host_ids)
    live = world.participant(view, rules=rules, sampler=LiveSampler(os.urandom))
    runtime = MemoryRuntime(live, ledger)
    task = world.sign_task(world.task(domain="fleet"))
    for event in (TaskReceived(task, now_s), RosterReceived(signed, now_s)):
        runtime.tell(event)
    runtime.tell(KeysAnnounced(world.keys(now_s), now_s))
    runtime.tell(EpochDue(now_s))
    return runtime


def test_restarted_host_knows_the_roster_in_force_beside_a_newer_one(tmp_path: Path) -> None:
    """A compacted topic keeps the newest roster alone, and that one begins next week."""
    world = World(1)
    ledger = new_ledger(tmp_path, world)
    first = world.roster({"minute": 600_000})
    following = world.roster({"minute": 600_000}, version=2, effective_from=T0 + WEEK_S)
    runtime = restarted(world, ledger, first, T0)
    runtime.tell(RosterReceived(following, T0))
    again = restarted(world, ledger, following, T0 + 60)
    task = world.task(domain="fleet")
    close_window(again, world, task, task_id(world.sign_task(task)[:-128]), T0)
    assert [str(refusal.reason) for refusal in again.refused] == []
    assert len(again.committed) == 1
    ledger.close()


def test_restarted_host_holds_a_roster_to_those_before_it(tmp_path: Path) -> None:
    """Neither an older version nor a weight that was not free is taken because of a restart."""
    world = World(1)
    ledger = new_ledger(tmp_path, world)
    weights = {"minute": 600_000, "day": 400_000}
    for version, since_s in ((1, 0), (9, T0)):
        signed = world.roster(weights, version=version, effective_from=since_s)
        restarted(world, ledger, signed, T0)
    older = world.roster({"minute": 500_000}, version=5, effective_from=T0 - WEEK_S)
    moved = world.roster(
        {"minute": 900_000, "day": 100_000}, version=10, effective_from=T0 + WEEK_S
    )
    for signed, why in ((older, Reason.ROSTER_VERSION), (moved, Reason.ROSTER_CHANGE)):
        again = restarted(world, ledger, signed, T0)
        assert [refusal.reason for refusal in again.refused] == [why]
    ledger.close()


def unnamed(world: World, signed: bytes) -> bytes:
    """The same roster as it was signed before rosters named their fleet."""
    body = Roster.decode_body(Signed.decode(signed, labels.ROSTER).body)
    return world.sign(labels.ROSTER, dataclasses.replace(body, fleet=None).encode_body())


def test_first_roster_that_names_its_fleet_binds_a_host_over_restarts(tmp_path: Path) -> None:
    world = World(1)
    ledger = new_ledger(tmp_path, world)
    weights = {"minute": 600_000}
    before = unnamed(world, world.roster(weights))
    assert restarted(world, ledger, before, T0).refused == []
    named = world.roster(weights, version=2, effective_from=T0)
    assert restarted(world, ledger, named, T0).refused == []
    two = world, World(1, world.leader, world.helper)
    third, other = (w.roster(weights, version=3, effective_from=T0 + WEEK_S) for w in two)
    for signed in (unnamed(world, third), other):
        again = restarted(world, ledger, signed, T0)
        assert [refusal.reason for refusal in again.refused] == [Reason.ROSTER_FLEET]
    ledger.close()


def test_roster_of_the_pinned_fleet_alone_is_taken() -> None:
    world = World(1)
    signed = world.roster({"minute": 100_000})
    for fleets, taken in (({world.fleet}, signed), ({"other", world.fleet}, signed)):
        world.pins = dataclasses.replace(world.pins, fleets=frozenset(fleets))
        assert book(world).add(taken) is not None
        assert refused(book(world), unnamed(world, signed)) is Reason.ROSTER_FLEET
    world.pins = dataclasses.replace(world.pins, fleets=frozenset({"other"}))
    assert refused(book(world), signed) is Reason.ROSTER_FLEET


def test_ledger_keeps_the_newest_rosters_of_each_pair_of_aggregators(tmp_path: Path) -> None:
    world = World(1)
    ledger = new_ledger(tmp_path, world)
    plans = {world.host_ids[0]: None}
    for leader in (b"a" * 32, b"b" * 32):
        for version in range(1, 12):
            ledger.remember_roster(KnownRoster(leader, b"h" * 32, version, 0, plans, {}))
    kept = ledger.view(world.host_ids).rosters
    assert [one.version for one in kept] == [*range(4, 12), *range(4, 12)]
    ledger._db.execute("DROP TABLE rosters")  # as an agent of an earlier version left it
    assert ledger.view(world.host_ids).rosters == ()
    ledger.close()
