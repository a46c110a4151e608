"""`pointillist diagnosis`: record a dataset, judge the diagnosis by it, group the unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_agent.local.words import counted
from pointillist.table import terminal_columns, value_lines

from .diagnosis_record import record
from .output import JsonFlag, emit, need_file, usage_error

if TYPE_CHECKING:
    from pointillist.judging.groups import SpikeGroup


Row = Mapping[str, Any]


def group_document(group: SpikeGroup) -> dict[str, Any]:
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
    if not rows:
        return "No unknown spike was found."
    lines = []
    for row in rows:
        unnamed = "" if row["named"] else ", not named yet"
        lines.append(f"{row['group']}  {counted(row['spikes'], 'spike')}{unnamed}")
        lines += [f"  {said}" for said in (*row["where"], row["steps"])]
        signals = [f"  {signal['words']}" for signal in row["signals"]]
        lines += [*(signals or ["  no signal was far from usual"]), ""]
    if any(not row["named"] for row in rows):
        lines.append("Name one by what happened then: pointillist diagnosis name FILE GROUP NAME")
    return "\n".join(lines)


def summary(answer: Row) -> str:
    figures = [
        (figure["name"], f"{figure['value']:g} {figure['unit']}") for figure in answer["figures"]
    ]
    absent = [(name, f"absent: {why}") for name, why in answer["absent"].items()]
    return "\n".join(value_lines([*figures, *absent], terminal_columns()))


_EXAMPLES: Final = {
    "record": (
        "pointillist diagnosis record --out night.parquet --watch '/train/*' --seconds 600",
        (
            "pointillist diagnosis record --out disk.parquet --step ./libtrain.so:train_step "
            "--class disk_io --fault 60 120   you disturb the disk from second 60 to 120"
        ),
    ),
    "evaluate": (
        "pointillist diagnosis evaluate recordings   how good it is, on the held-out runs",
    ),
    "groups": (
        "pointillist diagnosis groups recordings --out groups.json   unknown spikes that are alike",
    ),
    "name": ('pointillist diagnosis name groups.json group-1 "nightly backup"',),
}


def _epilog(*commands: str) -> str:
    lines = [line for command in commands or _EXAMPLES for line in _EXAMPLES[command]]
    return "\n\n".join([f"Example{'' if len(lines) == 1 else 's'}:", *lines])


_GROUPED: Final = "pointillist diagnosis groups writes one"

app = typer.Typer(
    help="Causes of tail latency: record, judge, group.",
    no_args_is_help=True,
)  # fmt: skip

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Recordings (*.parquet), or one of them.")
]


@app.callback(epilog=_epilog())
def diagnosis() -> None:
    """Record runs, judge the diagnosis by them, group the unknown."""


app.command(epilog=_epilog("record"))(record)


@app.command(epilog=_epilog("evaluate"))
def evaluate(folder: Folder, json: JsonFlag = False) -> None:
    """Judge the diagnosis by the held-out runs of labelled recordings."""
    with _refusals():
        from pointillist.judging.evaluation import evaluate as run
        from pointillist.judging.results import results_of
        from pointillist.judging.runs import runs_in

        found = results_of(run(runs_in(folder), _tell(json)))
    answer = {
        "figures": [{"name": o.name, "value": o.value, "unit": o.unit} for o in found.lines],
        "absent": dict(found.absent),
        "tables": found.tables,
    }
    emit(answer, json, text=summary)


@app.command(epilog=_epilog("groups"))
def groups(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File of groups; what it names stays named.")],
    json: JsonFlag = False,
) -> None:
    """Group the spikes that nothing known explains, and say what sets each group apart.

    Recordings need no labels. To name a group, look at what happened on the host at its times.
    """
    with _refusals():
        from diagnosis.frames.recording import iterate
        from pointillist.judging.groups import find_groups, save_groups, unknown_spikes
        from pointillist.judging.runs import run_paths

        tell = _tell(json)
        spikes = []
        for path in run_paths(folder):
            tell(path.name)
            spikes += unknown_spikes(path.stem, iterate(path))
        known = _load_groups(out) if out.exists() else []
        found = find_groups([member for member, _ in spikes], [v for _, v in spikes], known)
        save_groups(out, found)
    emit([group_document(group) for group in found], json, text=group_lines)


@app.command(epilog=_epilog("name"))
def name(
    file: Annotated[Path, typer.Argument(metavar="GROUPS", help="What `groups` wrote.")],
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Its name so far, as `groups` printed it.")
    ],
    called: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called.")],
    json: JsonFlag = False,
) -> None:
    """Name a group; found again, it keeps the name."""
    with _refusals():
        from pointillist.judging.groups import rename, save_groups

        renamed = rename(_load_groups(file), group, called)
        save_groups(file, renamed)
    rows = [group_document(group) for group in renamed]
    count = counted(next(row["spikes"] for row in rows if row["group"] == called), "spike")
    emit(rows, json, f"{group} is now {called!r}: {count}; found again, it keeps the name")


@contextmanager
def _refusals() -> Iterator[None]:
    from diagnosis.frames.recording import RecordingError
    from pointillist.judging.groups import GroupsRefused
    from pointillist.judging.runs import RunRefused

    try:
        yield
    except (RecordingError, GroupsRefused, RunRefused) as error:
        raise usage_error(str(error)) from error


def _tell(json: bool) -> Callable[[str], None]:
    """Progress goes to stderr, and to no one where a program reads."""
    return (lambda _: None) if json else (lambda text: typer.echo(text, err=True))


def _load_groups(path: Path) -> list[SpikeGroup]:
    from pointillist.judging.groups import load_groups

    return load_groups(need_file(path, "a file of groups", _GROUPED))
