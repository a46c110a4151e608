"""The panel of `agent top` that says what is slow now, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from .parts import panel

View = Mapping[str, Any]
MOST_SHOWN: Final = 3
_COLOURS: Final = {"warning": "yellow", "spike": "red", "over": "dim"}


def findings_of(view: View | None) -> Sequence[Mapping[str, Any]]:
    """What is to be shown, the newest first."""
    found: Sequence[Mapping[str, Any]] = (view or {}).get("diagnosis", [])
    return found[:MOST_SHOWN]


def diagnosis_panel(view: View | None) -> RenderableType | None:
    """Show spikes that stand or have just ended, and warnings; None where there is none."""
    found = findings_of(view)
    if not found:
        return None
    lines = Text(no_wrap=True, overflow="ellipsis")
    for one in found:
        lines.append(f"{one['subject']}  ", style="bold")
        lines.append(_head(one), style=_COLOURS.get(one["state"], ""))
        lines.append("\n")
        if one["cause"]:
            by = f", by {one['who']}" if one.get("who") else ""
            lines.append(f"    {one['about']}{by}; {one['steps']}\n")
        for evidence in one["evidence"][: 2 if len(found) > 1 else 3]:
            lines.append(f"    {evidence}\n", style="dim")
        if len(found) == 1 and one.get("advice"):
            lines.append(f"    next: {one['advice']}\n")
    lines.rstrip()
    return panel("why was it slow", lines)


def height_of(view: View | None) -> int:
    """Lines that the panel takes, borders included; 0 where there is none."""
    found = findings_of(view)
    most = 2 if len(found) > 1 else 3
    lines = (1 + bool(one["cause"]) + len(one["evidence"][:most]) for one in found)
    advised = len(found) == 1 and bool(found[0].get("advice"))
    return sum(lines) + advised + 2 if found else 0


def _head(one: Mapping[str, Any]) -> str:
    if one["state"] == "warning" or not one["cause"]:
        return f"{one['age_s']} s ago: {one['said']}" if one["state"] == "over" else one["said"]
    age = f"{one['age_s']} s"
    since = f"over, began {age} ago" if one["state"] == "over" else f"slow for {age}"
    incident = ", incident" if one.get("incident") else ""
    sure = f"{100 * one['confidence']:.0f} %{incident}"
    return f"{since}: {one['cause']}, {sure}"
