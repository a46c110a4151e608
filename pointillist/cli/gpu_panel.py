"""The GPUs of `agent top`: devices, who uses them, kernels. Names are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from edge_agent.local.devices_view import INSTANCE, PREFIX, PROCESS, read_use_key

from .calls_screen import calls_line
from .parts import panel, plain_table, shortened

View = Mapping[str, Any]
_SLIM: Final = 76
_WIDE: Final = 100
_GPU_WIDE_ONLY: Final = frozenset({"limit", "SM MHz"})
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


def gpu_panel(view: View | None, width: int) -> RenderableType | None:
    """Devices, who uses them, and kernels; None where no source tells of any."""
    devices, models = _by_key(view, PREFIX), (view or {}).get("models", {})
    parts: list[RenderableType] = []
    if devices:
        told = [one for one in _GPU_COLUMNS if width >= _WIDE or one[0] not in _GPU_WIDE_ONLY]
        names = [("GPU", "l"), *([("model", "l")] if width >= _SLIM else [])]
        table = plain_table(*names, *((title, "r") for title, _, _ in told))
        for device, values in sorted(devices.items()):
            numbers = [_number(values, name, unit) for _, name, unit in told]
            called = [Text(shortened(device, 16)), Text(str(models.get(device, "")))][: len(names)]
            table.add_row(*called, *numbers)
        parts.append(table)
    wide = width >= _WIDE
    parts += _gpu_users(view, wide)
    kernels = (view or {}).get("kernels", [])
    if kernels:
        heads = [("kernel, last 10 s", "l"), ("family", "l"), ("GPU ms/s", "r")]
        table = plain_table(*heads, ("launches/s", "r"), expand=None if wide else 0)
        for one in kernels[:6]:
            rates = (f"{one[name]:,.1f}" for name in ("gpu_ms_per_s", "launches_per_s"))
            table.add_row(Text(shortened(one["kernel"], 60)), Text(one["family"]), *rates)
        parts.append(table)
    line = calls_line(view)
    if line is None and not parts:
        return None
    body: RenderableType = Columns(parts)
    return panel("GPU", Group(line, body) if line is not None else body)


def _gpu_users(view: View | None, wide: bool) -> list[RenderableType]:
    """Show processes and MIG instances, and in words what the driver does not tell of them."""
    parts: list[RenderableType] = []
    processes, instances = _by_key(view, PROCESS), _by_key(view, INSTANCE)
    if processes:
        columns = (("on", "l"), ("pid", "r"), ("program", "l"), ("container", "l"))
        gives_way = None if wide else 2  # the program's name
        table = plain_table(*columns, ("GPU MiB", "r"), ("SM %", "r"), expand=gives_way)
        most = sorted(processes.items(), key=lambda item: -item[1].get("memory_bytes", 0))
        for key, values in most[:8]:
            if "not_shown" in values:
                continue
            unit, pid, container, program = read_use_key(key)
            named = (Text(shortened(unit, 12)), pid, Text(program), Text(shortened(container, 13)))
            table.add_row(*named, *(_number(values, *one) for one in _USE))
        parts.append(table)
    if instances:
        table = plain_table(("MIG instance", "l"), ("MiB", "r"), ("of", "r"), ("SM %", "r"))
        for key, values in sorted(instances.items())[:8]:
            table.add_row(Text(shortened(key, 16)), *(_number(values, *one) for one in _INSTANCE))
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
