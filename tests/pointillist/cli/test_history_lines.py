"""How many lines `agent history` prints, and that nothing is left out unsaid."""

from __future__ import annotations

import pytest

from edge_agent.local.view_lines import LevelLine
from pointillist.cli.history_view_text import MOST_LINES, left_out, metric_lines, newest


def metric(name: str, key: str, value: float) -> LevelLine:
    return LevelLine("ebpf", name, key, "ns", 1, value, value, value, value, 0.0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_history_puts_the_parts_of_a_metric_on_one_line_where_there_are_many() -> None:
    rows = [metric("cpu.ns", f"cpu{number}", float(number)) for number in range(200)]
    rows.append(metric("ns", "", 7.0))
    _, whole, parts = metric_lines(rows, MOST_LINES)
    assert whole.split()[:2] == ["ebpf/ns", "1"]
    assert parts.split() == ["ebpf/cpu.ns[200", "keys]", "200", "0", "99.5", "199", "199", "ns"]
    assert len(metric_lines(rows)) == 1 + 201


def test_history_shows_shares_in_percent() -> None:
    share = metric("host_cpu", "user", 903_226.0)._replace(unit="millionths of full scale")
    _, line = metric_lines([share])
    assert line.split() == ["ebpf/host_cpu[user]", "1", *["90.3"] * 4, "%"]


def test_history_says_how_many_metrics_it_left_out() -> None:
    rows = [metric(f"m{number:03}", "", 1.0) for number in range(MOST_LINES + 12)]
    *lines, note = metric_lines(rows, MOST_LINES)
    assert len(lines) == 1 + MOST_LINES
    assert note == "and 12 more: --name PATTERN or --all shows them"


def test_history_shows_the_newest_events() -> None:
    assert newest(iter(range(100)), 3) == ([97, 98, 99], 97)
    assert newest(iter(range(3)), None) == ([0, 1, 2], 0)
    assert left_out(0, "earlier") == []
