"""Enrolment: one-use tokens, one roster id per machine, in force from a coming week."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.directory import Directory, PinnedParties
from aggregator.enrolment import WEEK_S, EnrolmentError, enrol_folder, load_enrolment
from aggregator.task_files import check_and_countersign
from tests.protocol_kit import T0, signing_key
from wire import labels
from wire.rejection import ReportRejected
from wire.roster import EntryAnswer, JoinRequest
from wire.signed import Signed

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
