"""Rosters: week starts, one after the other, weights that rise only into room long free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.enrolment.roster_review import RosterEvidence, signed_tasks
from aggregator.enrolment.tasks import check_and_countersign, leader_sign, sign_roster, sign_task
from aggregator.protocol.directory import Directory, PinnedParties, difference
from privacy.budget import WEEK_S
from tests.enrolment_kit import entry, pinned, request, token, vouchers
from tests.protocol_kit import T0, build_world, signing_key, small_task
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.roster import PlanMembership, Roster

LEADER, HELPER = signing_key("leader"), signing_key("helper")
PARTIES = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)
WEEK = 2900 * WEEK_S
NOW = float(WEEK - 1000)


def roster(version: int, since_s: int, weights: Mapping[str, int], key: str = "host") -> Roster:
    """One machine, whose series have these weights."""
    plan = tuple(PlanMembership(name, 0, weight) for name, weight in sorted(weights.items()))
    return Roster(version, since_s, (plan,), (entry(MACHINE[key]),))


MACHINE = {
    "host": request("host", ("machine-1", "GPU-1", "GPU-2")),
    "another identity": request("another identity", ("machine-1", "GPU-1", "GPU-2")),
    "one GPU of it": request("one GPU of it", ("machine-2", "GPU-2")),
}
EVIDENCE = RosterEvidence(
    vouchers=vouchers(MACHINE.values()), operators=pinned("acme"), accepted_change="200%"
)


def countersign(new: Roster, *before: Roster, now_s: float = NOW) -> dict[str, object]:
    draft = Signed(labels.ROSTER, new.encode_body()).encode()
    earlier = [sign_roster(one, LEADER, HELPER) for one in before]
    signed, said = check_and_countersign(
        leader_sign(draft, LEADER),
        LEADER.public_bytes,
        HELPER,
        evidence=replace(EVIDENCE, earlier=earlier, first=not earlier),
        now_s=now_s,
    )
    assert Directory(PARTIES).add_roster(signed).version == new.version
    return said


FIRST = roster(1, WEEK - WEEK_S - 777, {"minute": 500_000})


def test_first_roster_is_in_force_at_once_and_the_next_with_a_week() -> None:
    assert countersign(FIRST)["hosts_added"] == 1
    said = countersign(roster(2, WEEK, {"minute": 500_000}), FIRST)
    assert (said["hosts_added"], said["hosts_removed"], said["version"]) == (0, 0, 2)


@pytest.mark.parametrize(
    ("version", "since_s", "weights", "words"),
    [
        (2, WEEK + 777, {"minute": 500_000}, "start of a week"),
        (2, WEEK - WEEK_S, {"minute": 500_000}, "after now"),
        (3, WEEK, {"minute": 500_000}, "version 2"),
        (1, WEEK, {"minute": 500_000}, "version 2"),
        (2, WEEK, {"hour": 600_000}, "room"),
    ],
)
def test_countersigner_refuses_what_the_rules_forbid(
    version: int, since_s: int, weights: dict[str, int], words: str
) -> None:
    with pytest.raises(ReportRejected, match=words):
        countersign(roster(version, since_s, weights), FIRST)


def test_roster_without_the_one_before_is_not_countersigned() -> None:
    """A Leader cannot start over with hosts that it made up."""
    with pytest.raises(ReportRejected, match="roster_change"):
        countersign(roster(7, WEEK, {"minute": 1_000_000}))
    forged = leader_sign(Signed(labels.ROSTER, FIRST.encode_body()).encode(), LEADER)
    draft = Signed(labels.ROSTER, roster(2, WEEK, {"minute": 1}).encode_body()).encode()
    with pytest.raises(ReportRejected, match="roster_signature"):
        check_and_countersign(
            leader_sign(draft, LEADER),
            LEADER.public_bytes,
            HELPER,
            evidence=replace(EVIDENCE, earlier=[forged]),
            now_s=NOW,
        )


def test_weight_moves_to_another_series_a_fortnight_after_it_was_given_up() -> None:
    """By machine: neither another identity, nor a part of it, nor a week without makes room."""
    less = roster(2, WEEK, {"minute": 200_000})
    for key in MACHINE:
        more = roster(3, WEEK + WEEK_S, {"minute": 200_000, "hour": 800_000}, key)
        with pytest.raises(ReportRejected, match="room"):
            countersign(more, FIRST, less)
        countersign(replace(more, effective_from=WEEK + 2 * WEEK_S), FIRST, less)
    gone = replace(less, entries=())
    back = roster(3, WEEK + WEEK_S, {"hour": 1_000_000})
    with pytest.raises(ReportRejected, match="room"):
        countersign(back, FIRST, gone)


def test_countersigner_compares_with_the_tasks_that_the_roster_serves() -> None:
    _, task = sign_task(small_task(LEADER, HELPER, n_max=11, expiry=int(NOW) + 1), LEADER, HELPER)
    asked = [request(number, by=token(number, f"op-{number // 2}")) for number in range(12)]
    entries = tuple(sorted(map(entry, asked), key=lambda one: one.host_id))
    plan = (PlanMembership("minute", 0, 500_000),)
    first = Roster(1, T0 - 7200, (plan,), entries[:11])
    draft = leader_sign(
        Signed(labels.ROSTER, Roster(2, WEEK, (plan,), entries).encode_body()).encode(), LEADER
    )
    evidence = RosterEvidence(
        earlier=[sign_roster(first, LEADER, HELPER)],
        vouchers=vouchers(asked),
        operators=pinned(*(f"op-{number}" for number in range(6))),
    )
    check_and_countersign(draft, LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW)
    with pytest.raises(ReportRejected, match="n_max = 11"):
        check_and_countersign(
            draft,
            LEADER.public_bytes,
            HELPER,
            evidence=replace(evidence, tasks=[task]),
            now_s=NOW,
        )


def test_demo_beside_a_fleet_loosens_no_rule_of_its_roster(tmp_path: Path) -> None:
    """The Leader names the task that is served; the Helper's own folder names the others."""
    fleet, demo, past = (
        sign_task(small_task(LEADER, HELPER, expiry=int(NOW) + left_s, **values), LEADER, HELPER)[1]
        for left_s, values in ((1, {}), (1, {"domain": "demo", "series": "show"}), (0, {}))
    )
    for name, task in (("fleet", fleet), ("demo", demo), ("past", past)):
        (tmp_path / f"{name}.task").write_bytes(task)
    (tmp_path / "other.task").write_bytes(fleet[:-64] + bytes(64))
    assert signed_tasks(tmp_path, PARTIES) == [demo, fleet, past]
    evidence = replace(EVIDENCE, earlier=[sign_roster(FIRST, LEADER, HELPER)], accepted_change=None)
    for weights in ({"minute": 400_000, "show": 100_000}, {"minute": 400_000}):
        changed = roster(2, WEEK, weights)
        draft = leader_sign(Signed(labels.ROSTER, changed.encode_body()).encode(), LEADER)
        for tasks in ([demo], [demo, *signed_tasks(tmp_path, PARTIES)]):
            with pytest.raises(ReportRejected, match="at most 0 hosts changed in a week"):
                check_and_countersign(
                    draft, LEADER.public_bytes, HELPER,
                    evidence=replace(evidence, tasks=tasks), now_s=NOW,
                )  # fmt: skip


@pytest.mark.parametrize(
    ("fleets", "demos"),
    [
        ({}, {"series": "show"}),
        ({}, {"version": 9}),
        ({"expiry": int(NOW) - 1}, {"version": 9}),
    ],
    ids=["another series", "a newer version", "the fleet's is over"],
)
def test_demo_does_not_hide_the_fleets_task_from_the_countersigner(
    fleets: dict[str, Any], demos: dict[str, Any]
) -> None:
    """A roster that names a demo's series alone, or one in which a demo's task is the newest."""
    fleet, demo = (
        sign_task(small_task(LEADER, HELPER, **values), LEADER, HELPER)[1]
        for values in (
            {"expiry": int(NOW) + 9, **fleets},
            {"expiry": int(NOW) + 9, "domain": "demo", **demos},
        )
    )
    named = roster(2, WEEK, {demos.get("series", "minute"): 400_000})
    draft = leader_sign(Signed(labels.ROSTER, named.encode_body()).encode(), LEADER)
    evidence = replace(EVIDENCE, earlier=[sign_roster(FIRST, LEADER, HELPER)], accepted_change=None)
    arguments = (draft, LEADER.public_bytes, HELPER)
    check_and_countersign(*arguments, evidence=replace(evidence, tasks=[demo]), now_s=NOW)
    with pytest.raises(ReportRejected, match="at most 0 hosts changed in a week"):
        check_and_countersign(
            *arguments, evidence=replace(evidence, tasks=[demo, fleet]), now_s=NOW
        )


def test_difference_counts_what_a_person_looks_at() -> None:
    before, after = build_world(10).roster, build_world(12, roster_version=2).roster
    moved = replace(after.entries[0], operator="other")
    changed = replace(after, entries=(moved, *after.entries[2:]))
    found = difference(changed, before)
    kept = {e.host_id for e in before.entries} & {e.host_id for e in changed.entries}
    assert found["hosts_added"] == 11 - len(kept)
    assert found["hosts_removed"] == 10 - len(kept)
    assert found["hosts_with_another_operator"] == int(moved.host_id in kept)


def test_fleets_task_that_is_dropped_still_keeps_the_rules_of_rosters() -> None:
    world = build_world(10, domain="fleet")
    directory = world.directory()
    past_s = world.task.expiry + 10**8
    assert directory.drop_past_tasks(past_s)
    demo = small_task(LEADER, HELPER, domain="demo", version=9, expiry=past_s + 1)
    directory.add_task(sign_task(demo, LEADER, HELPER)[1], past_s)
    later = replace(world.roster, version=2, effective_from=T0 + 7)
    with pytest.raises(ReportRejected, match="start of a week"):
        directory.add_roster(sign_roster(later, LEADER, HELPER))


@pytest.mark.parametrize("domain", ["fleet", "demo"])
def test_directory_takes_a_roster_in_the_middle_of_a_week_from_a_demo_alone(domain: str) -> None:
    world = build_world(10, domain=domain)
    directory = world.directory()
    later = replace(world.roster, version=2, effective_from=T0 + 7)
    signed = sign_roster(later, LEADER, HELPER)
    if domain == "demo":
        assert directory.add_roster(signed).version == 2
        return
    with pytest.raises(ReportRejected, match="start of a week"):
        directory.add_roster(signed)
    for version, since_s in ((2, T0 // WEEK_S * WEEK_S), (3, (T0 // WEEK_S + 2) * WEEK_S)):
        aligned = replace(world.roster, version=version, effective_from=since_s)
        if since_s < T0:
            with pytest.raises(ReportRejected, match="after version 1"):
                directory.add_roster(sign_roster(aligned, LEADER, HELPER))
        else:
            assert directory.add_roster(sign_roster(aligned, LEADER, HELPER)).version == version
