"""The local history: every record kept, private, bounded in bytes and time, readable meanwhile."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors.boot_clock import ClockPoint
from edge_agent.local.history import History, HistorySection
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.history_tables import HistoryUnavailable, file_bytes
from edge_agent.local.local_rows import MetricRow
from tests.local_kit import BOOT, POINT, UNIX, S, activity, flattener, metric, one_of_each, ticks

pytestmark = pytest.mark.slow

SMALL = HistorySection(max_bytes=4 << 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def filled(path: Path, limits: HistorySection | None = None, boot: str = "boot-1") -> History:
    history = History(path, limits, boot=lambda: boot)
    history.note_clock(POINT)
    return history


def metrics(path: Path, **wanted: int | str | None) -> list[dict[str, Any]]:
    with HistoryReader(path) as reader:
        return list(reader.rows("metric", **wanted))  # type: ignore[arg-type]


def test_history_keeps_every_kind_of_record_even_unknown_ones(path: Path) -> None:
    history = filled(path)
    flat = flattener()
    history.add(flat.rows("test", one_of_each()))
    with HistoryReader(path) as reader:
        found = {kind: list(reader.rows(kind)) for kind in ("metric", "activity", "event")}
    by_name = {(row["name"], row["key"]): row for row in found["metric"]}
    assert by_name["host_cpu", "user"]["value"] == 250_000
    assert by_name["host_cpu", "user"]["unit"] == "millionths of full scale"
    assert by_name["watched", "gpu0"]["span_ns"] == S
    assert by_name["queue_depth_bytes", "nvme0"]["value"] == 17.5
    assert by_name["queue_depth_bytes", "nvme0"]["unit"] == "bytes"
    assert by_name["cgroup.send_bytes", "/b"]["value"] == 4_000
    assert ("cgroup.send_bytes", "/a") not in by_name
    (kernel,) = found["activity"]
    assert (kernel["name"], kernel["count"], kernel["gpu_time_ns"]) == ("gemm_kernel", 3, 5_000)
    assert kernel["log2_bins"] == [[10, 3]]
    (fault,) = found["event"]
    assert (fault["name"], fault["key"]) == ("hardware_faults", "faulty_gpu")
    assert not flat.dropped
    assert not history.dropped
    history.close()


def test_history_gives_every_snapshot_back_exactly(path: Path) -> None:
    history = filled(path)
    history.add(flattener().rows("ebpf", [ticks(BOOT + S, 100, 7)]))
    rows = metrics(path, name="switches")
    assert [row["value"] for row in rows] == [float(14 * i) for i in range(100)]
    assert [row["boottime_ns"] for row in rows] == [BOOT + S + i * S // 100 for i in range(100)]
    assert rows[0]["unix_ns"] == UNIX + S
    history.close()


def test_history_gives_a_span_and_a_name(path: Path) -> None:
    history = filled(path)
    history.add([metric(BOOT + i * S, float(i)) for i in range(12_000)])
    history.add([metric(BOOT + 5 * S, 99.0, "other")])
    rows = metrics(path, since_ns=UNIX + 3 * S, until_ns=UNIX + 11_000 * S, name="lev*")
    assert [row["value"] for row in rows] == [float(i) for i in range(3, 11_000)]
    history.close()


@pytest.mark.release
def test_history_stays_within_its_bytes_and_keeps_the_newest(path: Path) -> None:
    history = filled(path, SMALL)
    for minute in range(60):
        start = BOOT + minute * 60 * S
        history.add([
            metric(start + i * 10_000_000, float(minute), key=f"key-{i % 100}")
            for i in range(6_000)
        ])  # fmt: skip
        history.trim(ClockPoint(start, UNIX + start - BOOT, 100))
        assert file_bytes(path) <= SMALL.max_bytes + 65_536
    kept = {row["value"] for row in metrics(path)}
    assert max(kept) == 59.0
    assert 0.0 not in kept
    assert history.dropped["full"] == 0
    history.close()


def test_history_makes_room_when_one_burst_fills_it(path: Path) -> None:
    history = filled(path, SMALL)
    for part in range(200):
        at = BOOT + part * S
        history.add([metric(at + i, float(part), key=f"key-{i % 50}") for i in range(1_000)])
        assert file_bytes(path) <= SMALL.max_bytes + 65_536
    values = [row["value"] for row in metrics(path)]
    assert max(values) == 199.0
    history.close()


def test_history_forgets_after_its_time(path: Path) -> None:
    history = filled(path, HistorySection(keep_s=3_600))
    history.add([metric(BOOT + i * 60 * S, float(i)) for i in range(120)])
    now = BOOT + 120 * 60 * S
    history.trim(ClockPoint(now, UNIX + now - BOOT, 100))
    assert [row["value"] for row in metrics(path)] == [float(i) for i in range(60, 120)]
    history.close()


def test_history_forgets_an_earlier_boot_by_wall_time(path: Path) -> None:
    old = filled(path, boot="boot-1")
    old.add([metric(BOOT, 1.0)])
    old.close()
    new = History(path, boot=lambda: "boot-2")
    later = ClockPoint(10 * S, UNIX + 86_000 * S, 100)
    new.note_clock(later)
    new.add([metric(10 * S, 2.0)])
    new.trim(later)
    rows = metrics(path)
    assert [(row["boot_id"], row["value"]) for row in rows] == [("boot-1", 1.0), ("boot-2", 2.0)]
    assert rows[1]["unix_ns"] == later.unix_ns
    new.trim(ClockPoint(810 * S, UNIX + 86_800 * S, 100))
    assert [row["value"] for row in metrics(path)] == [2.0]
    new.close()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_history_is_private(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    history = filled(path)
    history.add([metric(BOOT)])
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file
    history.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_history_refuses_a_link_in_its_place(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.touch()
    path.symlink_to(elsewhere)
    with pytest.raises(HistoryUnavailable, match="move it away"):
        History(path)


def test_history_begins_anew_where_the_file_is_garbage(path: Path) -> None:
    path.write_bytes(b"no database " * 1_000)
    history = filled(path)
    history.add([metric(BOOT, 4.0)])
    assert [row["value"] for row in metrics(path)] == [4.0]
    history.close()


def test_history_of_another_schema_is_not_read_as_ours(path: Path) -> None:
    filled(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(
        HistoryUnavailable, match=r"written by a newer version .*schema 99, this one reads 1"
    ):
        HistoryReader(path)


def test_history_goes_on_after_a_restart_in_the_same_boot(path: Path) -> None:
    for number in range(3):
        history = filled(path)
        history.add(flattener().rows("test", [activity(BOOT + number * S)]))
        history.close()
    with HistoryReader(path) as reader:
        rows = list(reader.rows("activity"))
        assert reader.span() == (UNIX, UNIX + 2 * S)
    assert [row["boottime_ns"] for row in rows] == [BOOT, BOOT + S, BOOT + 2 * S]
    assert {row["boot_id"] for row in rows} == {"boot-1"}


def test_history_of_a_killed_process_is_there(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from tests.local_kit import *; from edge_agent.local.history import History;"
        "h = History(Path(sys.argv[1]), boot=lambda: 'boot-1'); h.note_clock(POINT);"
        "h.add([metric(BOOT + i, float(i)) for i in range(50)]);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(metrics(path)) == 50
    again = filled(path)
    again.add([metric(BOOT + 50, 50.0)])
    assert len(metrics(path)) == 51
    again.close()


def test_history_is_bounded_while_a_reader_never_lets_go(path: Path) -> None:
    history = filled(path, SMALL)
    history.add([metric(BOOT)])
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM metric").fetchone() == (1,)
    for part in range(60):
        history.add([metric(BOOT + part * S + i, 1.0, key=f"key-{i % 50}") for i in range(2_000)])
    assert history.dropped["reader_in_the_way"] > 0
    assert file_bytes(path) <= 2 * SMALL.max_bytes
    reader.close()
    before = history.kept
    history.add([metric(BOOT + 100 * S)])
    assert history.kept == before + 1
    history.close()


def test_history_bounds_its_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_agent.local.history.MOST_NAMES", 10)
    history = filled(path)
    history.add([metric(BOOT + i, 1.0, key=f"key-{i}") for i in range(40)])
    assert len(metrics(path)) == 10
    assert history.dropped["too_many_names"] == 30
    later = BOOT + 2 * 86_400 * S
    history.trim(ClockPoint(later, UNIX + later - BOOT, 100))
    history.add([metric(later, 2.0, key="new")])
    assert [row["key"] for row in metrics(path)] == ["new"]
    history.close()


def test_history_of_a_full_disk_counts_and_goes_on(path: Path) -> None:
    history = filled(path)
    history._db.execute("PRAGMA max_page_count = 1")  # as full as can be
    history.add([metric(BOOT + i, 1.0, name=f"name-{i}" * 50) for i in range(5_000)])
    assert history.dropped["full"] == 5_000
    history._db.execute("PRAGMA max_page_count = 100000")
    history.add([MetricRow(BOOT, 0, "test", "level", "", "", 3.0)])
    assert [row["value"] for row in metrics(path)] == [3.0]
    history.close()


def test_history_reader_says_when_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match="has the agent run"):
        HistoryReader(tmp_path / "none.sqlite")
    assert not list(tmp_path.iterdir())
