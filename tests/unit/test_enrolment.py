"""Enrolment: one-use tokens, one roster id per machine, in force from a coming week."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.directory import Directory, PinnedParties
from aggregator.enrolment import (
    WEEK_S,
    EnrolmentError,
    enrol_folder,
    load_enrolment,
    read_spent,
    write_spent,
)
from aggregator.join_requests import fetch_requests
from aggregator.leader_shell import LeaderShell
from aggregator.task_files import check_and_countersign
from pointillist.cli.leader_command import app
from pointillist.cli.output import CommandError, ExitCode
from tests.process_kit import ProcessFleet, leader_config
from tests.protocol_kit import T0, ListStore, build_world, signing_key
from transport.embedded import EmbeddedLog
from wire import labels
from wire.envelope import Kind, Signed, wrap
from wire.rejection import ReportRejected
from wire.roster import EntryAnswer, JoinRequest, Roster
from wire.topics import ENTRIES, JOINS, TOPICS, join_key

LEADER, HELPER = signing_key("leader"), signing_key("helper")
TOKENS = [bytes([i]) * 16 for i in range(4)]


def plans_file(folder: Path) -> Path:
    tokens = "".join(
        f'[[token]]\nsha256 = "{hashlib.sha256(token).hexdigest()}"\n'
        f'operator = "op-{number}"\nplan = "fleet"\n'
        for number, token in enumerate(TOKENS[:3])
    )
    path = folder / "plans.toml"
    path.write_text(
        '[[plan]]\nname = "fleet"\n'
        "series = { minute = { cohort = 0, weight_millionths = 600000 } }\n" + tokens
    )
    return path


def join(folder: Path, number: int, *, token: bytes, machine: str | None = None) -> Path:
    key = signing_key("join", number)
    request = JoinRequest(key.public_bytes, (machine or f"GPU-{number}",), token, ((2, 8),))
    request = replace(request, signature=key.sign(request.unsigned()))
    path = folder / f"{number}.join"
    path.write_bytes(request.encode())
    return path


def test_roster_takes_in_tokens_and_starts_with_a_week(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    for number in range(2):
        join(tmp_path, number, token=TOKENS[number])
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    signed, said = check_and_countersign(first.roster, LEADER.public_bytes, HELPER)
    assert (said["hosts"], said["version"]) == (2, 1)
    parties = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)
    known = Directory(parties).add_roster(signed)
    assert known.effective_from % WEEK_S == 0
    assert 0 < known.effective_from - T0 <= WEEK_S
    for path, answer in first.answers.items():
        body = Signed.decode(answer, labels.ENTRY_ANSWER).body
        assert EntryAnswer.decode_body(body).roster_version == 1
        path.write_bytes(answer)
    previous = tmp_path / "1.roster"
    previous.write_bytes(signed)
    join(tmp_path, 2, token=TOKENS[2])
    second = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert (second.summary["hosts"], second.summary["enrolled"]) == (3, 1)
    join(tmp_path, 3, token=TOKENS[0])
    with pytest.raises(ReportRejected, match="join_token"):
        enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)


@pytest.mark.parametrize(
    ("tokens", "machines", "reason"),
    [
        ((TOKENS[0], TOKENS[3]), (None, None), "join_token"),
        ((TOKENS[0], TOKENS[0]), (None, None), "join_token"),
        ((TOKENS[0], TOKENS[1]), ("GPU-a", "GPU-a"), "join_hardware"),
    ],
)
def test_request_without_token_or_machine_of_its_own_is_refused(
    tokens: tuple[bytes, bytes], machines: tuple[str | None, ...], reason: str, tmp_path: Path
) -> None:
    for number in range(2):
        join(tmp_path, number, token=tokens[number], machine=machines[number])
    with pytest.raises(ReportRejected, match=reason):
        enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)


def test_request_with_a_foreign_signature_is_refused(tmp_path: Path) -> None:
    path = join(tmp_path, 0, token=TOKENS[0])
    path.write_bytes(path.read_bytes()[:-64] + bytes(64))
    with pytest.raises(ReportRejected, match="join_signature"):
        enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)


def test_enrolment_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = plans_file(tmp_path)
    path.write_text(path.read_text().replace("operator", "operatr"))
    with pytest.raises(EnrolmentError, match="operatr"):
        load_enrolment(path)


def test_token_stays_spent_when_the_folder_is_emptied(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    path = join(tmp_path, 0, token=TOKENS[0])
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    write_spent(plans, first.spent)
    path.unlink()
    join(tmp_path, 1, token=TOKENS[0])
    previous = tmp_path / "1.roster"
    previous.write_bytes(first.roster)
    with pytest.raises(ReportRejected, match="join_token"):
        enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert read_spent(plans) == {hashlib.sha256(TOKENS[0]).digest()}


def test_join_requests_come_from_the_log_and_nonsense_stops_nobody(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    write_spent(plans, {hashlib.sha256(TOKENS[2]).digest()})
    made = tmp_path / "made"
    made.mkdir()
    raw = [
        join(made, number, token=token).read_bytes()
        for number, token in enumerate([TOKENS[0], TOKENS[3], TOKENS[2], TOKENS[0], TOKENS[1]])
    ]
    joins = tmp_path / "joins"
    with EmbeddedLog(tmp_path / "log") as log:
        for topic in TOPICS:
            log.create_topic(topic.name, topic.partitions)
        producer = log.producer()
        for one in (b"junk", raw[0][:-1] + b"\0", *raw):
            producer.send(JOINS, b"k", wrap(Kind.JOIN_REQUEST, one))
        producer.send(JOINS, b"k", b"no envelope")
        producer.flush()
        found = dict(fetch_requests(log, plans, joins))
        assert found.pop("envelope") == 1
        assert found == {"fetched": 2, "length": 1, "join_signature": 1, "join_token": 3}
        assert fetch_requests(log, plans, joins) == {"fetched": 0}
    assert sorted(p.read_bytes() for p in joins.glob("*.join")) == sorted([raw[0], raw[4]])
    assert enrol_folder(plans, joins, None, LEADER, now_s=T0).summary["hosts"] == 2


def test_countersigned_answer_is_published_and_others_are_not(tmp_path: Path) -> None:
    """What stands in the Leader's folder of signed files reaches the host that asked."""
    world = build_world(9)
    fleet = ProcessFleet(world, tmp_path)
    request = join(tmp_path, 0, token=TOKENS[0])
    enrolled = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    (answer,) = enrolled.answers.values()
    signed, said = check_and_countersign(answer, LEADER.public_bytes, HELPER)
    assert said["kind"] == "entry"
    (tmp_path / "signed" / "a.entry").write_bytes(answer)
    (tmp_path / "signed" / "b.entry").write_bytes(signed)
    shell = LeaderShell(
        leader_config(tmp_path, HELPER.public_bytes), fleet.log, ListStore(), clock=lambda: T0
    )
    shell._turn()
    shell._end()
    consumer = fleet.log.consumer("host", [ENTRIES])
    (record,) = consumer.poll(10, 1.0)
    assert record.value == wrap(Kind.ENTRY_ANSWER, signed)
    host_pk = JoinRequest.decode(request.read_bytes()).ed25519_pk
    assert record.key == join_key(host_pk)
    consumer.close()
    fleet.log.close()


def test_roster_without_a_host_is_refused(tmp_path: Path) -> None:
    plans, empty = plans_file(tmp_path), tmp_path / "joins"
    with pytest.raises(EnrolmentError, match="found none"):
        enrol_folder(plans, empty, None, LEADER, now_s=T0)
    empty.mkdir()
    with pytest.raises(EnrolmentError, match="at least one host"):
        enrol_folder(plans, empty, None, LEADER, now_s=T0)


def test_token_made_by_the_command_enrols_a_host_and_its_hash_ignores_the_newline(
    tmp_path: Path,
) -> None:
    plans, token = tmp_path / "plans.toml", tmp_path / "host-1.token"
    lines = (
        CliRunner()
        .invoke(app, ["roster", "token", str(token), "--operator", "acme", "--plan", "fleet"])
        .output
    )
    plans.write_text(
        '[[plan]]\nname = "fleet"\nseries = { m = { cohort = 0, weight_millionths = 1 } }\n' + lines
    )
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_bytes().endswith(b"\n")
    join(tmp_path, 1, token=token.read_bytes().strip())
    enrolled = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    (entry,) = Roster.decode_body(Signed.decode(enrolled.roster, labels.ROSTER).body).entries
    assert entry.operator == "acme"


def test_operator_that_no_roster_can_carry_is_refused(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    plans.write_text(plans.read_text().replace('"op-0"', '"Acme Corp"'))
    with pytest.raises(EnrolmentError, match="Acme Corp"):
        load_enrolment(plans)


def test_roster_command_overwrites_nothing(tmp_path: Path) -> None:
    out = tmp_path / "next.roster"
    out.write_bytes(b"the roster in force")
    options = ["--plans", str(plans_file(tmp_path)), "--requests", str(tmp_path)]
    join(tmp_path, 0, token=TOKENS[0])
    result = CliRunner().invoke(
        app, ["roster", "build", *options, "--key", "no.key", "--out", str(out)]
    )
    assert isinstance(result.exception, CommandError)
    assert (result.exception.code, "exists" in str(result.exception)) == (ExitCode.USAGE, True)
    assert out.read_bytes() == b"the roster in force"
