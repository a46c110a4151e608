"""Hundreds of drawn schedules, those that are kept, and the bugs that schedules must find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schedules.campaign import play, problems_of, shrink
from tests.schedules.faults import STRIKES
from tests.schedules.planted import PLANTED, Planted
from tests.schedules.schedule import KINDS, Fault, Schedule, draw_schedule, read_kept

KEPT = read_kept(Path(__file__).parent / "kept")
DRAWN = 120
CHUNK = 10


@pytest.mark.release
@pytest.mark.parametrize("first", range(0, DRAWN, CHUNK))
def test_drawn_schedules_lose_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        schedule = draw_schedule(seed)
        assert problems_of(schedule) == (), f"python -m tests.schedules --seed {seed}\n{schedule}"


@pytest.mark.parametrize("name", KEPT)
def test_kept_schedules_lose_nothing(name: str) -> None:
    assert problems_of(KEPT[name]) == (), str(KEPT[name])


def test_planted_bugs_are_found_by_what_they_break_alone() -> None:
    for bug in PLANTED:
        assert problems_of(bug.shown_by) == (), bug.name


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bugs_show(bug: Planted) -> None:
    with bug.planted():
        assert problems_of(bug.shown_by)


def test_schedule_without_faults_releases_every_window_with_every_host() -> None:
    outcome = play(Schedule(1))
    assert (outcome.problems, outcome.released, outcome.reports) == ((), 5, 40)


def test_same_seed_plays_the_same_schedule() -> None:
    schedule = draw_schedule(7)
    assert schedule == draw_schedule(7) == Schedule.from_json(schedule.to_json())
    assert play(schedule) == play(schedule)


def test_every_kind_of_fault_strikes() -> None:
    assert STRIKES.keys() == KINDS.keys()
    drawn = {fault.kind for seed in range(400) for fault in draw_schedule(seed).faults}
    assert drawn == KINDS.keys()


def test_shrinking_leaves_what_is_needed_to_fail() -> None:
    schedule = draw_schedule(3)
    needed = Fault(4, 2, "leader killed", 3, 4)
    longer = Schedule(3, True, (*schedule.faults, needed, *schedule.faults))

    def fails(shorter: Schedule) -> bool:
        return any(fault.kind == needed.kind and fault.value >= 2 for fault in shorter.faults)

    assert shrink(longer, fails) == Schedule(3, False, (Fault(4, 0, "leader killed", 3, 2),))
