"""The picture of `agent top`. Names from the host are shown as text, never as markup."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from edge_agent.local.proc_view import ProcView
from edge_agent.local.words import quantity, read_as

from .calls_screen import calls_panels, calls_rows
from .gpu_time_screen import gpu_time_panels
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
    """Arrange everything on a terminal of this size; what is empty takes no panel of its own."""
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
    """Processes, run queue and devices: side by side as the columns allow, names uncut."""
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
    """The next report beside the sources, or the sources alone; as high as what they say."""
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
    """How many rows it takes at this width."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    return len(console.render_lines(what, pad=False))


def _natural(what: RenderableType) -> int:
    """How many columns it takes where nothing is cut."""
    console = Console(file=io.StringIO(), width=_NATURAL_AT, color_system=None)
    return console.measure(what).maximum


def picture(host: ProcView, view: View | None, note: str, width: int) -> RenderableType:
    """Everything below one another, for a pipe."""
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
    """The next report; None where there is none and no agent that would send it."""
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
    """What runs and what it sees; also, in a line each, the panels that would be empty."""
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
