"""What `agent top` says of values that have no panel: words and units, not raw names."""

from __future__ import annotations

from typing import Any

from pointillist.cli.screen_parts import value_lines


def value(name: str, number: float, unit: str = "", **more: str) -> dict[str, Any]:
    return {"source": "ebpf", "name": name, "key": "", "unit": unit, "last": number} | more


def test_top_values_are_words_and_the_rest_is_counted() -> None:
    raw = [value(f"softirq_ns_{number}", 1e6, "ns/s") for number in range(60)]
    lines = value_lines([
        *raw,
        value("run_delay_ns", 5.93e9, "ns/s"),
        value("cgroup.run_delay_ns", 1e6, "ns/s", key="/a"),
        value("cgroup.run_delay_ns", 2e6, "ns/s", key="/b"),
        value("switches", 0.0, "/s"),
        value("peer_drops", 2.0, "/s"),
    ])  # fmt: skip
    assert lines == [
        "threads wait for a CPU 5.93 s/s",
        "longest in cgroup /b 2 ms/s",
        "records lost, peer 2/s",
        "and 60 more: agent history --kind metric, or --json",
    ]


def test_top_values_of_an_own_source_have_lines_and_percent_for_millionths() -> None:
    lines = value_lines(
        value(name, 312_500, "millionths of full scale", source="mine", key="a")
        for name in ("queue_depth", "b", "c", "d")
    )
    assert lines == [
        "mine: b a 31.2 %", "mine: c a 31.2 %", "mine: d a 31.2 %",
        "and 1 more: agent history --kind metric, or --json",
    ]  # fmt: skip


def test_top_values_with_a_panel_of_their_own_have_no_line() -> None:
    assert value_lines([value("host_cpu", 5.0), value("pressure.some_ns", 5.0, "ns/s")]) == []
