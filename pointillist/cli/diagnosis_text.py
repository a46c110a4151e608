"""What `pointillist diagnosis` prints for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_agent.local.quantity import counted
from pointillist.table import Column, cells_of, table_lines, terminal_columns, value_lines

if TYPE_CHECKING:
    from pointillist.teaching.comparison import LeftOut
    from pointillist.teaching.groups import SpikeGroup
    from pointillist.teaching.teaching import Taught

Row = Mapping[str, Any]


def taught_document(taught: Taught, out: Path) -> dict[str, Any]:
    """What `train` answers; `left_out` is null where nothing was judged."""
    judged = taught.judged
    return {
        "model": taught.title,
        "file": str(out),
        "bytes": len(taught.content),
        "examples": taught.examples,
        "causes": list(taught.causes),
        "runs": len(taught.runs),
        "runs_by_cause": dict(taught.runs_by_cause),
        "held_out": taught.held_out,
        "left_out": None if judged is None else _left_out(judged),
    }


def _left_out(judged: LeftOut) -> dict[str, Any]:
    return {
        "macro_f1": _told(judged.macro_f1),
        "accuracy": _told(judged.accuracy),
        "rules_macro_f1": _told(judged.rules_macro_f1),
        "rules_accuracy": _told(judged.rules_accuracy),
        "runs": judged.runs,
        "faults": judged.faults,
        "rules_are_better": judged.rules_are_better,
        "causes_of_one_run": list(judged.single),
    }


def _told(value: float) -> float | None:
    return None if isnan(value) else round(value, 4)


def taught_lines(answer: Row) -> str:
    """What was taught, by what, and how well it does."""
    counts = ", ".join(f"{name} {runs}" for name, runs in answer["runs_by_cause"].items())
    taught = f"{counted(answer['examples'], 'example')} of {counted(answer['runs'], 'run')}"
    idle = counted(answer["held_out"], "run") if answer["held_out"] else "no run"
    use = ": they taught nothing, `evaluate` judges by them" if answer["held_out"] else ""
    lines = [
        f"{answer['file']}: model {answer['model']}, {counted(answer['bytes'], 'byte')}",
        f"taught by {taught}; runs by cause: {counts or 'none'}",
        f"{idle} held out{use}",
    ]
    judged = answer["left_out"]
    return "\n".join(lines if judged is None else [*lines, *_judged_lines(judged)])


def _judged_lines(judged: Row) -> list[str]:
    alone = ", ".join(judged["causes_of_one_run"])
    few = [f"one run alone teaches {alone}: it judges nothing; record more"] if alone else []
    if judged["macro_f1"] is None:
        unknown = (
            "not judged: it takes two runs of a cause. WARNING: nothing shows that this model is "
            "better than the hand rules, which agents without a model use"
        )
        return [*few, unknown]
    runs, faults = counted(judged["runs"], "teaching run"), counted(judged["faults"], "fault")
    rules = _score(judged["rules_macro_f1"], judged["rules_accuracy"])
    lines = [
        *few,
        f"judged by {runs}, each by a model taught without it ({faults} with impact):",
        f"  this kind of model  {_score(judged['macro_f1'], judged['accuracy'])}",
        f"  the hand rules      {rules}; their limits were set on such runs",
    ]
    if judged["rules_are_better"]:
        lines.append(
            "WARNING: the hand rules do as well or better on these runs. Do not ship this model: "
            "an agent without one uses the hand rules"
        )
    else:
        lines.append("before you ship it: `pointillist diagnosis evaluate --model FILE`")
    return lines


def _score(macro_f1: float, accuracy: float) -> str:
    return f"macro-F1 {macro_f1:.2f}, {100 * accuracy:.0f} % of the faults named rightly"


def group_document(group: SpikeGroup) -> dict[str, Any]:
    """What `groups` and `name` answer of one group."""
    from pointillist.teaching.unknown_spikes import members_said, steps_said, strays

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
             "at_s": _told(o.at_s)}
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
        lines.append(
            "Name one by what happened then: pointillist diagnosis name FILE GROUP NAME; a cause's "
            "own name makes its spikes examples of that cause."
        )
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


def named_lines(rows: Sequence[Row], old: str, new: str, teaches: bool) -> str:
    """What naming a group means."""
    count = next(row["spikes"] for row in rows if row["group"] == new)
    meaning = (
        f"`train --groups` now teaches its spikes as {new}, and the group is none any more"
        if teaches
        else "`train --groups` carries the name into the model; agents tell it with their `unknown`"
    )
    return f"{old} is now {new!r}: {counted(count, 'spike')}; {meaning}"


def summary(answer: Row) -> str:
    """Figures of an evaluation, and its comparison."""
    width = terminal_columns()
    figures = [
        (figure["name"], f"{figure['value']:g} {figure['unit']}") for figure in answer["figures"]
    ]
    absent = [(name, f"absent: {why}") for name, why in answer["absent"].items()]
    methods = answer["tables"]["methods"]
    ran = [row for row in methods if "skipped" not in row]
    lines = [*value_lines([*figures, *absent], width), "", "of held-out runs:"]
    lines += table_lines(_METHODS, cells_of(_METHODS, ran), width)
    skipped = [(row["method"], f"not run: {row['skipped']}") for row in methods if "skipped" in row]
    return "\n".join([*lines, *value_lines(skipped, width)])


def _score_of(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else f"{row[name]:.3f}"


_METHODS: Final = (
    Column("method", itemgetter("method"), folds=True),
    Column("macro-F1", _score_of("macro_f1"), right=True),
    Column("ungated", _score_of("macro_f1_ungated"), right=True),
    Column("accuracy", _score_of("accuracy"), right=True),
    Column("found", _score_of("detected"), right=True),
)
