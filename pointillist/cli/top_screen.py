"""The picture of `agent top`. Names from the host are shown as text, never as markup."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.columns import Columns
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edge_agent.local.devices_view import INSTANCE, PREFIX, PROCESS, read_use_key
from edge_agent.local.proc_view import HostView

View = Mapping[str, Any]
_BAR: Final = 20
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
_OWN_PANELS: Final = ("host_", "gpu.", "gpu_", "watched")


def warm_up() -> None:
    """Draw once into nothing, so that rich has loaded its tables of character widths."""
    Console(file=io.StringIO()).print(_panel("…█", Text("ö▁✓ 漢")))


def screen(host: HostView, view: View | None, note: str, size: ConsoleDimensions) -> Layout:
    """Arrange everything on a terminal of this size."""
    whole = Layout()
    gpus = min(4 + min(8, len(_gpu_values(view))), max(4, size.height // 4))
    whole.split_column(
        Layout(_head(host, note), size=5),
        Layout(name="middle", ratio=3),
        Layout(_gpus(view), size=gpus),
        Layout(name="low", ratio=2),
    )
    whole["middle"].split_row(
        Layout(_processes(host), ratio=2),
        Layout(_waiting(host), ratio=2),
        Layout(_io(host), ratio=3),
    )
    whole["low"].split_row(Layout(_reports(view), ratio=3), Layout(_sources(view), ratio=2))
    return whole


def picture(host: HostView, view: View | None, note: str) -> RenderableType:
    """Everything below one another, for a pipe."""
    return Group(
        _head(host, note), _processes(host), _waiting(host), _io(host), _gpus(view),
        _reports(view), _sources(view),
    )  # fmt: skip


def _panel(title: str, body: RenderableType) -> Panel:
    return Panel(body, title=title, title_align="left", padding=(0, 1))


def _head(host: HostView, note: str) -> RenderableType:
    percent, memory = host.cpu_percent, host.memory_bytes
    busy = sum(share for kind, share in percent.items() if kind not in {"idle", "iowait"})
    kinds = "  ".join(f"{kind} {percent.get(kind, 0):.0f}%" for kind in _CPU_KINDS)
    used = memory["total"] - memory["available"]
    share = _bar(100 * used / max(memory["total"], 1))
    text = Text()
    text.append(f"CPU {_bar(busy)} {busy:5.1f}%  ", style="bold")
    text.append(f"{kinds}\n")
    text.append(f"RAM {share} {_bytes(used)} of {_bytes(memory['total'])}  ", style="bold")
    text.append(f"cached {_bytes(memory['cached'])}  swap {_bytes(memory['swap_used'])}\n")
    text.append("CPUs " + "".join(_spark(one) for one in host.cpus_percent[:128]))
    panel = _panel("this host, raw: it stays here", text)
    panel.subtitle, panel.subtitle_align = Text(note), "left"
    return panel


def _processes(host: HostView) -> RenderableType:
    table = _table(("pid", "r"), ("process", "l"), ("CPU %", "r"), ("wait %", "r"), ("RSS", "r"))
    for one in host.processes:
        shares = (f"{one.cpu_percent:.1f}", f"{one.wait_percent:.1f}")
        table.add_row(str(one.pid), Text(one.name), *shares, _bytes(one.resident_bytes))
    return _panel("top processes", table)


def _waiting(host: HostView) -> RenderableType:
    queue = host.run_queue
    table = _table(("run queue", "l"), ("", "r"))
    table.add_row("running, blocked", f"{queue['running']:.0f}, {queue['blocked']:.0f}")
    loads = [f"{queue[name]:.2f}" for name in ("load_1m", "load_5m", "load_15m") if name in queue]
    table.add_row("load", " ".join(loads))
    for name, share in host.pressure.items():
        table.add_row(f"pressure {name.replace('_', ' ')}", f"{share:.1f} %")
    if not host.pressure:
        table.add_row("pressure", "not kept by this kernel")
    soft = _table(("softirq", "l"), ("per second", "r"))
    busiest = sorted(host.softirqs_per_s.items(), key=lambda item: -item[1])
    for name, rate in busiest[:6]:
        soft.add_row(Text(name), f"{rate:,.0f}")
    return _panel("run queue and softirq", Group(table, Text(), soft))


def _io(host: HostView) -> RenderableType:
    disks = _table(("disk", "l"), ("read/s", "r"), ("write/s", "r"), ("busy %", "r"), ("ms", "r"))
    for disk in host.disks[:6]:
        moved = (_bytes(disk.read_bytes_per_s), _bytes(disk.write_bytes_per_s))
        disks.add_row(Text(disk.name), *moved, f"{disk.busy_percent:.0f}", f"{disk.wait_ms:.2f}")
    links = _table(("network", "l"), ("in/s", "r"), ("out/s", "r"), ("drops/s", "r"))
    for link in host.links[:6]:
        moved = (_bytes(link.receive_bytes_per_s), _bytes(link.transmit_bytes_per_s))
        links.add_row(Text(link.name), *moved, f"{link.drops_per_s:.0f}")
    return _panel("disk and network", Group(disks, Text(), links))


def _gpu_values(view: View | None) -> dict[str, dict[str, float]]:
    return _by_key(view, PREFIX)


def _gpus(view: View | None) -> RenderableType:
    devices, models = _gpu_values(view), (view or {}).get("models", {})
    parts: list[RenderableType] = []
    if devices:
        heads = [(title, "r") for title, _, _ in _GPU_COLUMNS]
        table = _table(("GPU", "l"), ("model", "l"), *heads)
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
        table = _table(*heads, ("launches/s", "r"))
        for one in kernels[:6]:
            rates = (f"{one[name]:,.1f}" for name in ("gpu_ms_per_s", "launches_per_s"))
            table.add_row(Text(one["kernel"][:60]), Text(one["family"]), *rates)
        parts.append(table)
    return _panel("GPU", Columns(parts))


def _gpu_users(view: View | None) -> list[RenderableType]:
    """Show processes and MIG instances, and in words what the driver does not tell of them."""
    parts: list[RenderableType] = []
    processes, instances = _by_key(view, PROCESS), _by_key(view, INSTANCE)
    if processes:
        columns = (("on", "l"), ("pid", "r"), ("program", "l"), ("container", "l"))
        table = _table(*columns, ("GPU MiB", "r"), ("SM %", "r"))
        most = sorted(processes.items(), key=lambda item: -item[1].get("memory_bytes", 0))
        for key, values in most[:8]:
            if "not_shown" in values:
                continue
            unit, pid, container, program = read_use_key(key)
            named = (Text(unit[:12]), pid, Text(program), Text(container[:12]))
            table.add_row(*named, *(_number(values, *one) for one in _USE))
        parts.append(table)
    if instances:
        table = _table(("MIG instance", "l"), ("MiB", "r"), ("of", "r"), ("SM %", "r"))
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
    return _panel("the report about to leave, and its noise (1 sigma)", lines)


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
    return _panel("sources", lines)


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


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for title, side in columns:
        justify: Any = "right" if side == "r" else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")
    return table


def _bar(percent: float) -> str:
    full = round(_BAR * min(max(percent, 0.0), 100.0) / 100)
    return "█" * full + "·" * (_BAR - full)


def _spark(percent: float) -> str:
    return "▁▂▃▄▅▆▇█"[min(7, int(percent / 12.5))]


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
