"""`pointillist agent top`: this host, live. What it shows is raw and never leaves the host.

Names from the host are shown as text, never as markup.
"""

from __future__ import annotations

import io
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.text import Text

from edge_agent.local.proc_view import HostSampler, ProcView
from edge_agent.local.view_lines import HostView, document
from edge_agent.local.words import quantity, read_as
from edge_agent.service.top_feed import Feed, open_feed

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .calls_screen import calls_page, calls_panels, calls_rows
from .gpu_time_screen import gpu_time_page, gpu_time_panels
from .host_panels import (
    diagnosis_panel,
    disks_and_links,
    disks_beside_links,
    gpu_panel,
    head,
    height_of,
    processes,
    waiting,
)
from .output import JsonFlag, emit, examples
from .screen_parts import panel, value_lines

View = Mapping[str, Any]
_SLIM: Final = 76
"""Columns below which processes and devices are one above the other."""
_WIDE: Final = 100
"""Columns from which run queue and softirqs have a panel; before, they are lines of the first."""
_VERY_WIDE: Final = 130
"""Columns from which every panel has all of its columns and its long words."""
_ROWS_FOR_TWO: Final = 9
"""Rows from which two panels are put one above the other; fewer are for the first alone."""
_WITH_MEMORY: Final = 52
"""Columns of the processes from which memory is shown: a name has 18 beside it."""
_DEVICES_COLUMNS: Final = (35, 50)
_QUEUE_COLUMNS: Final = (21, 37)
"""Least columns of these panels, narrow and wide: frames stand still while numbers change."""
_FRAME_ROWS: Final = 3
_LEAST_ROWS: Final = 3
_HOST_SHARE: Final = 0.3
"""Of the rows, what processes and devices keep where there is much to report."""
_NATURAL_AT: Final = 240
_IN_A_PIPE: Final = 12
_NO_REPORT: Final = "nothing is about to leave this host"


def warm_up() -> None:
    """Draw once into nothing, so that rich has loaded its tables of character widths."""
    Console(file=io.StringIO()).print(panel("…█", Text("ö▁✓ 漢")))


def screen(host: ProcView, view: View | None, note: str, size: ConsoleDimensions) -> Layout:
    width, height = size
    top = head(host, note, width, folded=width < _WIDE)
    slow, calls, gpus = diagnosis_panel(view), calls_rows(view, size), gpu_panel(view, width)
    above = [Layout(top, size=_rows(top, width))]
    if slow is not None:
        above.append(Layout(slow, size=min(height_of(view), height // 4)))
    below = []
    if gpus is not None:
        room = max(_LEAST_ROWS, height // 4)
        below.append(Layout(gpus, size=min(_rows(gpus, width), room)))
    left = height - sum(part.size or 0 for part in (*above, *below))
    room = max(_LEAST_ROWS, left - int(_HOST_SHARE * height))
    low = _low(view, width, room, gpus is None)
    middle = _middle(host, width, max(_LEAST_ROWS, left - (low.size or 0)))
    whole = Layout()
    whole.split_column(*above, middle, *below, *([calls] if calls is not None else []), low)
    return whole


def _middle(host: ProcView, width: int, rows: int) -> Layout:
    middle = Layout(ratio=3)
    if width < _SLIM and rows < _ROWS_FOR_TWO:
        return Layout(processes(host, wide=False, most=max(1, rows - _FRAME_ROWS)), ratio=3)
    if width < _SLIM:
        devices = disks_beside_links(host)
        low = min(_rows(devices, width), rows // 2)
        shown = processes(host, wide=False, most=max(1, rows - low - _FRAME_ROWS))
        middle.split_column(Layout(shown), Layout(devices, size=low))
        return middle
    wide = width >= _VERY_WIDE
    devices = disks_and_links(host, wide)
    columns = min(max(_natural(devices), _DEVICES_COLUMNS[wide]), width // 2)
    parts = [Layout(devices, size=columns)]
    if width >= _WIDE:
        queue = waiting(host, wide)
        parts.insert(0, Layout(queue, size=max(_natural(queue), _QUEUE_COLUMNS[wide])))
    room = width - sum(part.size or 0 for part in parts)
    shown = processes(host, wide=room >= _WITH_MEMORY, most=max(1, rows - _FRAME_ROWS))
    middle.split_row(Layout(shown), *parts)
    return middle


def _low(view: View | None, width: int, most: int, no_gpu: bool) -> Layout:
    reports = _reports(view)
    sources = _sources(view, reports is None, no_gpu)
    if reports is None:
        return Layout(sources, size=min(most, _rows(sources, width)))
    if width >= _SLIM:
        left = 3 * width // 5
        needed = max(_rows(reports, left), _rows(sources, width - left))
        low = Layout(size=min(most, needed))
        low.split_row(Layout(reports, size=left), Layout(sources))
        return low
    rows = _rows(reports, width), _rows(sources, width)
    if most < min(sum(rows), _ROWS_FOR_TWO):
        return Layout(reports, size=min(most, rows[0]))
    low = Layout(size=min(most, sum(rows)))
    low.split_column(Layout(reports, ratio=rows[0]), Layout(sources, ratio=rows[1]))
    return low


def _rows(what: RenderableType, width: int) -> int:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    return len(console.render_lines(what, pad=False))


def _natural(what: RenderableType) -> int:
    """How many columns it takes where nothing is cut."""
    console = Console(file=io.StringIO(), width=_NATURAL_AT, color_system=None)
    return console.measure(what).maximum


def picture(host: ProcView, view: View | None, note: str, width: int) -> RenderableType:
    wide = width >= _SLIM
    slow, gpus, reports = diagnosis_panel(view), gpu_panel(view, width), _reports(view)
    parts: list[RenderableType | None] = [
        head(host, note, width, folded=False), slow, processes(host, wide, _IN_A_PIPE),
        waiting(host, wide), disks_and_links(host, wide), gpus, *gpu_time_panels(view, width),
        *calls_panels(view, width),
        reports, _sources(view, reports is None, gpus is None),
    ]  # fmt: skip
    return Group(*(part for part in parts if part is not None))


def _reports(view: View | None) -> RenderableType | None:
    reports, agent = (view or {}).get("reports", []), (view or {}).get("agent", {})
    if not reports and "next_send_s" not in agent:
        return None
    lines = Text()
    if "next_send_s" in agent:
        due = agent["next_send_s"]
        lines.append(f"published {agent['published']}, waiting {agent['queued']}")
        lines.append(f", the next leaves in {due:.1f} s" if due is not None else "")
        lines.append("\n" if agent["transport_up"] else ", the transport is away\n")
        if refused := agent.get("refused"):
            counts = ", ".join(f"{reason} {times:,}" for reason, times in refused.items())
            lines.append(f"not sent so far, by reason: {counts}\n")
    for report in reports:
        lines.append(f"{report['series']}", style="bold")
        lines.append(f"  {report['window_s']} s, closes in {report['ends_in_s']:.0f} s, then ")
        lines.append(f"{report['bytes']:,} bytes, {report['scheme']}\n")
        for section in report["sections"]:
            by, unit = read_as(section["unit"])
            cells = [
                f"{cell['cell']} {quantity(cell['value'] / by, unit)}"
                for cell in section["cells"][:3]
            ]
            lines.append(f"  {section['name']}: {', '.join(cells) or '0'}")
            lines.append(f"  ± {quantity(section['noise'] / by, unit)} each\n", style="dim")
    if not reports:
        lines.append(_NO_REPORT)
    lines.rstrip()
    return panel("the report about to leave, ± 1 sigma", lines)


def _sources(view: View | None, no_report: bool, no_gpu: bool) -> RenderableType:
    agent = (view or {}).get("agent", {})
    lines = Text(f"running: {', '.join(agent.get('sources', [])) or 'none'}\n")
    lines.append("GPU: no device source has a fresh value\n" if no_gpu else "")
    lines.append(f"{_NO_REPORT}\n" if no_report else "")
    for name, reason in agent.get("absent", []):
        lines.append(f"{name} is absent: {reason}\n", style="yellow")
    for name, reason in agent.get("failing", {}).items():
        lines.append(f"{name} fails: {reason}\n", style="red")
    for line in value_lines((view or {}).get("levels", ())):
        lines.append(f"{line}\n")
    for event in reversed((view or {}).get("events", [])[-5:]):
        text = f"{event['age_s']} s ago: {event['source']} {event['name']} {event['key']}"
        lines.append(f"{text.rstrip()}\n", style="dim")
    lines.rstrip()
    return panel("sources", lines)


_EPILOG: Final = examples("""
pointillist agent top   q or Ctrl-C ends it, t shows GPU time, g GPU calls, h the host
pointillist agent top --gpu-time   begin with GPU time
pointillist agent top --once   one picture, also without a terminal
pointillist agent top --json | jq .processes""")

_FIRST_S: Final = 0.5
_MOST_PROCESSES: Final = 60
"""On a screen, which shows as many as it has rows for."""
_ANSWER_S: Final = 3.0
_POLL_S: Final = 0.1
_END_KEYS: Final = frozenset({b"q", b"Q", b"\x1b", b""})
_NEXT_PAGE: Final = b"\t"
_Pressed = Callable[[float, Callable[[], None]], bytes | None]


class TopPage(StrEnum):
    HOST = "host"
    TIME = "time"
    CALLS = "calls"


_KEYS: Final = {b"h": TopPage.HOST, b"g": TopPage.CALLS, b"t": TopPage.TIME}

app = typer.Typer()


@app.command(epilog=_EPILOG)
def top(
    config: AgentConfigOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between pictures.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    gpu_time: Annotated[
        bool, typer.Option("--gpu-time", help="Begin with the page of GPU time.")
    ] = False,
    gpu_calls: Annotated[
        bool, typer.Option("--gpu-calls", help="Begin with the page of GPU calls.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show this host live: what is slow and why, CPU, processes, disk, network, GPUs, next report.

    Key t: GPU time by GPU, program and kernel, and what of it is not measured. Key g: GPU calls by
    kernel and process, copies, collectives, and what the probes cost.

    Beside a running agent it shows what that agent measures and is about to report, with the
    noise that the report will carry. Without one it runs the configured sources itself.
    """
    warm_up()  # while this process can still reach all of its libraries
    loaded = None  # without a file it looks at /proc alone
    if config is not None or DEFAULT_CONFIG.exists():
        loaded = agent_file.load_file(config or DEFAULT_CONFIG)
        agent_file.become_agent(loaded)
    with open_feed(loaded) as feed:
        on_screen = not (once or json) and sys.stdout.isatty()
        sampler = HostSampler(processes=_MOST_PROCESSES) if on_screen else HostSampler()
        if on_screen:
            page = TopPage.TIME if gpu_time else TopPage.CALLS if gpu_calls else TopPage.HOST
            _live(sampler, feed, interval, page)
            return
        time.sleep(min(interval, _FIRST_S))
        feed.wait(_ANSWER_S)
        host, view = sampler.view(), feed.view()
        if json:
            emit({**(view or document(HostView())), "host": host, "note": feed.note}, True)
        else:
            console = Console()
            console.print(picture(host, view, feed.note, console.width))


def _live(sampler: HostSampler, feed: Feed, interval: float, page: TopPage) -> None:
    console = Console()
    with _keys() as pressed:
        key = pressed(min(interval, _FIRST_S), feed.poll)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            host = sampler.view()
            while key not in _END_KEYS:
                page = _page(key, page)
                if key is None:  # a key changes the page; a picture of nothing would be its rates
                    host = sampler.view()
                match page:
                    case TopPage.HOST:
                        picture = screen(host, feed.view(), feed.note, console.size)
                    case TopPage.CALLS:
                        picture = calls_page(feed.view(), feed.note, console.size)
                    case TopPage.TIME:
                        picture = gpu_time_page(feed.view(), feed.note, console.size)
                live.update(picture, refresh=True)
                key = pressed(interval, feed.poll)


def _page(key: bytes | None, page: TopPage) -> TopPage:
    if key == _NEXT_PAGE:
        pages = list(TopPage)
        return pages[(pages.index(page) + 1) % len(pages)]
    return page if key is None else _KEYS.get(key.lower(), page)


@contextmanager
def _keys() -> Iterator[_Pressed]:
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None

    def pressed(seconds: float, poll: Callable[[], None]) -> bytes | None:
        """Wait for the next picture; give the key that ends the wait, None when the time did."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            poll()
            waits = [descriptor] if descriptor is not None else []
            ready, _, _ = select.select(waits, [], [], min(left, _POLL_S))
            if ready:
                return os.read(ready[0], 64)
        return None

    if descriptor is None:
        yield pressed
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
