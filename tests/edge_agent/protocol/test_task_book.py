"""Which versions of a series a host takes, from whom, and what a past task leaves behind."""

from __future__ import annotations

import dataclasses

import pytest

from edge_agent.ledger.ledger_records import HostSpending, KnownSeries, LedgerView
from edge_agent.protocol.eligibility import BudgetBook
from edge_agent.protocol.protocol_events import (
    CommitEpochs,
    CommitFailed,
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskAccepted,
    TaskReceived,
    Withheld,
)
from edge_agent.protocol.task_check import Bounds, Pins, check_task
from privacy.budget import Entry, may_spend
from tests.agent_world import T0, WEEK_S, MemoryRuntime, World, started
from wire.catalogue import Catalogue
from wire.epoch import KeyAnnouncement
from wire.rejection import Reason, ReportRejected


def reasons(runtime: MemoryRuntime) -> list[str]:
    return [str(refusal.reason) for refusal in runtime.refused]


def test_operator_tasks_are_taken_from_the_pinned_operator_alone() -> None:
    world = World(1)
    signed = world.sign_task(world.task(domain="operator", min_operators=0))

    def check(pins: Pins) -> None:
        check_task(signed, pins, Bounds(), now_s=T0, domain_allowed=lambda _domain: True)

    with pytest.raises(ReportRejected) as refusal:
        check(world.pins)
    assert refusal.value.reason is Reason.OPERATORS
    check(dataclasses.replace(world.pins, operators=world.pins.leaders))


def test_task_with_a_section_of_no_catalogue_is_refused_before_anything_is_kept() -> None:
    world = World(1)
    runtime = MemoryRuntime(world.participant(rules=world.rules(catalogue=Catalogue.load())))
    runtime.tell(TaskReceived(world.sign_task(world.task()), T0))
    assert reasons(runtime) == [Reason.CATALOGUE]
    assert [type(effect).__name__ for effect in runtime.effects] == ["Refuse"]


def test_series_keeps_its_window_length_for_life() -> None:
    world = World(1)
    runtime = MemoryRuntime(world.participant())
    runtime.tell(TaskReceived(world.sign_task(world.task("s", window_s=3600)), T0))
    runtime.tell(TaskReceived(world.sign_task(world.task("s", window_s=60, version=2)), T0))
    assert reasons(runtime) == [Reason.FIELD]


def test_version_with_other_bytes_is_superseded_over_restarts_too() -> None:
    world = World(1)
    task, other = world.task(), world.task(last=T0 + 300)
    runtime, (task_id,) = started(world, [task])
    runtime.tell(TaskReceived(world.sign_task(other), T0))
    assert reasons(runtime) == [Reason.TASK_SUPERSEDED]
    known = {"minute": KnownSeries("minute", 1, 600_000, 60, bytes(task_id))}
    view = LedgerView(tuple(HostSpending(h, (), 0, ()) for h in world.host_ids), known)
    again = MemoryRuntime(world.participant(view))
    again.tell(TaskReceived(world.sign_task(other), T0))
    again.tell(TaskReceived(world.sign_task(task), T0))
    assert reasons(again) == [Reason.TASK_SUPERSEDED]
    assert len(again.participant.tasks) == 1


def test_past_task_gives_its_weight_back_after_a_week() -> None:
    world = World(1)
    old = world.task("old", weight=900_000, last=T0 + 600, expiry=T0 + 3600)
    new = world.sign_task(world.task("new", weight=900_000, first=T0 + 4 * WEEK_S))
    runtime = MemoryRuntime(world.participant())
    runtime.tell(TaskReceived(world.sign_task(old), T0))
    runtime.tell(TaskReceived(new, T0 + 700))
    assert reasons(runtime) == [Reason.WEIGHT]
    runtime.tell(TaskReceived(new, T0 + WEEK_S + 700))
    assert reasons(runtime) == [Reason.WEIGHT]
    assert len([e for e in runtime.effects if isinstance(e, TaskAccepted)]) == 2


def test_announced_key_that_is_none_is_refused() -> None:
    world = World(1)
    runtime = MemoryRuntime(world.participant())
    for hpke_pk in (b"\xff" * 1216, world.helper.hpke.public_bytes[:1184] + bytes(32)):
        plain = KeyAnnouncement(world.helper.pk, hpke_pk, T0 - 60, T0 + 86_400)
        signature = world.helper.signing.sign(plain.unsigned())
        runtime.tell(KeysAnnounced((dataclasses.replace(plain, signature=signature),), T0))
    assert reasons(runtime) == [Reason.FIELD, Reason.FIELD]


def test_failed_epoch_commits_burn_neither_counters_nor_the_hour() -> None:
    world = World(1)
    taking_part = world.participant()
    taking_part.handle(TaskReceived(world.sign_task(world.task()), T0))
    taking_part.handle(RosterReceived(world.roster({"minute": 600_000}), T0))
    taking_part.handle(KeysAnnounced(world.keys(), T0))
    for attempt in range(20):
        (commit,) = taking_part.handle(EpochDue(T0 + 30 * attempt))
        assert isinstance(commit, CommitEpochs)
        assert [opening.ledger_ctr for opening in commit.openings] == [1]
        taking_part.handle(CommitFailed(commit.token, Withheld.DISK_FULL))
        assert taking_part.handle(EpochDue(T0 + 30 * attempt + 29)) == []


def test_budget_sees_a_long_window_behind_many_short_ones() -> None:
    length_s = 8 * WEEK_S
    start = T0 - T0 % length_s
    entries = [Entry("s", start, start + length_s, 500_000, 1)]
    book = BudgetBook([entries])
    admitted = 0
    for minute in range(1, 6_000):
        begin = start + 2 * WEEK_S + 60 * minute  # the long one began over a week before
        short = Entry("s", begin, begin + 60, 1_000_000, 1_000)
        if not book.may_spend([0], short)[0]:
            break
        book.spend(0, short)
        entries.append(short)
        admitted += 1
    assert admitted == 500
    assert not may_spend(entries, short)
