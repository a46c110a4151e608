"""Recovery carries over what the old files tell, and refuses where nothing is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.ledger import ledger_db
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_loss import Fence, FenceMark, set_aside
from edge_agent.ledger.ledger_records import (
    ClockSetBack,
    EpochOpening,
    FenceUnwritable,
    HostEntry,
    KnownSeries,
    LedgerFull,
    SealedRecord,
)
from privacy.budget import Entry

NOW = 1_800_000_000
HOST = b"h" * 16
KNOWN = KnownSeries("minute", 1, 600_000, 60)


def paths(folder: Path) -> tuple[Path, Path]:
    return folder / "ledger.sqlite", folder / "host.key.fence"


def made(folder: Path) -> Ledger:
    path, fence = paths(folder)
    return Ledger.create(path, fence, hosts=[HOST], binding=b"machine", now_s=NOW)


def record(value: bytes) -> SealedRecord:
    return SealedRecord("plst1.reports", b"k", value, 0, NOW + 86_400)


def entry(start: int) -> Entry:
    return Entry("minute", start, start + 60, 600_000, 10_081)


def spend(ledger: Ledger, start: int) -> None:
    ledger.commit_sealed([HostEntry(HOST, entry(start))], [record(b"sealed")], start + 60)


def recover(folder: Path, now_s: int, signed_time_s: int = 0) -> Ledger:
    path, fence = paths(folder)
    return Ledger.recover(
        path, fence, hosts=[HOST], binding=b"machine", now_s=now_s, signed_time_s=signed_time_s,
        known=[KNOWN],
    )  # fmt: skip


def test_recovery_of_a_sound_ledger_with_a_clock_behind_is_refused(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, NOW)
    ledger.close()
    with pytest.raises(ClockSetBack, match="set the clock right"):
        recover(tmp_path, NOW - 6 * 3600)
    path, fence = paths(tmp_path)
    Ledger.open(path, fence, binding=b"machine").close()


def test_recovery_carries_windows_and_epochs_over(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, NOW)
    ledger.commit_epochs([EpochOpening(HOST, NOW + 5_000, NOW + 60)], [record(b"e")], NOW + 60)
    ledger.close()
    paths(tmp_path)[1].unlink()  # the fence is lost: the ledger alone proves nothing
    recovered = recover(tmp_path, NOW + 100)
    view = recovered.view([HOST])
    assert view.hosts[0].entries == (entry(NOW),)
    assert view.hosts[0].epoch_ctr == NOW + 5_000
    assert view.hosts[0].epochs_opened == (NOW + 60,)
    assert view.resume_after_s == NOW + 100
    assert recovered.spooled() == []
    recovered.close()


def test_recovery_reads_a_ledger_that_was_killed_with_its_journal(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, NOW)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path, killed)  # as a kill leaves them: the window is in the journal alone
    ledger.close()
    assert (killed / "ledger.sqlite-wal").stat().st_size > 0
    (killed / "ledger.sqlite").rename(killed / "ledger.sqlite.lost-7")
    (killed / "ledger.sqlite-wal").rename(killed / "ledger.sqlite.lost-7-wal")
    recovered = recover(killed, NOW + 100)
    assert recovered.view([HOST]).hosts[0].entries == (entry(NOW),)
    recovered.close()


def test_journal_is_set_aside_under_the_name_that_sqlite_looks_for(tmp_path: Path) -> None:
    path, _ = paths(tmp_path)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").write_bytes(b"damaged")
    set_aside(path, 7)
    names = sorted(file.name.removeprefix("ledger.sqlite.lost-7") for file in tmp_path.iterdir())
    assert names == ["", "-shm", "-wal"]


def test_second_recovery_remembers_the_first_ledger(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, NOW)
    ledger.close()
    recover(tmp_path, NOW + 100).close()
    path, _ = paths(tmp_path)
    path.unlink()
    with pytest.raises(ClockSetBack):
        recover(tmp_path, NOW + 10)
    recovered = recover(tmp_path, NOW + 200)
    assert recovered.view([HOST]).hosts[0].entries == (entry(NOW),)
    recovered.close()


def no_room(*_: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def fence_unwritable(*_: object) -> None:
    raise FenceUnwritable("expected to write the ledger's fence")


@pytest.mark.parametrize(
    ("owner", "step", "fault", "refusal"),
    [
        (ledger_db, "upsert_series", no_room, LedgerFull),
        (Fence, "write", fence_unwritable, FenceUnwritable),
    ],
)
def test_recovery_that_failed_is_begun_again_and_forgets_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    step: str,
    fault: Callable[..., None],
    refusal: type[Exception],
) -> None:
    """In the same process too: nothing of the first call holds the lock."""
    ledger = made(tmp_path)
    spend(ledger, NOW)
    ledger.close()
    with monkeypatch.context() as faulty:
        faulty.setattr(owner, step, fault)
        with pytest.raises(refusal):
            recover(tmp_path, NOW + 100)
    recovered = recover(tmp_path, NOW + 101)
    assert recovered.view([HOST]).hosts[0].entries == (entry(NOW),)
    recovered.close()


def test_fence_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "fence"
    path.touch()
    read_only = Fence(os.open(path, os.O_RDONLY), path)
    with pytest.raises(FenceUnwritable, match="folder writable"):
        read_only.write(FenceMark(bytes(16), 1))
    read_only.close()


def test_recovery_of_a_damaged_ledger_resumes_after_its_last_readable_time(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    spend(ledger, NOW + 6 * 3600)
    ledger._db.execute("PRAGMA user_version=99")  # unreadable to this version, times still there
    ledger.close()
    recovered = recover(tmp_path, NOW)
    view = recovered.view([HOST])
    assert view.resume_after_s == NOW + 6 * 3600 + 60
    assert view.hosts[0].entries == ()
    recovered.close()


def test_recovery_of_garbage_starts_from_the_clock(tmp_path: Path) -> None:
    made(tmp_path).close()
    paths(tmp_path)[0].write_bytes(b"garbage" * 4096)
    recovered = recover(tmp_path, NOW + 10, NOW + 99)
    assert recovered.view([HOST]).resume_after_s == NOW + 99
    recovered.close()


def test_ledger_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        ledger = made(tmp_path)
        spend(ledger, NOW)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        ledger.close()
    finally:
        os.umask(before)
    assert modes.keys() >= {"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"}
    assert set(modes.values()) == {0o600}
