"""A clock beside the log's own: one that is off is told, in either direction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pointillist.party_doctor.party_findings import log_checks
from tests.agent_live import surroundings
from transport.clock_check import clock_beside_log
from transport.factory import EmbeddedSettings
from transport.process.doctor_checks import CheckVerdict, Finding, examine
from wire.topics import EPOCHS, KEYS, TASKS

HOUR = 3_600
OK, BROKEN = CheckVerdict.OK, CheckVerdict.BROKEN


@pytest.mark.parametrize(
    ("off_s", "verdict", "said"),
    [
        (0, OK, "old by this clock"),
        (-30, OK, "0 s old by this clock"),
        (-2 * HOUR, BROKEN, "this clock is 2 h"),
        (HOUR // 2, OK, "30 min"),
        (2 * HOUR, BROKEN, "it is ahead, or no host has sent anything since"),
        (48 * HOUR, OK, "too old to compare"),
    ],
)
def test_clock_is_held_against_the_newest_record(
    tmp_path: Path, off_s: int, verdict: CheckVerdict, said: str
) -> None:
    made = surroundings(tmp_path)
    with made.log() as log:
        now_s = log.newest_s([TASKS])
        assert now_s is not None
        found = clock_beside_log(log, (EPOCHS, KEYS, TASKS), now_s + off_s)
        assert (found.verdict, said in found.found) == (verdict, True), found.found
        assert bool(found.do) == (verdict is BROKEN)
        empty = clock_beside_log(log, (EPOCHS,), now_s + off_s)
        assert (empty.verdict, "no record yet" in empty.found) == (OK, True)


def test_party_s_doctor_asks_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transport.kafka.kafka_roles import KafkaRole
    from wire.topics import REPORTS

    made, real = surroundings(tmp_path), time.time
    with made.log() as log:
        producer = log.producer()
        producer.send(REPORTS, b"host", b"report")
        producer.close()
    settings = EmbeddedSettings(made.folder / "log")

    def clock() -> Finding:
        findings = examine(*log_checks(settings, KafkaRole.LEADER))
        return next(one for one in findings if one.name == "log's clock")

    assert clock().verdict is OK
    monkeypatch.setattr(time, "time", lambda: real() + 2 * HOUR)
    assert clock().verdict is BROKEN
