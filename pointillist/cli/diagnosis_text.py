"""What `pointillist diagnosis` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from edge_agent.local.words import counted
from pointillist.table import terminal_columns, value_lines

if TYPE_CHECKING:
    from pointillist.judging.groups import SpikeGroup

Row = Mapping[str, Any]


def group_document(group: SpikeGroup) -> dict[str, Any]:
    """What `groups` and `name` answer of one group."""
    from pointillist.judging.groups import members_said, steps_said, strays

    return {
        "group": group.name,
        "named": group.named,
        "spikes": len(group.members),
        "steps": steps_said(group),
        "signals": [
            {"signal": o.signal, "spreads": o.spreads, "ratio": o.ratio, "words": o.words}
            for o in strays(group)
        ],
        "members": [
            {"recording": o.recording, "subject": o.subject, "onset_ns": o.onset_ns,
             "at_s": None if isnan(o.at_s) else round(o.at_s, 4)}
            for o in group.members
        ],
        "where": members_said(group),
    }  # fmt: skip


def group_lines(rows: Sequence[Row]) -> str:
    """Each group with what a person needs to name it."""
    if not rows:
        return "No unknown spike was found."
    lines = [line for row in rows for line in _group(row)]
    if any(not row["named"] for row in rows):
        lines.append("Name one by what happened then: pointillist diagnosis name FILE GROUP NAME")
    return "\n".join(lines)


def _group(row: Row) -> list[str]:
    lines = [
        (
            f"{row['group']}  {counted(row['spikes'], 'spike')}"
            f"{'' if row['named'] else ', not named yet'}"
        ),
        *(f"  {where}" for where in row["where"]),
        f"  {row['steps']}",
    ]
    signals = [f"  {signal['words']}" for signal in row["signals"]]
    return [*lines, *(signals or ["  no signal was far from usual"]), ""]


def named_lines(rows: Sequence[Row], old: str, new: str) -> str:
    """What naming a group means."""
    count = next(row["spikes"] for row in rows if row["group"] == new)
    return f"{old} is now {new!r}: {counted(count, 'spike')}; found again, it keeps the name"


def summary(answer: Row) -> str:
    """Figures of an evaluation."""
    figures = [
        (figure["name"], f"{figure['value']:g} {figure['unit']}") for figure in answer["figures"]
    ]
    absent = [(name, f"absent: {why}") for name, why in answer["absent"].items()]
    return "\n".join(value_lines([*figures, *absent], terminal_columns()))
