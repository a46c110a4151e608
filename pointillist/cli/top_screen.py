"""The picture of `agent top`. Names from the host are shown as text, never as markup."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.columns import Columns
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from edge_agent.local.devices_view import INSTANCE, PREFIX, PROCESS, read_use_key
from edge_agent.local.proc_view import HostView

from .amounts import amount, short_bytes
from .calls_screen import calls_line, calls_panels, calls_rows
from .diagnosis_panel import diagnosis_panel, height_of
from .parts import panel, plain_table

View = Mapping[str, Any]
_BAR: Final = 20
_WIDE: Final = 100
_GPU_COLUMNS: Final = (
    ("util %", "utilisation_percent", 1),
    ("mem GiB", "memory_used_bytes", 1 << 30),
    ("of", "memory_total_bytes", 1 << 30),
    ("W", "power_mw", 1000),
    ("limit", "power_limit_mw", 1000),
    ("°C", "temperature_celsius", 1),
    ("SM MHz", "sm_clock_mhz", 1),
    ("ECC", "ecc_volatile_uncorrected", 1),
)
_INSTANCE: Final = (
    ("memory_used_bytes", 1 << 20),
    ("memory_total_bytes", 1 << 20),
    ("sm_percent", 1),
)
_USE: Final = (("memory_bytes", 1 << 20), ("sm_percent", 1))
_CPU_KINDS: Final = ("user", "system", "iowait", "irq", "softirq", "steal")
_OWN_PANELS: Final = ("host_", "gpu.", "gpu_", "watched", "probes.")


def warm_up() -> None:
    """Draw once into nothing, so that rich has loaded its tables of character widths."""
    Console(file=io.StringIO()).print(panel("…█", Text("ö▁✓ 漢")))


def screen(host: HostView, view: View | None, note: str, size: ConsoleDimensions) -> Layout:
    """Arrange everything on a terminal of this size."""
    whole = Layout()
    calls, slow = calls_rows(view, size), diagnosis_panel(view)
    gpus = min(4 + min(8, len(_gpu_values(view))), max(4, size.height // 4))
    whole.split_column(
        Layout(_head(host, note), size=5),
        *([Layout(slow, size=min(height_of(view), size.height // 4))] if slow is not None else []),
        Layout(name="middle", ratio=3),
        Layout(_gpus(view), size=gpus),
        *([calls] if calls is not None else []),
        Layout(name="low", ratio=2),
    )
    whole["middle"].split_row(
        Layout(_processes(host, size.width), ratio=3),
        Layout(_waiting(host, size.width), ratio=2),
        Layout(_io(host, size.width), ratio=3),
    )
    whole["low"].split_row(Layout(_reports(view), ratio=3), Layout(_sources(view), ratio=2))
    return whole


def picture(host: HostView, view: View | None, note: str, width: int) -> RenderableType:
    """Everything below one another, for a pipe."""
    slow = diagnosis_panel(view)
    return Group(
        _head(host, note), *([slow] if slow is not None else []), _processes(host, _WIDE),
        _waiting(host, _WIDE), _io(host, _WIDE), _gpus(view), *calls_panels(view, width),
        _reports(view), _sources(view),
    )  # fmt: skip


def _head(host: HostView, note: str) -> RenderableType:
    percent, memory = host.cpu_percent, host.memory_bytes
    busy = sum(share for kind, share in percent.items() if kind not in {"idle", "iowait"})
    kinds = "  ".join(f"{kind} {percent.get(kind, 0):.0f}%" for kind in _CPU_KINDS)
    used = memory["total"] - memory["available"]
    share = _bar(100 * used / max(memory["total"], 1))
    text = Text()
    text.append(f"CPU {_bar(busy)} {busy:5.1f}%  ", style="bold")
    text.append(f"{kinds}\n")
    text.append(f"RAM {share} {amount(used)} of {amount(memory['total'])}  ", style="bold")
    text.append(f"cached {amount(memory['cached'])}  swap {amount(memory['swap_used'])}\n")
    text.append("CPUs " + "".join(_spark(one) for one in host.cpus_percent[:128]))
    head = panel("this host, raw: it stays here", text)
    head.subtitle, head.subtitle_align = Text(note), "left"
    return head


def _processes(host: HostView, width: int) -> RenderableType:
    """The busiest processes; a narrow terminal cuts names and leaves memory out, never a number."""
    columns = [("pid", "r"), ("process", "l"), ("CPU %", "r"), ("wait %", "r")]
    wide = width >= _WIDE
    table = plain_table(*columns, *([("RSS", "r")] if wide else []), expand=1)
    for one in host.processes:
        cells = [f"{one.cpu_percent:.1f}", f"{one.wait_percent:.1f}"]
        if wide:
            cells.append(amount(one.resident_bytes))
        table.add_row(str(one.pid), Text(one.name), *cells)
    return panel("top processes", table)


def _waiting(host: HostView, width: int) -> RenderableType:
    queue, wide = host.run_queue, width >= _WIDE
    table = plain_table(("run queue", "l"), ("", "r"), expand=0)
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
    soft = plain_table(("softirq", "l"), ("per second" if wide else "/s", "r"), expand=0)
    busiest = sorted(host.softirqs_per_s.items(), key=lambda item: -item[1])
    for name, rate in busiest[:6]:
        soft.add_row(Text(name), f"{rate:,.0f}")
    return panel("run queue and softirq", Group(table, Text(), soft))


def _io(host: HostView, width: int) -> RenderableType:
    wide = width >= _WIDE
    said = amount if wide else short_bytes
    columns = [("disk", "l"), ("read/s", "r"), ("write/s", "r"), ("busy %", "r")]
    disks = plain_table(*columns, *([("ms", "r")] if wide else []), expand=0)
    for disk in host.disks[:6]:
        cells = [said(disk.read_bytes_per_s), said(disk.write_bytes_per_s)]
        cells.append(f"{disk.busy_percent:.0f}")
        if wide:
            cells.append(f"{disk.wait_ms:.2f}")
        disks.add_row(Text(disk.name), *cells)
    links = plain_table(("network", "l"), ("in/s", "r"), ("out/s", "r"), ("drops/s", "r"), expand=0)
    for link in host.links[:6]:
        moved = (said(link.receive_bytes_per_s), said(link.transmit_bytes_per_s))
        links.add_row(Text(link.name), *moved, f"{link.drops_per_s:.0f}")
    return panel("disk and network", Group(disks, Text(), links))


def _gpu_values(view: View | None) -> dict[str, dict[str, float]]:
    return _by_key(view, PREFIX)


def _gpus(view: View | None) -> RenderableType:
    devices, models = _gpu_values(view), (view or {}).get("models", {})
    parts: list[RenderableType] = []
    if devices:
        heads = [(title, "r") for title, _, _ in _GPU_COLUMNS]
        table = plain_table(("GPU", "l"), ("model", "l"), *heads)
        for device, values in sorted(devices.items()):
            numbers = [_number(values, name, unit) for _, name, unit in _GPU_COLUMNS]
            table.add_row(Text(device[:16]), Text(str(models.get(device, ""))), *numbers)
        parts.append(table)
    else:
        parts.append(Text("no device source has a fresh value"))
    parts += _gpu_users(view)
    kernels = (view or {}).get("kernels", [])
    if kernels:
        heads = [("kernel, last 10 s", "l"), ("family", "l"), ("GPU ms/s", "r")]
        table = plain_table(*heads, ("launches/s", "r"))
        for one in kernels[:6]:
            rates = (f"{one[name]:,.1f}" for name in ("gpu_ms_per_s", "launches_per_s"))
            table.add_row(Text(one["kernel"][:60]), Text(one["family"]), *rates)
        parts.append(table)
    line = calls_line(view)
    body: RenderableType = Columns(parts)
    return panel("GPU", Group(line, body) if line is not None else body)


def _gpu_users(view: View | None) -> list[RenderableType]:
    """Show processes and MIG instances, and in words what the driver does not tell of them."""
    parts: list[RenderableType] = []
    processes, instances = _by_key(view, PROCESS), _by_key(view, INSTANCE)
    if processes:
        columns = (("on", "l"), ("pid", "r"), ("program", "l"), ("container", "l"))
        table = plain_table(*columns, ("GPU MiB", "r"), ("SM %", "r"))
        most = sorted(processes.items(), key=lambda item: -item[1].get("memory_bytes", 0))
        for key, values in most[:8]:
            if "not_shown" in values:
                continue
            unit, pid, container, program = read_use_key(key)
            named = (Text(unit[:12]), pid, Text(program), Text(container[:12]))
            table.add_row(*named, *(_number(values, *one) for one in _USE))
        parts.append(table)
    if instances:
        table = plain_table(("MIG instance", "l"), ("MiB", "r"), ("of", "r"), ("SM %", "r"))
        for key, values in sorted(instances.items())[:8]:
            table.add_row(Text(key[:16]), *(_number(values, *one) for one in _INSTANCE))
        parts.append(table)
    said = {line for lines in (view or {}).get("gpu_use_not_told", {}).values() for line in lines}
    parts += [Text(line, style="dim") for line in sorted(said)[:4]]
    return parts


def _number(values: Mapping[str, float], name: str, per_unit: int) -> str:
    return f"{values[name] / per_unit:,.0f}" if name in values else "-"


def _by_key(view: View | None, prefix: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for one in (view or {}).get("values", ()):
        if one["name"].startswith(prefix):
            found.setdefault(one["key"], {})[one["name"].removeprefix(prefix)] = one["value"]
    return found


def _reports(view: View | None) -> RenderableType:
    reports, agent = (view or {}).get("reports", []), (view or {}).get("agent", {})
    lines = Text()
    if "next_send_s" in agent:
        due = agent["next_send_s"]
        lines.append(f"published {agent['published']}, waiting {agent['queued']}")
        lines.append(f", the next leaves in {due:.1f} s" if due is not None else "")
        lines.append("\n" if agent["transport_up"] else ", the transport is away\n")
    for report in reports:
        lines.append(f"{report['series']}", style="bold")
        lines.append(f"  {report['window_s']} s, closes in {report['ends_in_s']:.0f} s, then ")
        lines.append(f"{report['bytes']:,} bytes, {report['scheme']}\n")
        for section in report["sections"]:
            cells = [f"{one['cell']} {one['value']:,}" for one in section["cells"][:3]]
            lines.append(f"  {section['name']}: {', '.join(cells) or '0'}")
            lines.append(f"  ± {section['noise']:,.0f} {section['unit']} each\n", style="dim")
    if not reports:
        lines.append("nothing is about to leave this host")
    return panel("the report about to leave, and its noise (1 sigma)", lines)


def _sources(view: View | None) -> RenderableType:
    agent = (view or {}).get("agent", {})
    lines = Text(f"running: {', '.join(agent.get('sources', [])) or 'none'}\n")
    for name, reason in agent.get("absent", []):
        lines.append(f"{name} is absent: {reason}\n", style="yellow")
    for name, reason in agent.get("failing", {}).items():
        lines.append(f"{name} fails: {reason}\n", style="red")
    for line in _largest((view or {}).get("values", ())):
        lines.append(f"{line}\n")
    for event in reversed((view or {}).get("events", [])[-5:]):
        text = f"{event['age_s']} s ago: {event['source']} {event['name']} {event['key']}"
        lines.append(f"{text.rstrip()}\n", style="dim")
    return panel("sources", lines)


def _largest(values: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of every other metric the largest key: any source that is registered has its lines."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in values:
        place = (one["source"], one["name"])
        if not one["name"].startswith(_OWN_PANELS) and one["value"]:
            old = best.get(place)
            if old is None or one["value"] > old["value"]:
                best[place] = one
    return [
        f"{source} {name} {one['value']:,.4g} {one['unit']} {one['key']}".rstrip()
        for (source, name), one in sorted(best.items())
    ]


def _bar(percent: float) -> str:
    full = round(_BAR * min(max(percent, 0.0), 100.0) / 100)
    return "█" * full + "·" * (_BAR - full)


def _spark(percent: float) -> str:
    return "▁▂▃▄▅▆▇█"[min(7, int(percent / 12.5))]
