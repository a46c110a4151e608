"""A state file of another version is refused as what it is: never as damaged, and unchanged."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader_state import LeaderState
from aggregator.state.state_file import StateUnusable
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import LedgerOfOtherVersion
from edge_agent.local.history import History, HistorySection
from edge_agent.local.history_tables import HistoryUnavailable
from edge_agent.windows.window_state import AccumulatorsUnavailable, DurableAccumulators
from tests.disk_kit import fill, small_disk
from transport.embedded.embedded import EmbeddedLog
from transport.interface import TransportUnavailable

NOW_S = 1_800_000_000


def _ledger(folder: Path) -> tuple[Path, Callable[[], None]]:
    path, fence = folder / "ledger.sqlite", folder / "fence"

    def open_it() -> None:
        if path.exists():
            Ledger.open(path, fence, binding=b"b" * 32).close()
        else:
            Ledger.create(path, fence, hosts=[b"h" * 16], binding=b"b" * 32, now_s=NOW_S).close()

    return path, open_it


def _windows(folder: Path) -> tuple[Path, Callable[[], None]]:
    path = folder / "open-windows.sqlite"
    return path, lambda: DurableAccumulators(path).close()


def _history(folder: Path) -> tuple[Path, Callable[[], None]]:
    path = folder / "history.sqlite"
    return path, lambda: History(path, HistorySection()).close()


def _leader(folder: Path) -> tuple[Path, Callable[[], None]]:
    path = folder / "leader.sqlite"
    return path, lambda: LeaderState(path).close()


def _helper(folder: Path) -> tuple[Path, Callable[[], None]]:
    path = folder / "helper.sqlite"
    return path, lambda: HelperState(path, folder / "helper.fence", NOW_S).close()


def _log(folder: Path) -> tuple[Path, Callable[[], None]]:
    return folder / "log" / "log.sqlite", lambda: EmbeddedLog(folder / "log").close()


KINDS = [
    pytest.param(_ledger, LedgerOfOtherVersion, id="ledger"),
    pytest.param(_windows, AccumulatorsUnavailable, id="windows"),
    pytest.param(_history, HistoryUnavailable, id="history"),
    pytest.param(_leader, StateUnusable, id="leader"),
    pytest.param(_helper, StateUnusable, id="helper"),
    pytest.param(_log, TransportUnavailable, id="log"),
]


def mark(path: Path, version: int) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()


def version_of(path: Path) -> int:
    db = sqlite3.connect(path)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(version)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("kind", "refusal"), KINDS)
def test_file_of_a_newer_version_is_refused_with_the_way_out_and_kept(
    kind: Callable[[Path], tuple[Path, Callable[[], None]]],
    refusal: type[Exception],
    tmp_path: Path,
) -> None:
    path, open_it = kind(tmp_path)
    open_it()
    open_it()
    mark(path, 99)
    before = digest(path)
    with pytest.raises(refusal, match=r"a newer version of Pointillist \(schema 99, ") as refused:
        open_it()
    assert "start that version again" in str(refused.value)
    assert "corrupt" not in str(refused.value).lower()
    assert digest(path) == before


def test_older_ledger_is_refused_and_recover_is_named(tmp_path: Path) -> None:
    path, open_it = _ledger(tmp_path)
    open_it()
    mark(path, 1)
    with pytest.raises(LedgerOfOtherVersion, match=r"an older version .*agent ledger recover"):
        open_it()


@pytest.mark.parametrize(("kind", "version"), [(_windows, 1), (_leader, 2), (_helper, 1)])
def test_file_from_before_it_was_marked_is_read_on_and_marked(
    kind: Callable[[Path], tuple[Path, Callable[[], None]]], version: int, tmp_path: Path
) -> None:
    path, open_it = kind(tmp_path)
    open_it()
    mark(path, 0)
    open_it()
    assert version_of(path) == version


@pytest.mark.parametrize("marked", [0, 1])
def test_leader_takes_epochs_over_that_were_kept_by_name(marked: int, tmp_path: Path) -> None:
    """Who kept them so reads version 1: it must not open what it would find no epochs in."""
    path, open_it = _leader(tmp_path)
    open_it()
    mark(path, marked)
    db = sqlite3.connect(path)
    db.executescript(
        "DROP TABLE kept_epochs;"
        "CREATE TABLE epochs (host_id BLOB, epoch_id BLOB, not_after INTEGER NOT NULL, "
        "dead INTEGER NOT NULL, raw BLOB NOT NULL, PRIMARY KEY (host_id, epoch_id)) WITHOUT ROWID"
    )
    names = [(bytes([i]) * 16, bytes([9 - i]) * 16) for i in range(3)]
    rows = [(*name, NOW_S + i, i == 1, b"raw %d" % i) for i, name in enumerate(names)]
    db.executemany("INSERT INTO epochs VALUES (?,?,?,?,?)", rows)
    db.commit()
    db.close()

    for _ in range(2):  # the second opening finds nothing to take over
        state = LeaderState(path)
        assert version_of(path) == 2
        assert list(state.epochs()) == [(b"raw 0", False), (b"raw 1", True), (b"raw 2", False)]
        assert [state.raw_epoch(host + epoch) for host, epoch in names] == [r[4] for r in rows]
        assert state.resumed
        state.close()
    copy = tmp_path / "leader.sqlite.schema-1"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT count(*) FROM epochs").fetchone() == (3,)


def test_new_state_needs_no_copy(tmp_path: Path) -> None:
    path, open_it = _leader(tmp_path)
    open_it()
    open_it()
    assert not list(tmp_path.glob("leader.sqlite.schema-*"))
    assert version_of(path) == 2


@pytest.mark.root
def test_upgrade_without_room_for_the_copy_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path, open_it = _leader(disk)
        open_it()
        mark(path, 1)
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE ballast AS SELECT randomblob(600000) AS b")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        before, ballast = digest(path), fill(disk)
        os.truncate(ballast, ballast.stat().st_size - 300_000)
        with pytest.raises(OSError, match=r"schema-1: expected room for a copy"):
            open_it()
        assert digest(path) == before
        assert not list(disk.glob("*.schema-1*"))
