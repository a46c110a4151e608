"""The GPUs of `agent top`: devices, who uses them, kernels. Names are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from edge_agent.local.devices_view import INSTANCE, PREFIX, PROCESS, read_use_key
from pointillist.table import Column

from .calls_screen import calls_line
from .gpu_time_screen import gpu_time_line
from .parts import grid, left_out, panel, shortened

View = Mapping[str, Any]
_SLIM: Final = 76
_WIDE: Final = 100
_Values = tuple[str, Mapping[str, float]]
"""What the values are of, and the values by name."""


def _number(head: str, name: str, per_unit: int, from_width: int = 0) -> Column:
    """A column of numbers of `_Values`."""

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
    Column("GPU ms/s", lambda kernel: f"{kernel['gpu_ms_per_s']:,.1f}", right=True),
    Column("launches/s", lambda kernel: f"{kernel['launches_per_s']:,.1f}", right=True),
)
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
    """Devices, who uses them, and kernels; None where no source tells of any."""
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
    """Show processes and MIG instances, and in words what the driver does not tell of them."""
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
    for value in (view or {}).get("values", ()):
        if value["name"].startswith(prefix):
            found.setdefault(value["key"], {})[value["name"].removeprefix(prefix)] = value["value"]
    return found
