"""Rows gathered for the history are the same rows, written less often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collectors.boot_clock import ClockPoint
from collectors.records.activity import Observation, RhythmMarks
from edge_agent.local.gathering import (
    EVERY_MS,
    FIRST_MS,
    MOST_RECORDS,
    MOST_ROWS,
    Gathering,
)
from edge_agent.local.history import History
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.local_rows import EventRow, Flattener, MetricCell, MetricRow, PackedRow, Row
from edge_agent.local.recent import FRESH_NS, Recent
from tests.local_kit import S, at
from wire.catalogue import Catalogue

TICKS = (MetricCell("switches", "", ""), MetricCell("cpu_ns", "", "ns"))


def drained(second: int) -> list[Row]:
    """What one drain gives: snapshots, and two tables of one moment."""
    at = second * S
    times = at + np.arange(10, dtype=np.int64) * 10_000_000
    totals = np.arange(20, dtype=np.int64).reshape(10, 2) + 100 * second
    moment = np.array([at], dtype=np.int64)
    return [
        PackedRow("ebpf", TICKS, times, totals),
        PackedRow("ebpf", (MetricCell("cpu.x", "cpu0", ""),), moment, np.array([[second]]), S),
        PackedRow("ebpf", (MetricCell("peer.y", "::1", ""),), moment, np.array([[7]]), S),
        MetricRow(at, 0, "host", "load", "", "", float(second)),
        EventRow("noted", "", str(second), at, "agent"),
    ]


def kept(path: Path, *, at_once: bool) -> list[tuple[object, ...]]:
    history = History(path, boot=lambda: "boot")
    history.note_clock(ClockPoint(S, 1_700_000_000 * S, 100))
    gathering = Gathering(Flattener(Catalogue.load()), Recent(), history)
    for second in range(1, 6):
        if at_once:
            history.add(drained(second))
        else:
            gathering.add("x", (), drained(second))
            gathering.fold()
    gathering.flush()
    history.close()
    with HistoryReader(path) as reader:
        found = [*reader.rows("metric"), *reader.rows("event")]
    keys = ("boottime_ns", "source", "name", "key", "unit", "span_ns", "value", "detail")
    return sorted(tuple(str(row.get(key)) for key in keys) for row in found)


def test_history_batch_keeps_the_same_rows(tmp_path: Path) -> None:
    rows = kept(tmp_path / "batched.sqlite", at_once=False)
    assert rows == kept(tmp_path / "single.sqlite", at_once=True)
    assert len(rows) == 5 * (20 + 2 + 1 + 1)


def test_history_batch_writes_when_due_or_full_also_after_a_clock_set_back(
    tmp_path: Path,
) -> None:
    history = History(tmp_path / "h.sqlite", boot=lambda: "boot")
    gathering = Gathering(Flattener(Catalogue.load()), Recent(), history)
    gathering.step(100_000 - FIRST_MS)
    gathering.step(100_000)
    gathering.add("host", (), drained(1))
    gathering.step(100_000 + EVERY_MS - 1)
    assert history.kept == 0
    gathering.step(100_000 + EVERY_MS)
    after_one = history.kept
    assert after_one > 0
    gathering.add("host", (), drained(2))
    gathering.step(1_000)
    assert history.kept == 2 * after_one
    many = [MetricRow(S + i, 0, "host", "load", "", "", 1.0) for i in range(MOST_ROWS)]
    gathering.add("host", (), many)
    assert history.kept == 2 * after_one + MOST_ROWS
    history.close()


def observed(second: int, value: int) -> Observation:
    return Observation("host_cpu", "user", value, second * S)


def test_gathering_shows_records_when_the_view_is_asked_for_and_in_their_order() -> None:
    recent = Recent()
    gathering = Gathering(Flattener(Catalogue.load()), recent, None)
    gathering.add("host", [observed(1, 5)], [EventRow("first", "", "", S, "agent")])
    gathering.add("host", [observed(2, 7)], [EventRow("second", "", "", S, "agent")])
    assert recent.view(at(2 * S)).levels == ()
    gathering.fold()
    gathering.fold()
    view = recent.view(at(2 * S))
    assert [level.last for level in view.levels] == [7]
    assert [event["name"] for event in view.events] == ["first", "second"]


def test_gathering_keeps_no_marks_and_a_bounded_number_of_records() -> None:
    recent = Recent()
    gathering = Gathering(Flattener(Catalogue.load()), recent, None)
    none, kinds = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    marks = RhythmMarks(7, 1, "/a", "job", none, kinds, none, none, none, none, ())
    gathering.add("ebpf", [marks] * (MOST_RECORDS + 1))
    gathering.add("host", [observed(1, 5)] * MOST_RECORDS)
    assert recent.view(at(S)).levels == ()
    gathering.add("host", [observed(1, 6)])
    assert [level.last for level in recent.view(at(S)).levels] == [6]


def test_gathering_withdraws_what_still_waited() -> None:
    recent = Recent()
    gathering = Gathering(Flattener(Catalogue.load()), recent, None)
    gathering.add("host", [observed(1, 5)])
    gathering.withdraw([("host", "host_cpu", "user")])
    assert recent.view(at(S)).levels == ()


@pytest.mark.parametrize("age_ns", [0, FRESH_NS + 1])
def test_view_folds_what_waited_and_only_what_is_fresh(age_ns: int) -> None:
    recent = Recent()
    recent.add(drained(1))
    recent.add([MetricRow(2 * S + age_ns, 0, "host", "load", "", "", 2.0)])
    shown = {level.name: level.last for level in recent.view(at(2 * S + age_ns)).levels}
    assert shown["load"] == 2.0
    assert ("cpu.x" in shown) == (age_ns == 0)
