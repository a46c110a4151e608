"""Enrolment: vouchers of operators, one host per part of a machine, in force from a coming week."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.enrolment import (
    Enrolled,
    NothingEnrolled,
    enrol_folder,
    load_enrolment,
    read_spent,
    write_spent,
)
from aggregator.enrolment.roster_draft import EnrolmentError
from aggregator.enrolment.roster_review import RosterEvidence
from aggregator.enrolment.tasks import check_and_countersign
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.protocol.directory import Directory, PinnedParties
from edge_agent.membership import hardware_names
from pointillist.cli.leader_command import app
from pointillist.cli.output import CommandError, ExitCode
from privacy.budget import WEEK_S
from tests.enrolment_kit import LEADER, host, part, pinned, plans_file, request, token
from tests.process_kit import ProcessFleet, leader_config
from tests.protocol_kit import T0, ListStore, build_world, signing_key
from transport.files.keyfiles import write_signing_key
from transport.files.private_files import JoinToken
from wire import labels
from wire.envelope import Kind, Signed, wrap
from wire.join import JoinRequest
from wire.roster import EntryAnswer, FleetName, Roster
from wire.topics import ENTRIES, join_key

HELPER = signing_key("helper")


def join(
    folder: Path, name: object, *, by: JoinToken | None = None, hardware: Sequence[str] = ()
) -> Path:
    path = folder / f"{name}.join"
    path.write_bytes(request(name, hardware, by).encode())
    return path


def left_out(made: Enrolled) -> dict[str, str]:
    return {Path(found.source).name: found.reason.value for found in made.refused}


def hosts(made: Enrolled) -> set[bytes]:
    roster = Roster.decode_body(Signed.decode(made.roster, labels.ROSTER).body)
    return {bytes(entry.host_id) for entry in roster.entries}


def test_roster_takes_in_tokens_and_starts_with_a_week(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    for number in range(2):
        join(tmp_path, number)
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    evidence = RosterEvidence(vouchers=first.vouchers, operators=pinned("acme"), first=True)
    signed, said = check_and_countersign(
        first.roster, LEADER.public_bytes, HELPER, evidence=evidence, now_s=T0
    )
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
    join(tmp_path, 2)
    second = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert (second.summary["hosts"], second.summary["enrolled"]) == (3, 1)
    join(tmp_path, 3, by=token(0))
    third = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert left_out(third) == {"3.join": "join_token"}
    assert third.summary["hosts"] == 3


def test_rosters_are_named_from_when_the_plans_file_says_so(tmp_path: Path) -> None:
    plans, previous = plans_file(tmp_path), tmp_path / "1.roster"
    for number in range(2):
        join(tmp_path, number)
    previous.write_bytes(enrol_folder(plans, tmp_path, None, LEADER, now_s=T0).roster)
    table = f'[fleet]\nname = "NAME"\nhelper_pk = "{HELPER.public_bytes.hex()}"\n'
    without = plans.read_text()
    for name in ("fleet-1", ""):  # what names it once goes on by itself
        plans.write_text(without + (table.replace("NAME", name) if name else ""))
        made = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0, remove=[host(0).host_id])
        body = Roster.decode_body(Signed.decode(made.roster, labels.ROSTER).body)
        assert body.fleet == FleetName(LEADER.public_bytes, HELPER.public_bytes, "fleet-1")
        previous.write_bytes(made.roster)
    plans.write_text(without + table.replace("NAME", "fleet-2"))
    with pytest.raises(EnrolmentError, match=r"the roster before, fleet-1, got fleet-2"):
        enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)


STOLEN = replace(token("x"), signing=signing_key("another token"))


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        (token("x", signer=signing_key("the Leader's own")), "join_voucher.*key of acme"),
        (token("x", "umbra"), "join_voucher.*pinned .acme., got umbra"),
        (token("x", leader=signing_key("another leader")), "join_voucher.*this Leader"),
        (token("x", plan="another"), "join_voucher.*plans fleet"),
        (token("x", not_after=T0 - 1), "join_voucher.*in force at"),
        (STOLEN, "join_token.*signature of this host"),
    ],
)
def test_request_without_an_operators_voucher_of_its_own_is_refused(
    by: JoinToken, reason: str, tmp_path: Path
) -> None:
    join(tmp_path, 0)
    join(tmp_path, 1, by=by)
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    (found,) = made.refused
    assert re.search(reason, str(found))
    assert (Path(found.source).name, found.host) == ("1.join", host(1).host_id)
    assert hosts(made) == {host(0).host_id}
    assert set(made.answers) == {tmp_path / "0.entry"}
    assert made.spent == {token(0).voucher.voucher_id}


MACHINE = ("machine-1", *(f"GPU-{number}" for number in range(8)))


@pytest.mark.parametrize(
    ("hardware", "shared"),
    [(MACHINE, 9), (MACHINE[:-1], 8), (("machine-2", "GPU-3"), 1), (("machine-1",), 1)],
)
def test_any_part_of_an_enrolled_machine_is_no_other_machine(
    hardware: tuple[str, ...], shared: int, tmp_path: Path
) -> None:
    """8, 7 and 1 GPUs of one machine would be three identities with three budgets."""
    plans = plans_file(tmp_path)
    join(tmp_path, "a", hardware=MACHINE)
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    previous = tmp_path / "1.roster"
    previous.write_bytes(first.roster)
    for path, answer in first.answers.items():
        path.write_bytes(answer)
    join(tmp_path, "b", hardware=hardware)
    with pytest.raises(NothingEnrolled) as caught:
        enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    (found,) = caught.value.refused
    said = str(found)
    assert f"host {host('b').host_id.hex()}: join_hardware" in said
    assert f"{shared} of {len(hardware)} ids that host {host('a').host_id.hex()} has" in said
    assert any(part(name).hex() in said for name in hardware)
    assert f"--remove {host('a').host_id.hex()}" in said
    assert ("this one is a copy" in said) == (shared == 1), "an image brings an id and no GPU"
    assert "b.join" in said
    again = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0, remove=[host("a").host_id])
    (entry,) = Roster.decode_body(Signed.decode(again.roster, labels.ROSTER).body).entries
    assert entry.host_id == host("b").host_id


def test_two_requests_of_one_machine_are_refused_together(tmp_path: Path) -> None:
    """Which of two clones is the machine, a person says: by the other's request, taken away."""
    join(tmp_path, "a", hardware=MACHINE)
    clone = join(tmp_path, "b", hardware=MACHINE[1:])
    join(tmp_path, "c")
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    assert left_out(made) == {"a.join": "join_hardware", "b.join": "join_hardware"}
    assert "b.join has too" in str(made.refused[0])
    assert hosts(made) == {host("c").host_id}
    clone.unlink()
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    assert (left_out(made), len(hosts(made))) == ({}, 2)


def test_one_token_in_two_requests_enrols_neither(tmp_path: Path) -> None:
    for name in ("a", "b"):
        join(tmp_path, name, by=token("one"))
    join(tmp_path, "c")
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    assert left_out(made) == {"a.join": "join_token", "b.join": "join_token"}


def test_host_that_asks_with_a_second_token_stays_as_it_is(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    join(tmp_path, "a")
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    previous = tmp_path / "1.roster"
    previous.write_bytes(first.roster)
    (tmp_path / "a.entry").write_bytes(first.answers[tmp_path / "a.entry"])
    (tmp_path / "again.join").write_bytes(request("a", by=token("second")).encode())
    join(tmp_path, "b")
    made = enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert left_out(made) == {"again.join": "join_hardware"}
    assert "not enrolled yet" in str(made.refused[0])
    assert hosts(made) == {host("a").host_id, host("b").host_id}


@pytest.mark.parametrize("damage", [b"", b"\0" * 300, b"x" * 100_000])
def test_file_that_is_no_request_is_named_and_keeps_nobody_out(
    damage: bytes, tmp_path: Path
) -> None:
    join(tmp_path, 0)
    (tmp_path / "damaged.join").write_bytes(damage)
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    (found,) = made.refused
    assert (Path(found.source).name, found.host) == ("damaged.join", None)
    assert len(hosts(made)) == 1


def test_build_names_what_it_leaves_out_and_enrols_the_others(tmp_path: Path) -> None:
    plans, joins = plans_file(tmp_path), tmp_path / "joins"
    joins.mkdir()
    join(joins, 0)
    join(joins, 1, by=token("x", "umbra"))
    write_signing_key(tmp_path / "identity.key", LEADER)
    out = tmp_path / "1.roster"
    options = ["--plans", str(plans), "--requests", str(joins), "--out", str(out), "--now"]
    key = ["--key", str(tmp_path / "identity.key")]
    result = CliRunner().invoke(app, ["roster", "build", *options, *key, "--json"])
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    (found,) = body["refused"]
    assert (body["enrolled"], found["reason"]) == (1, "join_voucher")
    assert found["host"] == host(1).host_id.hex()
    assert f"left out: {joins}/1.join: host {host(1).host_id.hex()}: join_voucher" in result.stderr


@pytest.mark.parametrize("full_at", [1, 2, 3, 4])
def test_build_on_a_full_disk_can_be_repeated(
    full_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each wait for the disk in turn: half a roster would be one that is never overwritten."""
    plans, joins = plans_file(tmp_path), tmp_path / "joins"
    joins.mkdir()
    join(joins, 0)
    write_signing_key(tmp_path / "identity.key", LEADER)
    waits = 0

    def full() -> None:
        nonlocal waits
        waits += 1
        if waits == full_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("aggregator.state.state_file.os.sync", full)
    options = ["--plans", str(plans), "--requests", str(joins), "--now"]
    options += ["--key", str(tmp_path / "identity.key"), "--json"]
    first = CliRunner().invoke(app, ["roster", "build", *options, "--out", f"{tmp_path}/1.roster"])
    assert isinstance(first.exception, CommandError)
    assert first.exception.code == ExitCode.UNAVAILABLE
    made = [path for path in tmp_path.glob("*.roster") if path.stat().st_size]
    assert len(made) == (0 if full_at == 1 else 1)
    if made and (joins / "0.entry").exists():
        return  # all of it is there: the disk failed behind the last name
    again = CliRunner().invoke(app, ["roster", "build", *options, "--out", f"{tmp_path}/2.roster"])
    assert json.loads(again.stdout)["enrolled"] == 1


def test_build_with_nobody_to_enrol_names_each_and_writes_nothing(tmp_path: Path) -> None:
    plans, joins = plans_file(tmp_path), tmp_path / "joins"
    joins.mkdir()
    join(joins, 1, by=token("x", "umbra"))
    write_signing_key(tmp_path / "identity.key", LEADER)
    out = tmp_path / "1.roster"
    options = ["--plans", str(plans), "--requests", str(joins), "--out", str(out), "--now"]
    key = ["--key", str(tmp_path / "identity.key")]
    result = CliRunner().invoke(app, ["roster", "build", *options, *key])
    assert isinstance(result.exception, CommandError)
    assert result.exception.code == ExitCode.REFUSED
    assert "1.join" in result.stderr
    assert not out.exists()


def test_host_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    join(tmp_path, 0)
    with pytest.raises(EnrolmentError, match="to remove: 00"):
        enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0, remove=[bytes(16)])


def test_request_with_a_foreign_signature_is_refused(tmp_path: Path) -> None:
    path = join(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-64] + bytes(64))
    with pytest.raises(NothingEnrolled) as caught:
        enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    assert [found.reason.value for found in caught.value.refused] == ["join_signature"]


def test_enrolment_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = plans_file(tmp_path)
    path.write_text(path.read_text().replace("operator", "operatr"))
    with pytest.raises(EnrolmentError, match="operatr"):
        load_enrolment(path)


def test_operator_key_under_two_names_is_refused(tmp_path: Path) -> None:
    """One operator would count as two against t."""
    path = plans_file(tmp_path)
    lines = path.read_text()
    path.write_text(lines + lines[lines.index("[[operator]]") :].replace("acme", "umbra"))
    with pytest.raises(EnrolmentError, match="key of its own for umbra, got acme"):
        load_enrolment(path)


def test_token_stays_spent_when_the_folder_is_emptied(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    path = join(tmp_path, 0)
    first = enrol_folder(plans, tmp_path, None, LEADER, now_s=T0)
    write_spent(plans, first.spent)
    path.unlink()
    join(tmp_path, 1, by=token(0))
    previous = tmp_path / "1.roster"
    previous.write_bytes(first.roster)
    with pytest.raises(NothingEnrolled) as caught:
        enrol_folder(plans, tmp_path, previous, LEADER, now_s=T0)
    assert [found.reason.value for found in caught.value.refused] == ["join_token"]
    assert read_spent(plans) == {token(0).voucher.voucher_id}


def test_countersigned_answer_is_published_and_others_are_not(tmp_path: Path) -> None:
    """What stands in the Leader's folder of signed files reaches the host that asked."""
    world = build_world(9)
    fleet = ProcessFleet(world, tmp_path)
    asked = join(tmp_path, 0)
    enrolled = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    (answer,) = enrolled.answers.values()
    signed, said = check_and_countersign(answer, LEADER.public_bytes, HELPER)
    assert said["kind"] == "entry"
    (tmp_path / "signed" / "a.entry").write_bytes(answer)
    (tmp_path / "signed" / "b.entry").write_bytes(signed)
    shell = LeaderRuntime(
        leader_config(tmp_path, HELPER.public_bytes), fleet.log, ListStore(), clock=lambda: T0
    )
    shell._turn()
    shell._end()
    consumer = fleet.log.consumer("host", [ENTRIES])
    (record,) = consumer.poll(10, 1.0)
    assert record.value == wrap(Kind.ENTRY_ANSWER, signed)
    host_pk = JoinRequest.decode(asked.read_bytes()).ed25519_pk
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


def test_operator_that_no_roster_can_carry_is_refused(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    plans.write_text(plans.read_text().replace('"acme"', '"Acme Corp"'))
    with pytest.raises(EnrolmentError, match="Acme Corp"):
        load_enrolment(plans)


def test_roster_command_overwrites_nothing(tmp_path: Path) -> None:
    out = tmp_path / "next.roster"
    out.write_bytes(b"the roster in force")
    options = ["--plans", str(plans_file(tmp_path)), "--requests", str(tmp_path)]
    join(tmp_path, 0)
    result = CliRunner().invoke(
        app, ["roster", "build", *options, "--key", "no.key", "--out", str(out)]
    )
    assert isinstance(result.exception, CommandError)
    assert (result.exception.code, "exists" in str(result.exception)) == (ExitCode.USAGE, True)
    assert out.read_bytes() == b"the roster in force"


def test_gpu_has_one_name_however_it_is_typed() -> None:
    """Reinstalled, a machine has another id: its GPUs are what is left to know it by."""
    (_, *before), (_, *after) = (
        hardware_names(machine, uuids)
        for machine, uuids in (("a", ("GPU-0a1b", "GPU-2c3d")), ("b", (" GPU-2C3D", "gpu-0a1b\n")))
    )
    assert sorted(before) == sorted(after)
    with pytest.raises(ValueError, match="each once"):
        hardware_names("a", ("GPU-0a1b", "GPU-0A1B"))
