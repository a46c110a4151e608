"""The panels of the host's page of `agent top`: names from the host are text, never markup.

Each is made for a number of columns: a narrow terminal has shorter words and fewer columns. Names
are cut where they are too long for any; a number never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edge_agent.local.gathering import INSTANCE, PREFIX, PROCESS, read_use_key
from edge_agent.local.proc_view import DiskUse, LinkUse, ProcView
from pointillist.table import Column

from .calls_screen import calls_line
from .gpu_time_screen import gpu_time_line
from .output import amount, short_bytes
from .screen_parts import fitting, grid, left_out, panel, shortened

_CPU_KINDS: Final = ("user", "system", "iowait", "irq", "softirq", "steal")
_FRAME_COLUMNS: Final = 4
_SLIM: Final = 76
_BUSIEST_SOFTIRQS: Final = 6
_MOST_DEVICES: Final = 6
_WAIT: Final = "ms"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def head(host: ProcView, note: str, width: int, folded: bool) -> Panel:
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
    text.append(first, style="bold")
    text.append(f"{fitting(parts, room - len(first))}\n")


def _cpus(percents: Sequence[float], room: int) -> str:
    per_mark = max(1, -(-len(percents) // max(1, room - len("CPUs, busiest of 64 "))))
    title = "CPUs " if per_mark == 1 else f"CPUs, busiest of {per_mark} "
    marks = (max(percents[at : at + per_mark]) for at in range(0, len(percents), per_mark))
    return title + "".join(_LEVELS[min(7, int(percent / 12.5))] for percent in marks)


def _fold(text: Text, host: ProcView, room: int) -> None:
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
    text.append("softirq/s" + fitting(said, room - len("softirq/s")))


def processes(host: ProcView, wide: bool, most: int) -> Panel:
    rows, shown = host.processes[:most], _PROCESSES if wide else _PROCESSES[:-1]
    gone = [column.head for column in _PROCESSES[len(shown) :]]
    return panel("top processes", grid(shown, rows, grows="process"), gone)


_PROCESSES: Final = (
    Column("pid", lambda process: str(process.pid), right=True),
    Column("process", attrgetter("name")),
    Column("CPU %", lambda process: f"{process.cpu_percent:.1f}", right=True),
    Column("wait %", lambda process: f"{process.wait_percent:.1f}", right=True),
    Column("RSS", lambda process: amount(process.resident_bytes), right=True),
)


def waiting(host: ProcView, wide: bool) -> Panel:
    queue = host.run_queue
    loads = [f"{queue[name]:.2f}" for name in ("load_1m", "load_5m", "load_15m") if name in queue]
    now = f"{queue['running']:.0f}, {queue['blocked']:.0f}"
    rows = [
        ("running, blocked" if wide else "run, block", now),
        ("load", " ".join(loads[: 3 if wide else 1])),
        ("pressure", ("% of 10 s" if wide else "%") if host.pressure else "not kept"),
    ]
    for name, share in host.pressure.items():
        said = name.replace("_", " ")
        row = (said, f"{share:.1f}") if wide else (said.replace("memory", "mem"), f"{share:.0f}")
        rows.append(row)
    busiest = sorted(host.softirqs_per_s.items(), key=lambda item: -item[1])[:_BUSIEST_SOFTIRQS]
    soft = [(name, f"{rate:,.0f}") for name, rate in busiest]
    queues = grid(_pair("run queue", ""), rows)
    softirqs = grid(_pair("softirq", "per second" if wide else "/s"), soft)
    # Short, so that the panel is not made wider by its own name.
    title = "run queue and softirq" if wide else "run queue"
    return panel(title, Group(queues, Text(), softirqs))


def _pair(name: str, value: str) -> tuple[Column, Column]:
    return Column(name, itemgetter(0)), Column(value, itemgetter(1), right=True)


def disks_and_links(host: ProcView, wide: bool) -> Panel:
    body = Group(_disks(host, wide), Text(), _links(host, wide))
    return panel("disk and network", body, () if wide else (_WAIT,))


def disks_beside_links(host: ProcView) -> Panel:
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(ratio=1)
    row.add_column(ratio=1)
    row.add_row(_disks(host, wide=False, slim=True), _links(host, wide=False, slim=True))
    return panel("disk and network", row, (_WAIT,))


def _disks(host: ProcView, wide: bool, slim: bool = False) -> Table:
    said = amount if wide else short_bytes
    columns = [
        Column("disk", attrgetter("name")),
        Column("read/s", lambda disk: said(disk.read_bytes_per_s), right=True),
        Column("write/s", lambda disk: said(disk.write_bytes_per_s), right=True),
        Column("busy" if slim else "busy %", lambda disk: f"{disk.busy_percent:.0f}", right=True),
    ]
    if wide:
        columns.append(Column(_WAIT, lambda disk: f"{disk.wait_ms:.2f}", right=True))
    return grid(columns, sorted(host.disks, key=_disk_bytes)[:_MOST_DEVICES], grows="disk")


def _links(host: ProcView, wide: bool, slim: bool = False) -> Table:
    said, name = amount if wide else short_bytes, "net" if slim else "network"
    columns = (
        Column(name, attrgetter("name")),
        Column("in/s", lambda link: said(link.receive_bytes_per_s), right=True),
        Column("out/s", lambda link: said(link.transmit_bytes_per_s), right=True),
        Column("drop" if slim else "drops/s", lambda link: f"{link.drops_per_s:.0f}", right=True),
    )
    return grid(columns, sorted(host.links, key=_link_bytes)[:_MOST_DEVICES], grows=name)


def _disk_bytes(disk: DiskUse) -> float:
    return -(disk.read_bytes_per_s + disk.write_bytes_per_s)


def _link_bytes(link: LinkUse) -> float:
    return -(link.receive_bytes_per_s + link.transmit_bytes_per_s)


def bar(percent: float, cells: int) -> str:
    full = round(cells * min(max(percent, 0.0), 100.0) / 100)
    return "█" * full + "·" * (cells - full)


View = Mapping[str, Any]
MOST_SHOWN: Final = 3
_COLOURS: Final = {"spike": "red", "over": "dim"}


def findings_of(view: View | None) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (view or {}).get("findings", [])
    return found[:MOST_SHOWN]


def diagnosis_panel(view: View | None) -> RenderableType | None:
    found = findings_of(view)
    if not found:
        return None
    lines = Text(no_wrap=True, overflow="ellipsis")
    for finding in found:
        lines.append(f"{finding['subject']}  ", style="bold")
        lines.append(_head(finding), style=_COLOURS.get(finding["state"], ""))
        lines.append("\n")
        if finding["cause"]:
            by = f", by {finding['who']}" if finding.get("who") else ""
            lines.append(f"    {finding['about']}{by}; {finding['steps']}\n")
        for evidence in finding["evidence"][: 2 if len(found) > 1 else 3]:
            lines.append(f"    {evidence}\n", style="dim")
        if len(found) == 1 and finding.get("advice"):
            lines.append(f"    next: {finding['advice']}\n")
    lines.rstrip()
    return panel("why was it slow", lines)


def height_of(view: View | None) -> int:
    found = findings_of(view)
    most = 2 if len(found) > 1 else 3
    lines = (1 + bool(finding["cause"]) + len(finding["evidence"][:most]) for finding in found)
    advised = len(found) == 1 and bool(found[0].get("advice"))
    return sum(lines) + advised + 2 if found else 0


def _head(finding: Mapping[str, Any]) -> str:
    if not finding["cause"]:
        return (
            f"{finding['age_s']} s ago: {finding['said']}"
            if finding["state"] == "over"
            else finding["said"]
        )
    age = f"{finding['age_s']} s"
    since = f"over, began {age} ago" if finding["state"] == "over" else f"slow for {age}"
    incident = ", incident" if finding.get("incident") else ""
    sure = f"{100 * finding['confidence']:.0f} %{incident}"
    return f"{since}: {finding['cause']}, {sure}"


_WIDE: Final = 100
_Values = tuple[str, Mapping[str, float]]
"""What the values are of, and the values by name."""


def _number(head: str, name: str, per_unit: int, from_width: int = 0) -> Column:
    def write(row: _Values) -> str:
        return f"{row[1][name] / per_unit:,.0f}" if name in row[1] else "-"

    return Column(head, write, right=True, from_width=from_width)


_GPU: Final = (
    _number("util %", "utilisation_percent", 1),
    _number("mem GiB", "memory_used_bytes", 1 << 30),
    _number("of", "memory_total_bytes", 1 << 30),
    _number("W", "power_mw", 1000),
    _number("limit", "power_limit_mw", 1000, _WIDE),
    _number("°C", "temperature_celsius", 1),
    _number("SM MHz", "sm_clock_mhz", 1, _WIDE),
    _number("ECC", "ecc_volatile_uncorrected", 1),
)
_KERNELS: Final = (
    Column("kernel, last 10 s", lambda kernel: shortened(kernel["kernel"], 60)),
    Column("family", itemgetter("family")),
    Column("GPU ms/s", lambda kernel: f"{max(kernel['gpu_ms']['value'], 0.0):,.1f}"
           if kernel["gpu_ms"] else "-", right=True),
    Column("launches/s", lambda kernel: f"{kernel['launches']['value']:,.1f}", right=True),
)  # fmt: skip
_USERS: Final = (
    Column("on", lambda user: shortened(read_use_key(user[0])[0], 12)),
    Column("pid", lambda user: read_use_key(user[0])[1], right=True),
    Column("program", lambda user: read_use_key(user[0])[3]),
    Column("container", lambda user: shortened(read_use_key(user[0])[2], 13)),
    _number("GPU MiB", "memory_bytes", 1 << 20),
    _number("SM %", "sm_percent", 1),
)
_INSTANCES: Final = (
    Column("MIG instance", lambda instance: shortened(instance[0], 16)),
    _number("MiB", "memory_used_bytes", 1 << 20),
    _number("of", "memory_total_bytes", 1 << 20),
    _number("SM %", "sm_percent", 1),
)


def gpu_panel(view: View | None, width: int) -> RenderableType | None:
    devices, models = _by_key(view, PREFIX), (view or {}).get("models", {})
    parts: list[RenderableType] = []
    gone: list[str] = []
    if devices:
        names = (
            Column("GPU", lambda device: shortened(device[0], 16)),
            Column("model", lambda device: str(models.get(device[0], "")), from_width=_SLIM),
        )
        columns = (*names, *_GPU)
        parts.append(grid(columns, sorted(devices.items()), width=width))
        gone = left_out(columns, width)
    narrow = width < _WIDE
    parts += _gpu_users(view, narrow)
    kernels = (view or {}).get("kernels", [])
    if kernels:
        parts.append(grid(_KERNELS, kernels[:6], grows=_KERNELS[0].head if narrow else None))
    lines = [line for line in (gpu_time_line(view), calls_line(view)) if line is not None]
    if not lines and not parts:
        return None
    return panel("GPU", Group(*lines, Columns(parts)), gone)


def _gpu_users(view: View | None, narrow: bool) -> list[RenderableType]:
    parts: list[RenderableType] = []
    processes, instances = _by_key(view, PROCESS), _by_key(view, INSTANCE)
    if processes:
        most = sorted(processes.items(), key=lambda item: -item[1].get("memory_bytes", 0))
        users = [process for process in most[:8] if "not_shown" not in process[1]]
        parts.append(grid(_USERS, users, grows="program" if narrow else None))
    if instances:
        parts.append(grid(_INSTANCES, sorted(instances.items())[:8]))
    said = {line for lines in (view or {}).get("gpu_use_not_told", {}).values() for line in lines}
    parts += [Text(line, style="dim") for line in sorted(said)[:4]]
    return parts


def _by_key(view: View | None, prefix: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for value in (view or {}).get("levels", ()):
        if value["name"].startswith(prefix):
            found.setdefault(value["key"], {})[value["name"].removeprefix(prefix)] = value["last"]
    return found
