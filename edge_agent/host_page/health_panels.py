"""Health: checks of this host, its sources, its GPUs as last read, and what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from collectors.devices.node_health import HealthRow, HealthVerdict
from edge_agent.local.devices_view import PREFIX
from edge_agent.local.quantity import quantity
from pages.layout import Panel, TableCell
from pages.scale import moment_said
from pages.wording import ABSENT, counted, listed, plain

_NS: Final = 1_000_000_000
_MOST_EVENTS: Final = 60
_FIELDS: Final = (
    ("utilisation_percent", "Busy", "%"),
    ("memory_used_bytes", "Memory", "bytes"),
    ("temperature_celsius", "Temperature", "°C"),
    ("power_mw", "Power", "W"),
    ("throttle_reasons", "Held back", ""),
    ("ecc_volatile_uncorrected", "ECC errors", ""),
    ("xid_events", "XIDs", ""),
)
_MW_PER_W: Final = 1_000


def checks_panel(rows: Sequence[HealthRow]) -> Panel:
    """Show the verdict of each check of the node-health table that needs no GPU."""
    failed = [plain(row.check) for row in rows if row.verdict is HealthVerdict.FAIL]
    unknown = [plain(row.check) for row in rows if row.verdict is HealthVerdict.UNKNOWN]
    said = f"Broken: {listed(failed)}." if failed else "Nothing is known to be broken."
    if unknown:
        said += f" Not read here: {listed(unknown)}."
    return Panel(
        "checks", "Checks", said,
        note="What the kernel tells; pointillist agent health also checks the GPUs.",
        heads=[("Check", False), ("Verdict", False), ("Why", False)],
        rows=[
            [
                TableCell(plain(row.check)),
                TableCell(row.verdict.value, unsure=row.verdict is HealthVerdict.UNKNOWN),
                TableCell(row.reason),
            ]
            for row in rows
        ],
        unfolded=True,
    )  # fmt: skip


def sources_panel(live: Mapping[str, Any]) -> Panel:
    """Show which sources run, which are absent or fail, and why."""
    agent = live.get("agent", {})
    failing, absent = dict(agent.get("failing", {})), list(agent.get("absent", []))
    rows = [(name, "fails", failing.get(name)) for name in sorted(failing)]
    rows += [(name, "absent", reason) for name, reason in absent]
    rows += [(name, "runs", "") for name in agent.get("sources", []) if name not in failing]
    said = f"{counted(sum(state == 'runs' for _, state, _ in rows), 'source')} of {len(rows)} run."
    return Panel(
        "sources", "Sources", said,
        heads=[("Source", False), ("State", False), ("Why", False)],
        rows=[
            [TableCell(str(name)), TableCell(state), TableCell(str(why))]
            for name, state, why in rows
        ],
        unfolded=True,
    )  # fmt: skip


def gpus_panel(live: Mapping[str, Any]) -> Panel | None:
    """Show what was last read of each GPU; None where the agent reads none."""
    found: dict[str, dict[str, float]] = {}
    for value in live.get("values", []):
        name = str(value["name"])
        if name.startswith(PREFIX):
            found.setdefault(str(value["key"]), {})[name.removeprefix(PREFIX)] = value["value"]
    if not found:
        return None
    models = live.get("models", {})
    return Panel(
        "devices", "GPUs, as last read", f"{counted(len(found), 'GPU')}.",
        heads=[("GPU", False), ("Model", False), *((head, True) for _, head, _ in _FIELDS)],
        rows=[
            [
                TableCell(key),
                TableCell(str(models.get(key, ABSENT))),
                *(TableCell(_field(fields, name, unit), number=True) for name, _, unit in _FIELDS),
            ]
            for key, fields in sorted(found.items())
        ],
        unfolded=True,
    )  # fmt: skip


def events_panel(events: Sequence[Mapping[str, Any]]) -> Panel:
    """Show what happened, the newest first."""
    title = "What happened"
    if not events:
        return Panel("events", title, "No fault, reload or failing source in this time.")
    return Panel(
        "events", title, f"{counted(len(events), 'event')}, the newest first.",
        heads=[("When, UTC", False), ("What", False), ("Of", False), ("Detail", False)],
        rows=[
            [
                TableCell(moment_said(row["unix_ns"] // _NS, seconds=True)),
                TableCell(plain(row["name"])),
                TableCell(" ".join(part for part in (row["source"], row["key"]) if part)),
                TableCell(row["detail"]),
            ]
            for row in events[:_MOST_EVENTS]
        ],
        unfolded=True,
        more="pointillist agent history --kind event shows all."
        if len(events) > _MOST_EVENTS
        else "",
    )  # fmt: skip


def _field(fields: Mapping[str, float], name: str, unit: str) -> str:
    if name not in fields:
        return ABSENT
    value = fields[name] / _MW_PER_W if name == "power_mw" else fields[name]
    return quantity(value, unit)
