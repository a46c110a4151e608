"""Times that cannot be: of tasks, rosters and answers, wherever one is made, signed or taken."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.roster_draft import Leaving, without
from aggregator.enrolment.tasks import check_and_countersign, leader_sign, sign_roster, summary
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.releases.compaction import Compaction
from edge_agent.protocol.task_check import Bounds, check_task
from pointillist.cli.task_command import app
from privacy.budget import WEEK_S
from tests.agent_world import T0
from tests.aggregator.enrolment.test_roster_departure import FIRST, HELPER, NOW
from tests.attacks.test_reshaped_section import WORLD, shipped
from tests.enrolment_kit import LEADER
from transport.files.keyfiles import write_signing_key
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.epoch import EpochHeader, KeyAnnouncement
from wire.fields import DAY_S
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, Roster
from wire.task import Task

PARTIES = PinnedParties(WORLD.leader.pk, WORLD.helper.pk)
YEAR_S = 365 * DAY_S
RIGHT = shipped()
_MINUTE_2001 = 1_000_000_020


def timed(first: int, last: int, expiry: int | None = None) -> Task:
    """A task that is right but for its times: what a Leader signs and two parties hold."""
    first, last = first // 60 * 60, last // 60 * 60
    task = replace(RIGHT, first_window=first, last_window=last)
    return replace(task, expiry=last + 60 + task.retention_s if expiry is None else expiry)


def refusals(task: Task) -> set[str]:
    """What the Helper's tool and an agent say to a task at T0; "" of one that takes it."""

    def agent(signed: bytes) -> None:
        check_task(
            signed, WORLD.pins, Bounds(), now_s=T0, domain_allowed="fleet".__eq__,
            catalogue=Catalogue.load(),
        )  # fmt: skip

    def helper(signed: bytes) -> None:
        check_and_countersign(
            leader_sign(signed, WORLD.leader.signing), WORLD.leader.pk, WORLD.helper.signing,
            now_s=T0,
        )  # fmt: skip

    said = set()
    for take in (agent, helper):
        try:
            take(WORLD.sign_task(task))
            said.add("")
        except ReportRejected as refusal:
            said.add(str(refusal))
    return said


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((_MINUTE_2001, _MINUTE_2001 + 600, None), "task_expired: .* got 2001-09-"),
        ((_MINUTE_2001, _MINUTE_2001 + 600, T0 + YEAR_S), "task_expired: .* got 2001-09-"),
        ((T0 - 600, T0 + 600, T0), "task_expired"),
        ((T0 + 2 * YEAR_S, T0 + 3 * YEAR_S, None), "first_window within 366 days"),
        ((T0, T0 + 101 * YEAR_S, None), "expiry within 36600 days"),
        ((T0, T0 + YEAR_S, T0 + 101 * YEAR_S), "expiry within 36600 days"),
        ((T0 * 1000, T0 * 1000 + 600, None), "not milliseconds"),
    ],
    ids=["2001", "2001 and no end", "over now", "years ahead", "a century", "no expiry", "ms"],
)
def test_no_helper_signs_and_no_agent_takes_a_task_whose_windows_cannot_come(
    times: tuple[int, int, int | None], words: str
) -> None:
    (said,) = refusals(timed(*times))
    assert re.search(words, said)


def test_long_series_is_taken_in_its_last_week_and_ten_years_ahead() -> None:
    assert refusals(timed(0, T0 + 60)) == {""}
    assert refusals(timed(T0 + YEAR_S, T0 + 10 * YEAR_S)) == {""}


def test_finished_task_stays_readable_and_served_until_its_last_window_is_answered() -> None:
    """What looks at old tasks, and a party that starts again, ask for no time to come."""
    task = timed(T0 - 1200, T0 - 600, T0 - 300)
    signed = WORLD.sign_task(task)
    assert summary(signed)["last_window"] == task.last_window
    assert Directory(PARTIES).add_task(signed, T0, at_start=True).task == task
    with pytest.raises(ReportRejected, match="task_expired"):
        Directory(PARTIES).add_task(signed, T0)


@pytest.mark.parametrize(
    ("start", "weeks", "code", "words"),
    [
        (int(time.time()) * 1000, 1, 3, "not milliseconds"),
        (int(time.time()) * 10**6, 1, 3, "not milliseconds"),
        (-600, 1, 3, "seconds since 1970"),
        (10**30, 1, 3, "seconds since 1970"),
        (_MINUTE_2001, 1, 3, "a task that is not over .* got 2001-09-"),
        (int(time.time()) + 2 * YEAR_S, 1, 3, "within 366 days"),
        (int(time.time()), 9_999, 2, "--weeks"),
        (int(time.time()), 0, 2, "--weeks"),
    ],
    ids=["ms", "us", "before 1970", "beyond 64 bits", "2001", "years", "centuries", "0 weeks"],
)
def test_build_refuses_what_people_type_for_a_time(
    tmp_path: Path, start: int, weeks: int, code: int, words: str
) -> None:
    pks = [WORLD.leader.pk.hex(), WORLD.helper.pk.hex()]
    made = CliRunner().invoke(app, [
        "build", "--series", "minute", "--leader", pks[0], "--helper", pks[1],
        "--start", str(start), "--weeks", str(weeks), "--out", str(tmp_path / "t.task"),
    ])  # fmt: skip
    said = f"{made.exception} {made.output}"
    assert (getattr(made.exception, "code", made.exit_code), not list(tmp_path.iterdir())) == (
        code, True,
    ), said  # fmt: skip
    assert re.search(words, said)


def test_leader_signs_no_draft_that_lay_until_its_task_was_over(tmp_path: Path) -> None:
    draft, key = tmp_path / "old.task", tmp_path / "identity.key"
    task = timed(T0 - 1200, T0 - 600)
    draft.write_bytes(Signed(labels.TASK, task.encode_body()).encode())
    write_signing_key(key, WORLD.leader.signing)
    before = draft.read_bytes()
    made = CliRunner().invoke(app, ["sign", str(draft), "--key", str(key)])
    assert "a task that is not over" in str(made.exception)
    assert draft.read_bytes() == before


def test_leader_with_a_clock_years_ahead_makes_no_roster_that_locks_out_the_next(
    tmp_path: Path,
) -> None:
    """A later roster starts later: one in force in ten years would be the fleet's last."""
    ahead = tmp_path / "9.roster"
    far = replace(
        FIRST, version=9, effective_from=FIRST.effective_from // WEEK_S * WEEK_S + 520 * WEEK_S
    )
    ahead.write_bytes(sign_roster(far, LEADER, HELPER))
    with pytest.raises(ReportRejected, match="effective_from within 56 days"):
        without(ahead, Leaving(everybody=True), LEADER, now_s=NOW)


def test_helper_signs_no_answer_of_a_leader_with_a_clock_years_ahead() -> None:
    row, plan = FIRST.entries[0], FIRST.plans[0]
    body = EntryAnswer(bytes(32), 2, int(NOW) + 10 * YEAR_S, row, plan).encode_body()
    draft = leader_sign(Signed(labels.ENTRY_ANSWER, body).encode(), LEADER)
    with pytest.raises(ReportRejected, match="effective_from within 56 days"):
        check_and_countersign(draft, LEADER.public_bytes, HELPER, now_s=NOW)


def test_milliseconds_are_no_time_in_any_signed_message() -> None:
    late = T0 * 1000
    key = KeyAnnouncement(bytes(32), bytes(1216), late, late + DAY_S)
    epoch = struct.pack(">16s16s16sQQ8s8sQQ", labels.EPOCH, b"h", b"e", late, late + 60,
                        b"k", b"k", 1, 1)  # fmt: skip
    roster = replace(FIRST, effective_from=late // WEEK_S * WEEK_S).encode_body()
    for decode, data in (
        (KeyAnnouncement.decode, key.encode()),
        (EpochHeader.decode, epoch),
        (Roster.decode_body, roster),
    ):
        with pytest.raises(ReportRejected, match="not milliseconds") as caught:
            decode(data)
        assert caught.value.reason is Reason.FIELD


@pytest.mark.parametrize("days", [999_999, 10**12])
def test_windows_kept_for_centuries_are_kept_and_stop_no_upkeep(tmp_path: Path, days: int) -> None:
    """Whoever writes a number for ever into keep_days."""
    single = tmp_path / "series=minute" / "date=2024-02-29" / "window.parquet"
    assert not Compaction(tmp_path, {"minute": days}).is_too_old(single, date(2026, 11, 27))
    assert Compaction(tmp_path, {"minute": 300}).is_too_old(single, date(2026, 11, 27))
