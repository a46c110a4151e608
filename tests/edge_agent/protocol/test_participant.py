"""The participant: what it seals, what it withholds, and what it never spends twice."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.ledger.ledger_records import HostSpending, KnownSeries, LedgerView
from edge_agent.protocol.epochs import EPOCH_LIFE_S, HostEpoch
from edge_agent.protocol.protocol_events import (
    CommitEpochs,
    CommitFailed,
    CommitSealed,
    EpochDue,
    KeysAnnounced,
    LedgerCommitted,
    Publish,
    RosterReceived,
    TaskAccepted,
    TaskReceived,
    WindowClosed,
    Withheld,
)
from edge_agent.protocol.task_check import Pins
from privacy.budget import Entry
from privacy.noise_table import SeededSampler
from tests.agent_world import (
    T0,
    WEEK_S,
    MemoryRuntime,
    NoNoise,
    Party,
    World,
    close_window,
    counting_bytes,
    epochs,
    open_report,
    reports,
    started,
)
from wire.fields import NO_TAG, Scheme
from wire.rejection import Reason
from wire.report import report_length


def reasons(runtime: MemoryRuntime) -> list[str]:
    return [str(refusal.reason) for refusal in runtime.refused]


def test_participant_reports_open_to_the_encoded_rows() -> None:
    world = World(3)
    task = world.task()
    runtime, (tid,) = started(world, [task], participant=world.participant(sampler=NoNoise()))
    rows = np.array([[1000, 2000, 0, 5000], [0, 0, 0, 0], [64_000, 0, 0, 0]], dtype=np.int64)
    close_window(runtime, world, task, tid, T0, rows)
    by_host = {epoch.header.host_id: epoch for epoch in epochs(runtime.published)}
    opened = [open_report(world, by_host[r.host_id], r) for r in reports(runtime.published)]
    assert [o.tolist() for o in opened] == [[1, 1, *(row // 1000)] for row in rows]


def test_participant_check_words_carry_no_noise() -> None:
    world = World(5)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    close_window(runtime, world, task, tid, T0)
    by_host = {epoch.header.host_id: epoch for epoch in epochs(runtime.published)}
    opened = [open_report(world, by_host[r.host_id], r) for r in reports(runtime.published)]
    assert all(o[:2].tolist() == [1, 1] for o in opened)
    assert any(o[2:].any() for o in opened)


def test_participant_local_scheme_sends_signed_words_without_mask() -> None:
    world = World(2)
    world.pins = Pins(world.pins.leaders, world.pins.helpers, world.pins.leaders)
    task = world.task(scheme=Scheme.LOCAL, helper_pk=b"")
    runtime = MemoryRuntime(world.participant(sampler=NoNoise()))
    runtime.tell(TaskReceived(world.sign_task(task), T0))
    runtime.tell(RosterReceived(world.roster({"minute": 600_000}, local=True), T0))
    runtime.tell(KeysAnnounced(world.keys(), T0))
    runtime.tell(EpochDue(T0))
    tid = next(iter(runtime.participant.tasks))
    rows = np.full((2, 4), 3000, dtype=np.int64)
    close_window(runtime, world, task, tid, T0, rows)
    first_epoch, first = epochs(runtime.published)[0], reports(runtime.published)[0]
    assert first_epoch.seal_h == b""
    assert first.tag_h == NO_TAG
    assert len(first.encode()) == report_length(task.d, Scheme.LOCAL)
    assert open_report(world, first_epoch, first).tolist() == [1, 1, 3, 3, 3, 3]


def test_participant_publishes_nothing_before_the_commit() -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    event = WindowClosed(tid, T0, np.zeros((1, 4), np.int64), np.ones(1, np.bool_), T0 + 60)
    effects = runtime.participant.handle(event)
    assert [type(effect) for effect in effects] == [CommitSealed]
    committed = effects[0]
    assert isinstance(committed, CommitSealed)
    (publish,) = runtime.participant.handle(LedgerCommitted(committed.token, (9,)))
    assert isinstance(publish, Publish)
    assert publish.records is committed.records
    assert publish.spool_ids == (9,)


def test_participant_gives_budget_back_when_the_commit_failed() -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    event = WindowClosed(tid, T0, np.zeros((1, 4), np.int64), np.ones(1, np.bool_), T0 + 60)
    (commit,) = runtime.participant.handle(event)
    assert isinstance(commit, CommitSealed)
    runtime.tell(CommitFailed(commit.token, Withheld.SPOOL_FULL))
    assert reasons(runtime) == ["spool_full"]
    assert isinstance(runtime.participant.handle(event)[0], CommitSealed)


def test_participant_never_seals_a_window_twice() -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    close_window(runtime, world, task, tid, T0 + 60)
    close_window(runtime, world, task, tid, T0 + 60)
    close_window(runtime, world, task, tid, T0, late_s=60)
    assert reasons(runtime) == ["window_spent", "window_late"]
    assert len(reports(runtime.published)) == 1


def test_participant_withholds_when_the_week_is_spent() -> None:
    world = World(2)
    task = world.task(weight=1_000_000, window_s=86_400, lateness_s=0)
    full = Entry("other", T0 - 86_400, T0, 1_000_000, 1)
    views = (
        HostSpending(world.host_ids[0], (full,), 0, ()),
        HostSpending(world.host_ids[1], (), 0, ()),
    )
    runtime, (tid,) = started(
        world, [task], now_s=T0 + 85_000, participant=world.participant(LedgerView(views))
    )
    close_window(runtime, world, task, tid, T0)
    assert [(r.reason, r.hosts) for r in runtime.refused] == [(Withheld.BUDGET, 1)]
    assert [r.host_id for r in reports(runtime.published)] == [world.host_ids[1]]


def test_participant_weekly_entry_counts_against_minutes_that_straddle_it() -> None:
    world = World(1)
    minute, week = world.task(weight=600_000), world.task("week", window_s=WEEK_S, weight=500_000)
    # The week's series is over-weight beside the minutes: task check would refuse both together,
    # so the weekly entries come from the ledger. Two of them cost 0.5 in a straddling week.
    spent = tuple(
        Entry("week", T0 + k * WEEK_S, T0 + (k + 1) * WEEK_S, 500_000, 2) for k in (-1, 0)
    )
    minutes = tuple(
        Entry("minute", T0 - 60 * (k + 1), T0 - 60 * k, 600_000, 10_081)
        for k in range(8_400, -1, -1)
    )
    view = LedgerView((HostSpending(world.host_ids[0], (*spent, *minutes), 0, ()),))
    runtime, (tid,) = started(world, [minute], participant=world.participant(view))
    close_window(runtime, world, minute, tid, T0)
    assert reasons(runtime) == ["budget"]
    alone = LedgerView((HostSpending(world.host_ids[0], minutes, 0, ()),))
    runtime, (tid,) = started(world, [minute], participant=world.participant(alone))
    close_window(runtime, world, minute, tid, T0)
    assert reasons(runtime) == []
    assert week.series == "week"


def test_participant_two_tasks_share_one_budget() -> None:
    world = World(1)
    first = world.task("fleet", weight=700_000, window_s=86_400, first=T0, last=T0)
    second = world.task("operator", weight=300_000, window_s=86_400, first=T0, last=T0)
    runtime, ids = started(world, [first, second], now_s=T0 + 85_000)
    for task, tid in zip((first, second), ids, strict=True):
        close_window(runtime, world, task, tid, T0)
    assert reasons(runtime) == []
    assert len(reports(runtime.published)) == 2
    third = world.task("third", weight=1)
    runtime.tell(TaskReceived(world.sign_task(third), T0 + 86_400))
    assert reasons(runtime) == [Reason.WEIGHT]


def test_participant_serves_two_leaders_from_one_budget_and_one_counter() -> None:
    """Two Leaders, one Helper: epochs of their own, one counter, one ledger."""
    fleet = World(1)
    operator = World(1, helper=fleet.helper)
    operator.signing_keys, operator.identities = fleet.signing_keys, fleet.identities
    leaders = fleet.pins.leaders | operator.pins.leaders
    rules = fleet.rules(pins=Pins(leaders, fleet.pins.helpers))
    runtime = MemoryRuntime(fleet.participant(rules=rules))
    tasks = [
        (fleet, fleet.task("fleet", weight=700_000)),
        (operator, operator.task("operator", weight=300_000)),
    ]
    for world, task in tasks:
        weight = sum(section.weight_millionths for section in task.sections)
        runtime.tell(TaskReceived(world.sign_task(task), T0))
        runtime.tell(RosterReceived(world.roster({task.series: weight}), T0))
        runtime.tell(KeysAnnounced(world.keys(), T0))
    runtime.tell(EpochDue(T0))
    for (world, task), tid in zip(tasks, runtime.participant.tasks, strict=True):
        close_window(runtime, world, task, tid, T0)
    opened = epochs(runtime.published)
    assert sorted(e.header.ledger_ctr for e in opened) == [1, 2]
    assert len({e.header.leader_kid for e in opened}) == 2
    by_id = {e.header.epoch_id: e for e in opened}
    for (world, _), report in zip(tasks, reports(runtime.published), strict=True):
        assert open_report(world, by_id[report.epoch_id], report)[:2].tolist() == [1, 1]
    assert len(runtime.committed) == 2


def test_participant_refuses_weights_swapped_at_a_week_start() -> None:
    """The old heavy series still counts in weeks that straddle the swap."""
    world = World(1)
    day_s = 86_400
    heavy = tuple(Entry("a", T0 - k * WEEK_S, T0 - (k - 1) * WEEK_S, 900_000, 2) for k in (2, 1))
    view = LedgerView((HostSpending(world.host_ids[0], heavy, 0, ()),))
    light = world.task("a", window_s=WEEK_S, weight=100_000, version=2)
    grown = world.task("b", window_s=day_s, weight=900_000)
    runtime, (_, tid) = started(
        world, [light, grown], now_s=T0 + day_s, participant=world.participant(view)
    )
    sealed = []
    for day in range(9):
        start = T0 + day * day_s
        runtime.tell(EpochDue(start + day_s))
        close_window(runtime, world, grown, tid, start)
        sealed.append(len(reports(runtime.published)))
    # The last heavy week costs 0.45 of every week that starts before T0: four days of 0.1125 fit
    # beside it, the fifth and sixth do not; a week after the swap the new weight runs freely.
    assert sealed == [1, 2, 3, 4, 4, 4, 4, 5, 6]
    assert set(reasons(runtime)) == {"budget"}


def test_participant_rolling_week_lets_a_full_series_go_on_for_ever() -> None:
    world = World(1)
    day_s = 86_400
    task = world.task(window_s=day_s, weight=1_000_000)
    runtime, (tid,) = started(world, [task], now_s=T0)
    for day in range(30):
        runtime.tell(KeysAnnounced(world.keys(T0 + day * day_s), T0 + day * day_s))
        runtime.tell(EpochDue(T0 + (day + 1) * day_s))
        close_window(runtime, world, task, tid, T0 + day * day_s)
    assert reasons(runtime) == []
    assert len(reports(runtime.published)) == 30


def test_participant_that_joins_mid_week_has_no_more_than_its_windows() -> None:
    world = World(1)
    runtime = MemoryRuntime(world.participant())
    task = world.task()
    runtime.tell(TaskReceived(world.sign_task(task), T0))
    joined = T0 + 3 * 86_400
    runtime.tell(RosterReceived(world.roster({"minute": 600_000}, effective_from=joined), joined))
    runtime.tell(KeysAnnounced(world.keys(joined - 600), joined - 600))
    tid = next(iter(runtime.participant.tasks))
    close_window(runtime, world, task, tid, joined - 60)
    assert reasons(runtime) == ["no_roster"]
    runtime.tell(EpochDue(joined))
    close_window(runtime, world, task, tid, joined)
    assert len(reports(runtime.published)) == 1


def test_participant_epoch_lasts_an_hour_and_its_keys_are_erased() -> None:
    others = _live_secrets()
    world = World(2)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    close_window(runtime, world, task, tid, T0)
    old = [e.epoch_id for e in (x.header for x in epochs(runtime.published))]
    assert runtime.tell(EpochDue(T0 + 3599)) == []
    secrets = _live_secrets() - others
    assert len(secrets) >= 2
    effects = runtime.tell(EpochDue(T0 + 3607))  # a late step
    assert any(isinstance(e, CommitEpochs) for e in effects)
    gc.collect()
    assert not secrets & _live_secrets()
    fresh = epochs(runtime.published)[2:]
    assert not {e.header.epoch_id for e in fresh} & set(old)
    times = {(e.header.not_before, e.header.not_after) for e in fresh}
    assert times == {(T0 + 3600, T0 + 3600 + EPOCH_LIFE_S)}
    assert runtime.tell(EpochDue(T0 + 7199)) == []
    assert runtime.tell(EpochDue(T0 + 7200))
    assert [e.header.ledger_ctr for e in fresh] == [2, 2]


def _live_secrets() -> set[bytes]:
    """Collect the epoch keys that any live object still holds."""
    held = [o for o in gc.get_objects() if isinstance(o, HostEpoch)]
    return {o.k_h for o in held if o.k_h} | {
        keys.k_mask for o in held for keys in o.derived.values() if keys.k_mask
    }


def test_participant_erases_an_ended_epoch_and_reports_nothing_under_it() -> None:
    others = _live_secrets()
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    assert _live_secrets() - others
    late = T0 + EPOCH_LIFE_S // 60 * 60
    close_window(runtime, world, task, tid, late)
    assert reasons(runtime) == ["no_epoch"]
    runtime.participant._keys._keys.clear()
    runtime.tell(EpochDue(T0 + EPOCH_LIFE_S))
    gc.collect()
    assert not _live_secrets() - others


@pytest.mark.parametrize(
    ("woke_s", "why"), [(30, "no_epoch"), (31, "window_late"), (7_200, "window_late")]
)
def test_participant_spends_nothing_for_a_window_that_it_woke_too_late_for(
    woke_s: int, why: str
) -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task], now_s=T0 + 91)
    rows, present = np.zeros((1, 4), np.int64), np.ones(1, np.bool_)
    runtime.tell(WindowClosed(tid, T0, rows, present, T0 + 60 + woke_s))
    assert (reasons(runtime), runtime.committed) == ([why], [])
    runtime.tell(WindowClosed(tid, T0 + 60, rows, present, T0 + 121))
    assert len(reports(runtime.published)) == 1


def test_participant_opens_at_most_twelve_epochs_an_hour_over_restarts() -> None:
    world = World(1)
    task = world.task()
    opened = tuple(T0 - 60 * k for k in range(12, 0, -1))
    view = LedgerView((HostSpending(world.host_ids[0], (), 40, opened),))
    runtime, _ = started(world, [task], participant=world.participant(view))
    assert reasons(runtime) == ["epoch_rate"]
    runtime.tell(EpochDue(T0 + 3600))
    assert [e.header.ledger_ctr for e in epochs(runtime.published)] == [41]


def test_participant_counts_epochs_of_a_clock_that_was_ahead_once_their_hour_comes() -> None:
    world = World(1)
    ahead_s = T0 + 7200
    opened = tuple(ahead_s + 60 * k for k in range(12))
    view = LedgerView((HostSpending(world.host_ids[0], (), 40, opened),))
    runtime, _ = started(world, [world.task()], participant=world.participant(view))
    assert [e.header.ledger_ctr for e in epochs(runtime.published)] == [41]
    runtime.tell(EpochDue(ahead_s + 3000))
    assert reasons(runtime) == ["epoch_rate"]


@pytest.mark.parametrize("rows", ["idle", "busy"])
def test_participant_offsets_and_sizes_do_not_depend_on_load(rows: str) -> None:
    world = World(400)
    task = world.task(window_s=60)
    runtime, (tid,) = started(world, [task])
    load = np.zeros((400, 4), np.int64)
    if rows == "busy":
        load += 10**12
    close_window(runtime, world, task, tid, T0, load)
    sealed = [r for r in runtime.published if r.topic.endswith("reports")]
    assert {len(r.value) for r in sealed} == {len(sealed[0].value)}
    offsets = np.array([r.publish_at_ms for r in sealed]) - (T0 + 60) * 1000
    assert offsets.min() >= 2000
    assert offsets.max() < 7000
    assert abs(np.mean(offsets) - 4500) < 4 * 5000 / np.sqrt(12 * 400)


def test_participant_short_windows_spread_over_a_quarter_of_them() -> None:
    world = World(200)
    task = world.task(window_s=4, lateness_s=2)
    runtime, (tid,) = started(world, [task])
    close_window(runtime, world, task, tid, T0)
    sealed = [r for r in runtime.published if r.topic.endswith("reports")]
    offsets = np.array([r.publish_at_ms for r in sealed]) - (T0 + 4) * 1000
    assert 250 <= offsets.min() < 350
    assert 1150 < offsets.max() < 1250


def test_participant_without_roster_membership_reports_nothing() -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task])
    runtime.tell(RosterReceived(world.roster({"other": 1}, version=2, effective_from=T0), T0))
    close_window(runtime, world, task, tid, T0)
    assert reasons(runtime) == ["not_rostered"]


def test_participant_refuses_a_roster_of_strangers() -> None:
    world, other = World(1), World(1)
    runtime = MemoryRuntime(world.participant())
    runtime.tell(RosterReceived(other.roster({"minute": 1}), T0))
    assert reasons(runtime) == [Reason.ROSTER_SIGNATURE]


def test_participant_refuses_keys_that_no_pinned_party_signed() -> None:
    world = World(1)
    runtime = MemoryRuntime(world.participant())
    good = world.leader.announce(T0, T0 + 60)
    forged = dataclasses.replace(good, not_after=T0 + 600)
    runtime.tell(KeysAnnounced((forged, Party().announce(T0, T0 + 60)), T0))
    assert reasons(runtime) == [Reason.KEY_SIGNATURE, Reason.KEY_PARTY]


def test_participant_after_a_recovery_takes_no_new_and_no_heavier_series() -> None:
    world = World(1)
    known = {"minute": KnownSeries("minute", 3, 600_000, 60)}
    view = dataclasses.replace(
        world.empty_view(), series=known, resume_after_s=T0 + 60, freeze_until_s=T0 + 2 * WEEK_S
    )
    participant = world.participant(view)
    fresh = world.task("new", weight=10)
    heavy = world.task(weight=700_000, version=4)
    old = world.task(version=2)
    good = world.task(version=3)
    runtime, ids = started(world, [fresh, heavy, old, good], participant=participant)
    assert reasons(runtime) == ["recovering", "recovering", Reason.TASK_SUPERSEDED]
    runtime.tell(RosterReceived(world.roster({"minute": 600_000}, version=2), T0))
    runtime.tell(EpochDue(T0 + 60))
    close_window(runtime, world, good, ids[3], T0 + 60)
    assert reasons(runtime)[3:] == ["recovering"]
    close_window(runtime, world, good, ids[3], T0 + 120)
    assert len(reports(runtime.published)) == 1
    effects = runtime.tell(TaskReceived(world.sign_task(fresh), T0 + 2 * WEEK_S))
    assert any(isinstance(e, TaskAccepted) for e in effects)


def test_participant_refuses_seeded_noise_outside_the_demo() -> None:
    world = World(1)
    with pytest.raises(ValueError, match="seeded noise"):
        world.participant(sampler=SeededSampler(1), rules=world.rules(domain="live"))


class FloatNoise:
    """A sampler whose noise lies on floating point's lattice."""

    seeded = True

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros((hosts, sigma_1024.size), dtype=np.float64)


class NoisyCheckWords:
    """A sampler that disturbs the check words."""

    seeded = True

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones((hosts, sigma_1024.size), dtype=np.int64)


@pytest.mark.parametrize("sampler", [FloatNoise(), NoisyCheckWords()])
def test_participant_publishes_nothing_on_a_noise_fault(sampler: NoNoise) -> None:
    world = World(1)
    task = world.task()
    runtime, (tid,) = started(world, [task], participant=world.participant(sampler=sampler))
    close_window(runtime, world, task, tid, T0)
    assert reasons(runtime) == ["noise_fault"]
    assert reports(runtime.published) == []


def test_participant_runs_repeat_under_the_same_randomness() -> None:
    world = World(2)
    task = world.task()
    sealed = []
    for _ in range(2):
        runtime, (tid,) = started(world, [task], participant=world.participant(seed=5))
        close_window(runtime, world, task, tid, T0)
        by_host = {epoch.header.host_id: epoch for epoch in epochs(runtime.published)}
        sealed.append(
            [open_report(world, by_host[r.host_id], r) for r in reports(runtime.published)]
        )
    assert np.array_equal(sealed[0], sealed[1])
    assert counting_bytes(5)(8) == counting_bytes(5)(8)
