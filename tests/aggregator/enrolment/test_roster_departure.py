"""Hosts that leave a roster: by id, by operator, all; what every party makes of an empty one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.roster_draft import EnrolmentError, Leaving, without
from aggregator.enrolment.roster_review import RosterEvidence
from aggregator.enrolment.tasks import check_and_countersign, sign_roster
from aggregator.protocol.directory import Directory, PinnedParties
from edge_agent.protocol.roster_book import RosterBook
from edge_agent.protocol.task_check import Pins
from pointillist.cli.leader_command import app
from pointillist.cli.output import CommandError, ExitCode
from privacy.budget import WEEK_S
from tests.enrolment_kit import LEADER, entry, host, pinned, request, token
from tests.protocol_kit import signing_key
from transport.files.keyfiles import write_signing_key
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.roster import PlanMembership, Roster

HELPER = signing_key("helper")
WEEK = 2900 * WEEK_S
NOW = float(WEEK - 1000)
PLAN = (PlanMembership("minute", 0, 500_000),)
NAMES = tuple(range(6))
PARTIES = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)


def operator_of(name: int) -> str:
    return "umbra" if name % 2 else "acme"


FIRST = Roster(
    1,
    WEEK - WEEK_S - 777,
    (PLAN,),
    tuple(
        sorted(
            (entry(request(name, by=token(name, operator_of(name)))) for name in NAMES),
            key=lambda row: row.host_id,
        )
    ),
)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "1.roster"
    path.write_bytes(sign_roster(FIRST, LEADER, HELPER))
    return path


def opened(signed: bytes) -> Roster:
    return Roster.decode_body(Signed.decode(signed, labels.ROSTER).body)


def countersigned(signed: bytes, accept: str) -> bytes:
    evidence = RosterEvidence(
        earlier=[sign_roster(FIRST, LEADER, HELPER)],
        operators=pinned("acme", "umbra"),
        accepted_change=accept,
    )
    found, _ = check_and_countersign(
        signed, LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW
    )
    return found


def test_named_hosts_and_those_of_an_operator_leave_at_the_next_week_start(before: Path) -> None:
    leaving = Leaving([bytes(host(0).host_id)], ["umbra"])
    roster, summary = without(before, leaving, LEADER, now_s=NOW)
    left = opened(roster)
    assert {row.host_id for row in left.entries} == {host(2).host_id, host(4).host_id}
    assert (left.version, left.effective_from) == (2, WEEK)
    assert summary["removed"] == 4
    assert summary["operators"] == 1
    assert opened(countersigned(roster, "4")) == left


def test_roster_starts_after_one_that_is_still_to_come(before: Path) -> None:
    roster, _ = without(before, Leaving([bytes(host(0).host_id)]), LEADER, now_s=NOW - 2 * WEEK_S)
    assert opened(roster).effective_from == WEEK - WEEK_S


@pytest.mark.parametrize(
    ("leaving", "words"),
    [
        (Leaving(), "none"),
        (Leaving([bytes(16)]), "00000000"),
        (Leaving(operators=["nobody"]), "acme, umbra"),
    ],
)
def test_who_is_not_there_cannot_leave(before: Path, leaving: Leaving, words: str) -> None:
    with pytest.raises(EnrolmentError, match=words):
        without(before, leaving, LEADER, now_s=NOW)


@pytest.mark.parametrize("helper", [None, HELPER])
def test_roster_before_must_be_under_both_signatures(before: Path, helper: object) -> None:
    leader = LEADER if helper is None else signing_key("another leader")
    before.write_bytes(sign_roster(FIRST, leader, None if helper is None else HELPER))
    with pytest.raises(ReportRejected, match="roster_signature"):
        without(before, Leaving(everybody=True), LEADER, now_s=NOW)


def test_fleet_that_ends_has_an_empty_roster_that_all_parties_take(before: Path) -> None:
    roster, summary = without(before, Leaving(everybody=True), LEADER, now_s=NOW)
    assert summary["hosts"] == 0
    with pytest.raises(ReportRejected, match="roster_change"):
        countersigned(roster, "10%")
    last = countersigned(roster, "100%")
    directory = Directory(PARTIES)
    directory.add_roster(before.read_bytes())
    directory.add_roster(last)
    assert directory.cohorts("minute") == {0}, "windows before it are still open"
    in_force = directory.roster_at(WEEK)
    assert in_force is not None
    assert len(in_force) == 0
    pins = Pins(frozenset({LEADER.public_bytes}), frozenset({HELPER.public_bytes}))
    book = RosterBook(pins, (host(0).host_id,))
    book.add(before.read_bytes())
    known = book.add(last)
    assert known is not None
    assert known.plans == {bytes(host(0).host_id): None}


def command(folder: Path, *arguments: str) -> tuple[BaseException | None, str]:
    key = folder / "leader.key"
    if not key.exists():
        write_signing_key(key, LEADER)
    result = CliRunner().invoke(app, ["roster", *arguments])
    return result.exception, result.stdout


def test_commands_list_hosts_and_remove_them(before: Path, tmp_path: Path) -> None:
    _, listed = command(tmp_path, "hosts", str(before), "--operator", "acme", "--json")
    rows = json.loads(listed)
    assert {row["host"] for row in rows} == {host(name).host_id.hex() for name in (0, 2, 4)}
    assert rows[0]["series"] == ["minute"]
    (tmp_path / "gone.txt").write_text("\n".join(row["host"] for row in rows[:2]))
    out = tmp_path / "2.roster"
    options = ["--previous", str(before), "--key", str(tmp_path / "leader.key"), "--out", str(out)]
    failed, said = command(
        tmp_path, "remove", rows[2]["host"], "--hosts", str(tmp_path / "gone.txt"), *options,
        "--json",
    )  # fmt: skip
    assert failed is None
    assert (json.loads(said)["removed"], json.loads(said)["hosts"]) == (3, 3)
    assert {row.operator for row in opened(out.read_bytes()).entries} == {"umbra"}
    failed, _ = command(tmp_path, "remove", rows[2]["host"], *options)
    assert isinstance(failed, CommandError), "a roster is never overwritten"


@pytest.mark.parametrize("wrong", [["5f3c"], ["--all", "00" * 16], []])
def test_remove_says_what_it_expected(before: Path, tmp_path: Path, wrong: list[str]) -> None:
    options = ["--previous", str(before), "--key", str(tmp_path / "leader.key")]
    failed, _ = command(tmp_path, "remove", *wrong, *options, "--out", str(tmp_path / "2.roster"))
    assert isinstance(failed, CommandError)
    assert (failed.code, "expected" in str(failed)) == (ExitCode.USAGE, True)
    assert not (tmp_path / "2.roster").exists()
