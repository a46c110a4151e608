"""Terminal, browser and both JSON documents show the same value and interval of everything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from collectors.records.gpu_calls import CountedCalls, GpuCalls
from edge_agent.config import AgentConfig
from edge_agent.host_page.gpu_panels import LAUNCHES
from edge_agent.host_page.host_pages import PAGES, HostState, page_html
from edge_agent.host_page.host_reading import HostReading
from edge_agent.local.history import History
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import document
from edge_agent.local.words import quantity
from edge_agent.service.top_feed import AgentFeed, Feed
from pages.wording import Number, Unit, interval_said, value_said
from pointillist.cli.agent_history import history
from pointillist.cli.agent_top import top
from pointillist.cli.output import rate
from tests.agent_live import surroundings
from tests.calls_kit import sampled_calls
from tests.drain_kit import played, recorded
from tests.gpu_times_kit import gpu_times
from tests.integration.test_agent_cli import write_config
from tests.local_kit import BOOT, POINT, UNIX, S, at, flattener

SECONDS = 10


@dataclass(frozen=True)
class Shown:
    """What each way of looking at one host says."""

    live: dict[str, Any]
    kept: dict[str, Any]
    screen: str
    text: dict[str, str]
    pages: dict[str, str]


def work() -> list[tuple[str, object]]:
    """Recorded drains of GPU calls, a server that is sampled, and programs that are timed."""
    (drained,) = played(recorded())
    (server,), (kernel,) = sampled_calls().processes, sampled_calls().kernels
    launches = CountedCalls(300, 1200.0, 900.0, 0.25, 40.0, 60.0)
    found: list[tuple[str, object]] = []
    for second in range(SECONDS):
        begun_ns = BOOT + second * S
        calls = GpuCalls(
            begun_ns, S, (*drained.processes, replace(server, launches=launches)),
            (*drained.kernels, kernel._replace(launches=launches)),
        )  # fmt: skip
        found += [("probes", calls), ("gpu_time", gpu_times(begun_ns))]
    return found


class Told(Feed):
    """An agent that says this."""

    note = "beside the running agent"

    def __init__(self, view: dict[str, Any]) -> None:
        self._view = view

    def view(self) -> dict[str, Any] | None:
        return self._view


@pytest.fixture
def shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shown:
    """Have one host's work looked at in each way, as soon as it was kept."""
    made, recent = surroundings(tmp_path), Recent()
    made.config.host.state_dir.mkdir(exist_ok=True)
    kept = History(made.config.history_file)
    kept.note_clock(POINT)
    for source, record in work():
        rows = list(flattener().rows(source, [record]))
        kept.add(rows)
        recent.add(rows)
    kept.close()
    config, until_ns = write_config(made), UNIX + SECONDS * S
    view = document(recent.view(at(BOOT + SECONDS * S)))

    @contextmanager
    def told(_config: AgentConfig | None) -> Iterator[Feed]:
        yield Told(view)

    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda _config: None)
    monkeypatch.setattr("pointillist.cli.agent_top.open_feed", told)
    monkeypatch.setattr("time.time_ns", lambda: until_ns)
    monkeypatch.setenv("COLUMNS", "400")

    def said(command: Any, *words: Any, **options: Any) -> str:
        command(config, *words, **options)
        return capsys.readouterr().out

    reading = HostReading(made.config, lambda: until_ns / S)
    return Shown(
        json.loads(said(top, interval=0.1, json=True)),
        json.loads(said(history, "15m", json=True)),
        said(top, interval=0.1, once=True),
        {kind: said(history, "15m", kind=kind) for kind in ("kernel", "process", "gpu_time")},
        {page.name: unescape(page_html(page, reading, HostState("15m"))) for page in PAGES[:2]},
    )


def estimates(view: dict[str, Any]) -> dict[tuple[object, ...], list[float | None]]:
    """Give value and both ends of each kernel and process."""
    lines = [
        *((("kernel", k["pid"], k["kernel"], k["gpu"]), k) for k in view["kernels"]),
        *((("process", p["pid"]), p) for p in view["processes"]),
    ]
    return {
        (*place, name): [line[name][end] for end in ("value", "low", "high")]
        for place, line in lines
        for name in ("launches", "gpu_ms")
        if line[name] is not None
    }


def test_both_documents_have_the_same_estimates(shown: Shown) -> None:
    live, kept = estimates(shown.live), estimates(shown.kept)
    assert live.keys() == kept.keys()
    assert len(live) > 20
    for place, numbers in live.items():
        assert numbers == pytest.approx(kept[place], rel=1e-9), place
    assert shown.live.keys() - shown.kept.keys() == {"host", "note"}
    families = [{line["family"]: line for line in view["families"]} for view in
                (shown.live, shown.kept)]  # fmt: skip
    assert {name: line["gpu_ms"] for name, line in families[0].items()} == {
        name: line["gpu_ms"] and pytest.approx(line["gpu_ms"]) for name, line in families[1].items()
    }


def lines_with(text: str, *parts: str) -> list[str]:
    """Give the lines, or the rows of a table of a page, that have all of these parts."""
    lines = re.split(r"</tr>|\n", text)
    return [line for line in lines if all(part in line for part in parts)]


def test_terminal_and_browser_write_the_same_launches_and_their_interval(shown: Shown) -> None:
    called = [kernel for kernel in shown.kept["kernels"] if kernel["gpu_ms"] is None]
    assert len(called) > 3
    for kernel in called:
        of, seconds = kernel["launches"], kernel["seconds"]
        name, pid = kernel["kernel"], str(kernel["pid"])
        value, half = f"{of['value'] * seconds:,.0f}", f"{of['error'] * seconds:,.0f}"
        assert lines_with(shown.text["kernel"], name, value, half, f"[{pid}]"), name
        on_screen = [rate(of["value"])] + ([rate(of["error"])] if of["share"] < 1 else [])
        assert lines_with(shown.screen, name, pid, *on_screen), name
        number = Number(of["value"], None, of["low"], of["high"])
        said = (value_said(number, LAUNCHES), interval_said(number, LAUNCHES))
        assert lines_with(shown.pages["calls"], f">{name}<", f" {pid}<", *said), name
    for process in (process for process in shown.kept["processes"] if process["launches"]):
        of, pid = process["launches"], str(process["pid"])
        spread = [f"± {of['error']:,.0f}"] if of["share"] < 1 else []
        assert lines_with(shown.text["process"], f"[{pid}]", f" {rate(of['value'])}", *spread), pid
        on_screen = [rate(of["value"])] + ([rate(of["error"])] if of["share"] < 1 else [])
        assert lines_with(shown.screen, f" {pid} {process['name']}", *on_screen), pid
        number = Number(of["value"], None, of["low"], of["high"])
        said = (value_said(number, LAUNCHES), interval_said(number, LAUNCHES))
        assert lines_with(shown.pages["calls"], f">{process['name']} {pid}<", *said), pid


def test_terminal_and_browser_write_the_same_gpu_time_and_its_interval(shown: Shown) -> None:
    timed = [kernel for kernel in shown.kept["kernels"] if kernel["gpu_ms"] is not None]
    assert len(timed) == 3
    for kernel in timed:
        of, seconds = kernel["gpu_ms"], kernel["seconds"]
        name, gpu = kernel["kernel"], str(kernel["gpu"])
        value = quantity(of["value"] * seconds, "ms")
        half = "-" if of["error"] is None else quantity(of["error"] * seconds, "ms")
        assert lines_with(shown.text["gpu_time"], name, value, half, f" {gpu} "), name
        percent = f" {of['value'] / 10:.1f} "
        spread = "" if of["error"] is None else f" {of['error'] / 10:.1f} "
        assert lines_with(shown.screen, name, percent, spread, f" {gpu} "), name
        low, high = (of[end] and of[end] * seconds for end in ("low", "high"))
        number, unit = Number(of["value"] * seconds, None, low, high), Unit("time", 1e-3, " s", 1)
        said = (value_said(number, unit), interval_said(number, unit))
        assert lines_with(shown.pages["host"], f">{name}<", f">{gpu}<", *said), name


class OlderAgent:
    """Answers as an agent of before there was one view."""

    def poll(self) -> dict[str, Any]:
        return {"agent": {}, "values": [], "kernels": [{"kernel": "k", "gpu_ms_per_s": 1.0}]}


def test_an_agent_of_an_older_version_is_not_misread() -> None:
    feed = AgentFeed(OlderAgent())  # type: ignore[arg-type]
    feed.poll()
    assert feed.view() is None
    assert "of another version" in feed.note
