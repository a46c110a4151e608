"""What the Helper's tool signs of a roster: vouched hosts, and a stated part of them a week."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.enrolment.roster_review import RosterEvidence, accepted_hosts, signed_before
from aggregator.enrolment.tasks import check_and_countersign, leader_sign, sign_roster, sign_task
from aggregator.protocol.directory import Directory, PinnedParties
from privacy.budget import WEEK_S
from privacy.signing import SigningKey
from tests.enrolment_kit import LEADER, entry, pinned, request, token, vouchers
from tests.protocol_kit import signing_key, small_task
from wire import labels
from wire.envelope import Signed
from wire.join import JoinRequest
from wire.rejection import ReportRejected
from wire.roster import FleetName, PlanMembership, Roster

HELPER = signing_key("helper")
WEEK = 2900 * WEEK_S
NOW = float(WEEK - 1000)
PLAN = (PlanMembership("minute", 0, 500_000),)
OPERATORS = ("acme", "umbra")


def asked(name: object, signer: SigningKey | None = None) -> JoinRequest:
    operator = OPERATORS[len(str(name)) % 2]
    return request(name, by=token(name, operator, signer=signer))


def hosts(names: Iterable[object]) -> list[JoinRequest]:
    return [asked(name) for name in names]


def roster(version: int, since_s: int, members: Sequence[JoinRequest]) -> Roster:
    entries = tuple(sorted(map(entry, members), key=lambda one: one.host_id))
    return Roster(version, since_s, (PLAN,), entries)


def countersign(
    new: Roster,
    members: Sequence[JoinRequest],
    *before: Roster,
    now_s: float = NOW,
    accept: str | None = None,
    told: int = 1,
    **more: Any,
) -> dict[str, object]:
    counts: list[dict[str, int | float]] = []
    evidence = RosterEvidence(
        earlier=[sign_roster(one, LEADER, HELPER) for one in before],
        vouchers=vouchers(members),
        operators=pinned(*OPERATORS),
        first=not before,
        accepted_change=accept,
        **more,
    )
    draft = leader_sign(Signed(labels.ROSTER, new.encode_body()).encode(), LEADER)
    try:
        _, said = check_and_countersign(
            draft,
            LEADER.public_bytes,
            HELPER,
            evidence=evidence,
            now_s=now_s,
            tell=lambda said: counts.append(dict(said)),
        )
    finally:
        assert len(counts) == told, "counts come before any verdict"
    return said


HONEST = hosts(f"honest{number}" for number in range(40))
FIRST = roster(1, WEEK - WEEK_S - 777, HONEST)


def swapped(invented: int, since: int = 0) -> list[JoinRequest]:
    """The fleet, with so many hosts exchanged, from the `since`-th on."""
    new = hosts(f"invented-{number}" for number in range(since, since + invented))
    return [*HONEST[:since], *new, *HONEST[since + invented :]]


def test_first_roster_and_a_tenth_a_week_are_signed_without_a_word() -> None:
    assert countersign(FIRST, HONEST)["hosts_added"] == 40
    said = countersign(roster(2, WEEK, swapped(2)), swapped(2), FIRST)
    assert (said["hosts_added"], said["hosts_removed"]) == (2, 2)
    assert (said["hosts_changed_in_a_week"], said["percent_changed_in_a_week"]) == (4, 10.0)


FLEET = FleetName(LEADER.public_bytes, HELPER.public_bytes, "fleet-1")


def test_roster_of_another_fleet_or_of_none_any_more_is_not_signed() -> None:
    """Nor taken by a party: the first that names its fleet binds both."""
    named = replace(roster(2, WEEK, HONEST), fleet=FLEET)
    assert countersign(named, HONEST, FIRST)["fleet"] == "fleet-1"
    third = replace(named, version=3, effective_from=WEEK + WEEK_S)
    assert countersign(third, HONEST, FIRST, named)["version"] == 3
    swapped_keys = replace(FLEET, leader_pk=FLEET.helper_pk, helper_pk=FLEET.leader_pk)
    for fleet in (None, replace(FLEET, name="fleet-2"), swapped_keys):
        wrong = replace(third, fleet=fleet)
        with pytest.raises(ReportRejected, match="roster_fleet"):
            countersign(wrong, HONEST, FIRST, named, told=0)
        known = Directory(PinnedParties(LEADER.public_bytes, HELPER.public_bytes))
        for one in (FIRST, named):
            known.add_roster(sign_roster(one, LEADER, HELPER))
        with pytest.raises(ReportRejected, match="roster_fleet"):
            known.add_roster(sign_roster(wrong, LEADER, HELPER))


def test_roster_of_the_fleet_in_which_both_have_the_other_role_is_none_before() -> None:
    """Its hosts would count as vouched for: the Leader hands in what the Helper led and signed."""
    theirs = replace(FIRST, fleet=FleetName(HELPER.public_bytes, LEADER.public_bytes, "fleet-2"))
    with pytest.raises(ReportRejected, match="roster_fleet: expected earlier rosters"):
        countersign(roster(2, WEEK, HONEST), [], theirs, told=0)


def test_helper_that_pins_the_fleet_signs_no_other_and_reads_what_was_before() -> None:
    pinned_fleet = PinnedParties(LEADER.public_bytes, HELPER.public_bytes, "fleet-1")
    other = replace(FIRST, fleet=replace(FLEET, name="fleet-2"))
    for wrong in (FIRST, other):
        with pytest.raises(ReportRejected, match="roster_fleet: expected a roster of the fleet fl"):
            countersign(wrong, HONEST, told=0, fleet="fleet-1")
    assert countersign(replace(FIRST, fleet=FLEET), HONEST, fleet="fleet-1")["version"] == 1
    assert Directory(pinned_fleet).add_roster(sign_roster(FIRST, LEADER, HELPER)).version == 1
    with pytest.raises(ReportRejected, match="roster_fleet"):
        Directory(pinned_fleet).add_roster(sign_roster(other, LEADER, HELPER))


def test_cohorts_below_n_min_are_told_and_signed() -> None:
    """A fleet begins small: its hosts send nothing meanwhile."""
    for n_min, below in ((40, None), (41, 1)):
        task = small_task(LEADER, HELPER, n_max=50, n_min=n_min, t=30, expiry=WEEK + 10**6)
        served = [sign_task(task, LEADER, HELPER)[1]]
        assert countersign(FIRST, HONEST, tasks=served).get("cohorts_below_n_min") == below


def test_swap_of_nine_tenths_is_refused_without_the_word() -> None:
    members = swapped(36)
    new = roster(2, WEEK, members)
    with pytest.raises(ReportRejected, match=r"at most 4 hosts .*10 % of 40.*, got 72 .*180.0 %"):
        countersign(new, members, FIRST)
    with pytest.raises(ReportRejected, match="accepted: 90%"):
        countersign(new, members, FIRST, accept="90%")
    for word in ("180%", "72"):
        assert countersign(new, members, FIRST, accept=word)["hosts_removed"] == 36


@pytest.mark.parametrize("now_s", [NOW, WEEK - WEEK_S])
def test_rosters_of_one_week_are_one_change(now_s: float) -> None:
    """Two that exchange 45 % each, for two weeks to come, are signed in one."""
    second, third = swapped(18), [*swapped(18)[:18], *swapped(18, since=18)[18:]]
    two, three = roster(2, WEEK, second), roster(3, WEEK + WEEK_S, third)
    countersign(two, second, FIRST, now_s=now_s, accept="36")
    with pytest.raises(ReportRejected, match=r"accepted: 36.*got 72 since version 1"):
        countersign(three, third, FIRST, two, now_s=now_s, accept="36")
    with pytest.raises(ReportRejected, match=r"the roster in force at .*got versions 2"):
        countersign(three, third, two, now_s=now_s, accept="36", told=0)
    # A week later it is a change of its own.
    countersign(three, third, two, now_s=WEEK + 1, accept="36")


def test_host_that_comes_and_goes_within_the_week_counts() -> None:
    second = swapped(2)
    two, three = roster(2, WEEK, second), roster(3, WEEK + WEEK_S, HONEST)
    said = countersign(three, HONEST, FIRST, two)
    assert said["hosts_changed_in_a_week"] == 4


def test_plan_or_operator_of_a_host_that_changes_counts() -> None:
    light = (PlanMembership("minute", 0, 400_000),)
    moved = replace(roster(2, WEEK, HONEST), plans=(light,))
    with pytest.raises(ReportRejected, match="got 40 since version 1"):
        countersign(moved, HONEST, FIRST)


def test_host_without_a_voucher_is_refused_by_name() -> None:
    members = swapped(2)
    new = roster(2, WEEK, members)
    with pytest.raises(ReportRejected, match="join_voucher") as caught:
        countersign(new, members[1:], FIRST)
    assert f"{entry(members[0]).host_id.hex()} of {members[0].voucher.operator}" in str(
        caught.value
    )
    with pytest.raises(ReportRejected, match=r"fits .* and 37 more"):
        countersign(FIRST, [])


@pytest.mark.parametrize(
    ("invented", "words"),
    [
        (asked("invented", signer=signing_key("the Leader's own")), "signed by the key of"),
        (replace(asked("invented"), token_signature=bytes(64)), "join_token"),
        (replace(asked("invented"), signature=bytes(64)), "join_signature"),
        (request("invented", by=token("a", "nobody")), "whose key is pinned, got nobody"),
    ],
)
def test_forged_voucher_is_refused_by_name(invented: JoinRequest, words: str) -> None:
    members = [*HONEST, invented]
    with pytest.raises(ReportRejected, match=words) as caught:
        countersign(roster(2, WEEK, members), members, FIRST)
    assert entry(invented).host_id.hex() in str(caught.value)


def test_voucher_stands_for_key_hardware_models_and_operator() -> None:
    """The Leader writes the roster: what a host signed must be what it wrote."""
    new = roster(2, WEEK, [*HONEST, asked("x")])
    mine, other = entry(asked("x")), entry(asked("another"))
    operator = next(name for name in OPERATORS if name != mine.operator)
    for changed in (
        replace(mine, operator=operator),
        replace(mine, hardware=other.hardware),
        replace(mine, gpu_models=((1, 1),)),
        replace(mine, voucher_id=other.voucher_id),
    ):
        entries = tuple(changed if one == mine else one for one in new.entries)
        with pytest.raises(ReportRejected, match=r"join_voucher.*none that fits"):
            countersign(replace(new, entries=entries), [asked("x")], FIRST)


def test_token_of_a_host_that_left_enrols_no_other() -> None:
    """The Leader keeps its list of used tokens; the Helper does not take its word for it."""
    one = request("one", ("GPU-1",), token("lent"))
    other = request("other", ("GPU-2",), token("lent"))
    two = roster(2, WEEK, [*HONEST, one])
    three, four = WEEK + WEEK_S, WEEK + 2 * WEEK_S
    countersign(two, [one], FIRST)
    gone = roster(3, three, HONEST)
    countersign(gone, [], FIRST, two, now_s=WEEK + 1)
    for new, before in (
        (roster(3, three, [*HONEST, other]), (FIRST, two)),
        (roster(4, four, [*HONEST, other]), (FIRST, two, gone)),
    ):
        with pytest.raises(ReportRejected, match="join_token"):
            countersign(new, [other], *before, now_s=new.effective_from - 1)
    back = roster(4, four, [*HONEST, one])
    countersign(back, [one], FIRST, two, gone, now_s=four - 1)


def test_host_of_an_operator_that_is_pinned_no_more_is_refused() -> None:
    evidence = RosterEvidence(
        earlier=[sign_roster(FIRST, LEADER, HELPER)], operators=pinned("acme")
    )
    draft = Signed(labels.ROSTER, roster(2, WEEK, HONEST).encode_body()).encode()
    with pytest.raises(ReportRejected, match="operator whose key is pinned, got umbra"):
        check_and_countersign(
            leader_sign(draft, LEADER), LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW
        )


def test_first_roster_needs_its_word() -> None:
    """A Leader that starts over with hosts that it made up has nothing to be compared with."""
    draft = leader_sign(Signed(labels.ROSTER, FIRST.encode_body()).encode(), LEADER)
    evidence = RosterEvidence(vouchers=vouchers(HONEST), operators=pinned(*OPERATORS))
    with pytest.raises(ReportRejected, match=r"fleet's first \(--first\), got neither"):
        check_and_countersign(draft, LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW)


def test_roster_beside_one_that_was_signed_before_is_refused(tmp_path: Path) -> None:
    """A Leader that hands in the first roster alone, as if the second had never been signed."""
    members = swapped(2, since=20)
    parties = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)
    second = sign_roster(roster(2, WEEK, swapped(2)), LEADER, HELPER)
    (tmp_path / "a.roster").write_bytes(second)
    (tmp_path / "b.roster").write_bytes(second[:-64] + bytes(64))
    (tmp_path / "c.roster").write_bytes(b"no roster")
    fork = leader_sign(
        Signed(labels.ROSTER, roster(2, WEEK, members).encode_body()).encode(), LEADER
    )
    before = signed_before(tmp_path, fork, parties)
    assert before == [second]
    assert signed_before(tmp_path, second, parties) == []
    evidence = RosterEvidence(
        earlier=[sign_roster(FIRST, LEADER, HELPER), *before, second],
        vouchers=vouchers(members),
        operators=pinned(*OPERATORS),
    )
    with pytest.raises(ReportRejected, match="version 3, after the one before, got 2"):
        check_and_countersign(fork, LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW)


@pytest.mark.parametrize(
    ("text", "hosts_allowed"), [("25%", 10), ("12.5%", 5), ("0", 0), (" 200% ", 80), ("41", 41)]
)
def test_word_for_a_change_is_a_share_or_a_number(text: str, hosts_allowed: int) -> None:
    assert accepted_hosts(text, 40) == hosts_allowed


@pytest.mark.parametrize("text", ["", "all", "-1", "1e3%", "10 %x", "12345678", "٣%"])
def test_other_words_for_a_change_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share like 25% or a number"):
        accepted_hosts(text, 40)
