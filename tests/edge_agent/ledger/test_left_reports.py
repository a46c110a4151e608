"""What left this host: the rows beside the ledger's entries, and what becomes of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edge_agent.ledger import left_reports
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import HostEntry, KnownSeries, SealedRecord, SpoolLimits
from edge_agent.ledger.left_reports import Fate, Gone, LeftReport, left_report, read_left
from privacy.budget import Entry
from tests.protocol_kit import T0, build_world, open_epochs, seal_report, vector_of
from wire.envelope import Kind, wrap
from wire.report import Report
from wire.topics import REPORTS

WORLD = build_world(1)
HOST = WORLD.hosts[0]
open_epochs(WORLD)
DAY_S = 86_400
LATER_S = T0 + 21_600


def report(window: int) -> Report:
    return seal_report(WORLD, HOST, vector_of(HOST, window, WORLD.task.d), window=window)


def new_ledger(folder: Path, **changes: object) -> Ledger:
    return Ledger.create(
        folder / "ledger.sqlite", folder / "fence", hosts=[HOST.id], binding=b"machine",
        now_s=T0, **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def spend(ledger: Ledger, window: int, now_s: int | None = None) -> tuple[int, ...]:
    now_s = window + 61 if now_s is None else now_s
    sealed = wrap(Kind.REPORT, report(window).encode())
    record = SealedRecord(REPORTS, HOST.id, sealed, now_s * 1000, now_s + 21_600)
    entry = HostEntry(HOST.id, Entry("minute", window, window + 60, 600_000, 10_081))
    left = [left_report(entry, record, now_s)]
    return ledger.commit_sealed([entry], [record], now_s, left=left)


def kept(folder: Path) -> list[LeftReport]:
    return list(read_left(folder / "ledger.sqlite").reports)


def test_row_names_the_report_as_it_was_sealed(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    spend(ledger, T0)
    (row,) = kept(tmp_path)  # beside the ledger that is open
    ledger.close()
    sealed = report(T0)
    assert row == LeftReport(
        HOST.id, sealed.epoch_id, sealed.header.report_id, sealed.tag_h, WORLD.task_id,
        "minute", 0, T0, T0 + 60, len(sealed.encode()), T0 + 61,
    )  # fmt: skip
    assert (tmp_path / "ledger.sqlite").stat().st_mode & 0o777 == 0o600


def test_fate_follows_the_record(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ids = [spend(ledger, T0 + 60 * number) for number in range(4)]
    ledger.forget(ids[0], Gone(Fate.SENT, T0 + 70, "embedded log /log"))
    ledger.forget(ids[1], Gone(Fate.TOO_LONG, T0 + 130, "embedded log /log"))
    assert ledger.drop_expired(T0 + 121 + 60 + 21_600) == 1
    ledger.close()
    found = [(row.fate, row.log) for row in kept(tmp_path)]
    assert found == [
        (Fate.SENT, "embedded log /log"),
        (Fate.TOO_LONG, "embedded log /log"),
        (Fate.EXPIRED, ""),
        (Fate.WAITS, ""),
    ]
    assert kept(tmp_path)[0].fate_s == T0 + 70


def test_refused_commit_leaves_no_row(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, limits=SpoolLimits(max_records=1))
    spend(ledger, T0)
    with pytest.raises(Exception, match="spool"):
        spend(ledger, T0 + 60)
    ledger.close()
    assert [row.window for row in kept(tmp_path)] == [T0]


def test_rows_go_after_five_weeks_and_their_task_with_them(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    gone, here = b"g" * 32, WORLD.task_id
    ledger.remember_series([KnownSeries("minute", 1, 1, 60, here)], {here: b"signed"})
    ledger.remember_series([KnownSeries("minute", 1, 1, 60, here)], {gone: b"superseded"})
    spend(ledger, T0)
    spend(ledger, T0 + 36 * DAY_S)
    ledger.close()
    assert [row.window for row in kept(tmp_path)] == [T0 + 36 * DAY_S]
    assert dict(read_left(tmp_path / "ledger.sqlite").tasks) == {here: b"signed"}


def test_rows_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_reports, "MOST_REPORTS", 3)
    ledger = new_ledger(tmp_path)
    for number in range(6):
        spend(ledger, T0 + 3600 * number)  # an hour apart, as often as rows are counted
    ledger.close()
    assert [row.window for row in kept(tmp_path)] == [T0 + 3600 * n for n in (3, 4, 5)]


def test_ledger_of_an_earlier_agent_has_no_rows_and_gets_them(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    spend(ledger, T0)
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.executescript("DROP TABLE left_reports; DROP TABLE tasks")
    db.close()
    assert kept(tmp_path) == []
    again = Ledger.open(tmp_path / "ledger.sqlite", tmp_path / "fence", binding=b"machine")
    spend(again, T0 + 60)
    again.close()
    assert [row.window for row in kept(tmp_path)] == [T0 + 60]
