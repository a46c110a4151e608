"""The host's own panels of `agent top`: names from the host are text, never markup.

Each is made for a number of columns: a narrow terminal has shorter words and fewer columns. Names
are cut where they are too long for any; a number never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edge_agent.local.proc_view import DiskUse, LinkUse, ProcView

from .amounts import amount, short_bytes
from .parts import panel, plain_table

_CPU_KINDS: Final = ("user", "system", "iowait", "irq", "softirq", "steal")
_FRAME_COLUMNS: Final = 4
_SLIM: Final = 76
_BUSIEST_SOFTIRQS: Final = 6
_MOST_DEVICES: Final = 6
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def head(host: ProcView, note: str, width: int, folded: bool) -> Panel:
    """CPU, memory and each CPU; `folded` adds run queue, pressure and softirqs as lines."""
    room = width - _FRAME_COLUMNS
    percent, memory = host.cpu_percent, host.memory_bytes
    busy = sum(share for kind, share in percent.items() if kind not in {"idle", "iowait"})
    cells = 20 if width >= _SLIM else 8
    used = memory["total"] - memory["available"]
    kinds = [f"{kind} {percent.get(kind, 0):.0f}%" for kind in _CPU_KINDS]
    kept = [f"cached {amount(memory['cached'])}", f"swap {amount(memory['swap_used'])}"]
    text = Text(no_wrap=True, overflow="ellipsis")
    _line(text, f"CPU {bar(busy, cells)} {busy:5.1f}%", kinds, room)
    share = bar(100 * used / max(memory["total"], 1), cells)
    _line(text, f"RAM {share} {amount(used)} of {amount(memory['total'])}", kept, room)
    text.append(_cpus(host.cpus_percent, room))
    if folded:
        text.append("\n")
        _fold(text, host, room)
    fits = len(note) <= room - 2
    body: RenderableType = text if fits or not note else Group(text, Text(note, style="dim"))
    made = panel("this host, raw: it stays here", body)
    if fits:
        made.subtitle, made.subtitle_align = Text(note), "left"
    return made


def _line(text: Text, first: str, parts: Iterable[str], room: int) -> None:
    """Append a line: its beginning, and as many of the parts as there is room for."""
    text.append(first, style="bold")
    text.append(f"{_fitting(parts, room - len(first))}\n")


def _fitting(parts: Iterable[str], room: int) -> str:
    """Join parts that fit, each after two spaces."""
    said = ""
    for part in parts:
        if len(said) + 2 + len(part) > room:
            break
        said += f"  {part}"
    return said


def _cpus(percents: Sequence[float], room: int) -> str:
    """A mark for each CPU; of more CPUs than room one for so many, of the busiest of them."""
    per_mark = max(1, -(-len(percents) // max(1, room - len("CPUs, busiest of 64 "))))
    title = "CPUs " if per_mark == 1 else f"CPUs, busiest of {per_mark} "
    marks = (max(percents[at : at + per_mark]) for at in range(0, len(percents), per_mark))
    return title + "".join(_LEVELS[min(7, int(one / 12.5))] for one in marks)


def _fold(text: Text, host: ProcView, room: int) -> None:
    """Say the run queue, the pressure and the softirqs in two lines."""
    queue = host.run_queue
    first = f"run, block {queue['running']:.0f}, {queue['blocked']:.0f}"
    parts = [f"load {queue['load_1m']:.2f}"] if "load_1m" in queue else []
    # A resource that stops everything also stops some: the second adds little to a short line.
    pressure = [
        f"{name.replace('_', ' ').replace('memory', 'mem')} {share:.0f}%"
        for name, share in host.pressure.items()
        if name.endswith("some")
    ]
    _line(text, first, [*parts, *pressure], room)
    busiest = sorted(host.softirqs_per_s.items(), key=lambda item: -item[1])
    said = [f"{name} {rate:,.0f}" for name, rate in busiest[:_BUSIEST_SOFTIRQS]]
    text.append("softirq/s" + _fitting(said, room - len("softirq/s")))


def processes(host: ProcView, wide: bool, most: int) -> Panel:
    """The busiest processes; where there is little room without their memory."""
    columns = [("pid", "r"), ("process", "l"), ("CPU %", "r"), ("wait %", "r")]
    table = plain_table(*columns, *([("RSS", "r")] if wide else []), expand=1)
    for one in host.processes[:most]:
        cells = [f"{one.cpu_percent:.1f}", f"{one.wait_percent:.1f}"]
        if wide:
            cells.append(amount(one.resident_bytes))
        table.add_row(str(one.pid), Text(one.name), *cells)
    return panel("top processes", table)


def waiting(host: ProcView, wide: bool) -> Panel:
    """Run queue, pressure and softirqs."""
    queue = host.run_queue
    table = plain_table(("run queue", "l"), ("", "r"))
    now = f"{queue['running']:.0f}, {queue['blocked']:.0f}"
    table.add_row("running, blocked" if wide else "run, block", now)
    loads = [f"{queue[name]:.2f}" for name in ("load_1m", "load_5m", "load_15m") if name in queue]
    table.add_row("load", " ".join(loads[: 3 if wide else 1]))
    percent = "% of 10 s" if wide else "%"
    table.add_row("pressure", percent if host.pressure else "not kept")
    for name, share in host.pressure.items():
        said = name.replace("_", " ")
        row = (said, f"{share:.1f}") if wide else (said.replace("memory", "mem"), f"{share:.0f}")
        table.add_row(*row)
    soft = plain_table(("softirq", "l"), ("per second" if wide else "/s", "r"))
    busiest = sorted(host.softirqs_per_s.items(), key=lambda item: -item[1])
    for name, rate in busiest[:_BUSIEST_SOFTIRQS]:
        soft.add_row(Text(name), f"{rate:,.0f}")
    # Short, so that the panel is not made wider by its own name.
    return panel("run queue and softirq" if wide else "run queue", Group(table, Text(), soft))


def disks_and_links(host: ProcView, wide: bool) -> Panel:
    """Disks above network interfaces, the busiest first."""
    return panel("disk and network", Group(_disks(host, wide), Text(), _links(host, wide)))


def disks_beside_links(host: ProcView) -> Panel:
    """The same side by side, for few rows and columns: without what is least asked for."""
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(ratio=1)
    row.add_column(ratio=1)
    row.add_row(_disks(host, wide=False, slim=True), _links(host, wide=False, slim=True))
    return panel("disk and network", row)


def _disks(host: ProcView, wide: bool, slim: bool = False) -> Table:
    said = amount if wide else short_bytes
    columns = [
        ("disk", "l"),
        ("read/s", "r"),
        ("write/s", "r"),
        ("busy" if slim else "busy %", "r"),
    ]
    table = plain_table(*columns, *([("ms", "r")] if wide else []), expand=0)
    for disk in sorted(host.disks, key=_disk_bytes)[:_MOST_DEVICES]:
        cells = [said(disk.read_bytes_per_s), said(disk.write_bytes_per_s)]
        cells.append(f"{disk.busy_percent:.0f}")
        if wide:
            cells.append(f"{disk.wait_ms:.2f}")
        table.add_row(Text(disk.name), *cells)
    return table


def _links(host: ProcView, wide: bool, slim: bool = False) -> Table:
    said = amount if wide else short_bytes
    names = ("net", "drop") if slim else ("network", "drops/s")
    columns = ((names[0], "l"), ("in/s", "r"), ("out/s", "r"), (names[1], "r"))
    table = plain_table(*columns, expand=0)
    for link in sorted(host.links, key=_link_bytes)[:_MOST_DEVICES]:
        moved = (said(link.receive_bytes_per_s), said(link.transmit_bytes_per_s))
        table.add_row(Text(link.name), *moved, f"{link.drops_per_s:.0f}")
    return table


def _disk_bytes(disk: DiskUse) -> float:
    return -(disk.read_bytes_per_s + disk.write_bytes_per_s)


def _link_bytes(link: LinkUse) -> float:
    return -(link.receive_bytes_per_s + link.transmit_bytes_per_s)


def bar(percent: float, cells: int) -> str:
    """Draw a share."""
    full = round(cells * min(max(percent, 0.0), 100.0) / 100)
    return "█" * full + "·" * (cells - full)
