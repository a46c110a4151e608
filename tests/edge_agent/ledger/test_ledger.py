"""The ledger: what survives, and every doubt that makes it refuse."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_agent.ledger.ledger import CLOCK_TOLERANCE_S, Ledger
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import (
    FREEZE_S,
    ClockSetBack,
    EpochOpening,
    HostEntry,
    KnownSeries,
    LedgerBusy,
    LedgerCloned,
    LedgerCorrupt,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    LedgerRefused,
    LedgerRolledBack,
    SealedRecord,
    SpoolFull,
    SpoolLimits,
    WindowSpent,
)
from privacy.budget import Entry

NOW = 1_800_000_000
HOST = b"h" * 16
OTHER = b"o" * 16


def paths(folder: Path) -> tuple[Path, Path]:
    return folder / "ledger.sqlite", folder / "keys" / "host.key.fence"


def create(folder: Path, **changes: object) -> Ledger:
    path, fence = paths(folder)
    fence.parent.mkdir(exist_ok=True)
    return Ledger.create(
        path, fence, hosts=[HOST, OTHER], binding=b"machine", now_s=NOW, **changes  # type: ignore[arg-type]
    )  # fmt: skip


def reopen(folder: Path, binding: bytes = b"machine") -> Ledger:
    path, fence = paths(folder)
    return Ledger.open(path, fence, binding=binding)


def entry(start: int, series: str = "minute", window_s: int = 60) -> Entry:
    return Entry(series, start, start + window_s, 600_000, 10_081)


def record(value: bytes = b"sealed", expires_s: int = NOW + 21_600) -> SealedRecord:
    return SealedRecord("plst1.reports", HOST, value, NOW * 1000, expires_s)


def spend(ledger: Ledger, start: int, now_s: int = NOW, host: bytes = HOST) -> tuple[int, ...]:
    return ledger.commit_sealed([HostEntry(host, entry(start))], [record()], now_s)


def test_ledger_keeps_entries_epochs_and_sealed_bytes_over_a_restart(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    ledger.commit_epochs([EpochOpening(HOST, NOW + 1, NOW)], [record(b"epoch")], NOW)
    spend(ledger, NOW - 60)
    ledger.remember_series([KnownSeries("minute", 4, 600_000, 60)])
    ledger.close()
    again = reopen(tmp_path)
    view = again.view([HOST, OTHER])
    assert view.hosts[0].entries == (entry(NOW - 60),)
    assert view.hosts[0].epoch_ctr == NOW + 1
    assert view.hosts[0].epochs_opened == (NOW,)
    assert view.hosts[1].entries == ()
    assert view.series["minute"].version == 4
    assert [s.record.value for s in again.spooled()] == [b"epoch", b"sealed"]
    again.close()


def test_ledger_entries_and_bytes_are_one_transaction(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    doubled = [HostEntry(HOST, entry(NOW - 60)), HostEntry(HOST, entry(NOW - 60))]
    with pytest.raises(LedgerRefused):
        ledger.commit_sealed(doubled, [record(), record()], NOW)
    assert ledger.view([HOST]).hosts[0].entries == ()
    assert ledger.spooled() == []
    ledger.close()


@pytest.mark.parametrize("start", [NOW - 60, NOW - 120])
def test_ledger_windows_of_a_series_only_rise(tmp_path: Path, start: int) -> None:
    ledger = create(tmp_path)
    spend(ledger, NOW - 60)
    with pytest.raises(WindowSpent):
        spend(ledger, start)
    spend(ledger, start, host=OTHER)
    ledger.close()
    again = reopen(tmp_path)
    with pytest.raises(WindowSpent):
        spend(again, start)
    again.close()


def test_ledger_full_spool_spends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    ledger = create(tmp_path, limits=SpoolLimits(max_records=2, max_bytes=1000))
    ids = spend(ledger, NOW - 180) + spend(ledger, NOW - 120)
    with pytest.raises(SpoolFull):
        spend(ledger, NOW - 60)
    assert len(ledger.view([HOST]).hosts[0].entries) == 2
    assert [s.spool_id for s in ledger.spooled()] == list(ids)
    ledger.forget(ids[:1])
    spend(ledger, NOW - 60)
    ledger.close()


def test_ledger_keeps_the_last_tenth_of_the_spool_for_epochs_and_long_windows(
    tmp_path: Path,
) -> None:
    ledger = create(tmp_path, limits=SpoolLimits(max_records=10, max_bytes=1000))
    for number in range(9):
        spend(ledger, NOW - 1200 + 60 * number)
    with pytest.raises(SpoolFull, match="at most 9 records, 900 B"):
        spend(ledger, NOW - 60)
    long = HostEntry(HOST, entry(NOW - 90_000, "day", 86_400))
    ledger.commit_sealed([long], [record()], NOW)
    with pytest.raises(SpoolFull, match="at most 10 records, 1000 B"):
        ledger.commit_epochs([EpochOpening(HOST, NOW + 1, NOW)], [record(b"epoch")], NOW)
    assert len(ledger.view([HOST]).hosts[0].entries) == 10
    ledger.close()


def test_ledger_spool_is_bounded_in_bytes(tmp_path: Path) -> None:
    ledger = create(tmp_path, limits=SpoolLimits(max_records=100, max_bytes=10))
    spend(ledger, NOW - 120)
    with pytest.raises(SpoolFull):
        spend(ledger, NOW - 60)
    ledger.close()


def test_ledger_drops_sealed_records_that_nobody_accepts_any_more(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    spend(ledger, NOW - 60)
    assert ledger.drop_expired(NOW + 21_599) == 0
    assert ledger.drop_expired(NOW + 21_600) == 1
    assert (ledger.spool_records, ledger.spool_bytes) == (0, 0)
    ledger.close()


def test_ledger_spool_ids_are_never_reused(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    first = spend(ledger, NOW - 120)
    ledger.forget(first)
    assert spend(ledger, NOW - 60)[0] > first[0]
    ledger.close()


def test_ledger_refuses_a_clock_behind_a_signed_time(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    ledger.note_signed_time(NOW)
    with pytest.raises(ClockSetBack, match="set the clock right"):
        spend(ledger, NOW, NOW - CLOCK_TOLERANCE_S - 1)
    ledger.note_signed_time(NOW + 500)
    ledger.note_signed_time(NOW + 100)
    ledger.close()
    again = reopen(tmp_path)  # an agent that starts before NTP has come waits for it
    with pytest.raises(ClockSetBack):
        spend(again, NOW, NOW + 490)
    spend(again, NOW, NOW + 500)
    again.close()


def test_ledger_refuses_a_rolled_back_copy(tmp_path: Path) -> None:
    path, _ = paths(tmp_path)
    ledger = create(tmp_path)
    spend(ledger, NOW - 120)
    ledger.close()
    shutil.copy(path, tmp_path / "backup")
    ledger = reopen(tmp_path)
    spend(ledger, NOW - 60)
    ledger.close()
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(LedgerRolledBack, match="agent ledger recover"):
        reopen(tmp_path)


def test_ledger_refuses_another_ledger_in_its_place(tmp_path: Path) -> None:
    create(tmp_path).close()
    other = tmp_path / "other"
    other.mkdir()
    create(other).close()
    shutil.copy(paths(other)[0], paths(tmp_path)[0])
    with pytest.raises(LedgerRolledBack):
        reopen(tmp_path)


def test_ledger_one_ahead_of_its_fence_was_a_crash_between_them(tmp_path: Path) -> None:
    class Crash(Exception):
        pass

    def crash(point: str) -> None:
        if point == "ledger:before-fence":
            raise Crash

    ledger = create(tmp_path, fault_point=crash)
    with pytest.raises(Crash):
        spend(ledger, NOW - 60)
    ledger.close()
    again = reopen(tmp_path)
    assert len(again.view([HOST]).hosts[0].entries) == 1
    assert len(again.spooled()) == 1
    again.close()


@pytest.mark.parametrize("lost", ["ledger", "fence"])
def test_ledger_refuses_after_a_loss(tmp_path: Path, lost: str) -> None:
    create(tmp_path).close()
    paths(tmp_path)[lost == "fence"].unlink()
    with pytest.raises(LedgerMissing, match="agent ledger recover"):
        reopen(tmp_path)
    with pytest.raises(LedgerExists):
        create(tmp_path)


def _scribble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 512):
        content[at : at + 64] = b"\xa5" * 64
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _not_sqlite(path: Path) -> None:
    path.write_bytes(b"nothing like a ledger" * 500)


def _no_identity(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("DELETE FROM meta")
    db.commit()
    db.close()


@pytest.mark.parametrize("damage", [_scribble, _truncate, _not_sqlite, _no_identity])
def test_ledger_refuses_a_corrupt_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    ledger = create(tmp_path)
    for k in range(50):
        spend(ledger, NOW - 6000 + 60 * k)
    ledger.close()
    damage(paths(tmp_path)[0])
    with pytest.raises(LedgerCorrupt, match="agent ledger recover"):
        reopen(tmp_path).view([HOST])


def test_ledger_refuses_a_corrupt_fence(tmp_path: Path) -> None:
    create(tmp_path).close()
    paths(tmp_path)[1].write_bytes(b"\0" * 8192)
    with pytest.raises(LedgerCorrupt):
        reopen(tmp_path)


def test_ledger_fence_survives_one_torn_slot(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    ledger.close()
    fence = paths(tmp_path)[1]
    torn = bytearray(fence.read_bytes())
    torn[0:5] = b"xxxxx"
    fence.write_bytes(torn)
    reopen(tmp_path).close()


def test_ledger_refuses_a_cloned_machine(tmp_path: Path) -> None:
    create(tmp_path).close()
    with pytest.raises(LedgerCloned, match="agent ledger recover"):
        reopen(tmp_path, binding=b"another machine")


def test_ledger_refuses_a_second_process(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    with pytest.raises(LedgerBusy):
        reopen(tmp_path)
    assert len(read_view(paths(tmp_path)[0]).hosts) == 2
    ledger.close()


def test_ledger_refuses_a_host_that_it_does_not_hold(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    with pytest.raises(LedgerMissing):
        ledger.view([b"x" * 16])
    ledger.close()


def test_ledger_on_a_full_disk_spends_nothing(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    spend(ledger, NOW - 120)
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count={pages}")
    big = record(b"x" * 200_000)
    with pytest.raises(LedgerFull, match="free space"):
        ledger.commit_sealed([HostEntry(HOST, entry(NOW - 60))], [big], NOW)
    assert len(ledger.view([HOST]).hosts[0].entries) == 1
    ledger._db.execute("PRAGMA max_page_count=100000")
    ledger.commit_sealed([HostEntry(HOST, entry(NOW - 60))], [big], NOW)
    ledger.close()


def test_ledger_recovery_freezes_series_and_counts_epochs_from_the_clock(tmp_path: Path) -> None:
    path, fence = paths(tmp_path)
    ledger = create(tmp_path)
    ledger.commit_epochs([EpochOpening(HOST, NOW + 1, NOW)], [record(b"epoch")], NOW)
    ledger.close()
    path.unlink()
    known = [KnownSeries("minute", 1, 600_000, 60)]
    recovered = Ledger.recover(
        path, fence, hosts=[HOST], binding=b"machine", now_s=NOW + 10, signed_time_s=NOW + 99,
        known=known,
    )  # fmt: skip
    view = recovered.view([HOST])
    assert view.resume_after_s == NOW + 99
    assert view.freeze_until_s == NOW + 10 + FREEZE_S
    assert view.hosts[0].epoch_ctr > NOW + 1
    assert dict(view.series) == {"minute": known[0]}
    recovered.close()
    assert fence.with_name(f"{fence.name}.lost-{NOW + 10}").exists()
    reopen(tmp_path).close()


def test_ledger_forgets_what_it_is_told_to_and_remembers_since_when(tmp_path: Path) -> None:
    ledger = create(tmp_path)
    for start in (NOW - 180, NOW - 120, NOW - 60):
        spend(ledger, start)
    entries = [HostEntry(HOST, entry(NOW))]
    ledger.commit_sealed(entries, [record()], NOW + 60, keep_from_s=NOW - 60)
    ledger.commit_sealed([HostEntry(HOST, entry(NOW + 60))], [record()], NOW + 120, keep_from_s=0)
    ledger.close()
    view = reopen(tmp_path).view([HOST])
    assert [e.start for e in view.hosts[0].entries] == [NOW - 120, NOW - 60, NOW, NOW + 60]
    assert view.kept_from_s == NOW - 60


def test_ledger_of_an_earlier_agent_says_since_when_it_keeps_entries(tmp_path: Path) -> None:
    """It forgot what had ended three weeks and the longest window before."""
    ledger = create(tmp_path)
    ledger.remember_series([KnownSeries("day", 1, 100_000, 86_400)])
    assert ledger.view([HOST]).kept_from_s == 0
    ledger._db.execute("DELETE FROM meta WHERE name = 'kept_from_s'")
    assert ledger.view([HOST]).kept_from_s == NOW - 22 * 86_400


def test_ledger_commits_many_hosts_in_one_transaction(tmp_path: Path) -> None:
    hosts = [k.to_bytes(16, "big") for k in range(750)]
    path, fence = paths(tmp_path)
    fence.parent.mkdir()
    ledger = Ledger.create(path, fence, hosts=hosts, binding=b"machine", now_s=NOW)
    entries = [HostEntry(host, entry(NOW - 60)) for host in hosts]
    ids = ledger.commit_sealed(entries, [record()] * 750, NOW)
    assert len(ids) == 750
    assert ledger._mark.generation == 2
    assert all(len(h.entries) == 1 for h in ledger.view(hosts).hosts)
    ledger.close()


def test_ledger_file_is_private(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in paths(tmp_path))
