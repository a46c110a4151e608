"""`pointillist diagnosis`: teach a model of causes, judge it, group what nobody knows yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .diagnosis_record import record
from .diagnosis_text import (
    group_document,
    group_lines,
    named_lines,
    summary,
    taught_document,
    taught_lines,
)
from .output import ExitCode, JsonFlag, emit, need_file, reported, usage_error

if TYPE_CHECKING:
    from diagnosis.detect.model import Model
    from pointillist.teaching.groups import SpikeGroup

_KINDS: Final = (
    "forest", "logistic", "boost", "forest+logistic", "forest+rules", "logistic+rules",
)  # fmt: skip
"""Those of `pointillist.teaching.learning`, which takes seconds to load (a test compares)."""

_EXAMPLES: Final = {
    "record": (
        "pointillist diagnosis record --out night.parquet --watch '/train/*' --seconds 600",
        (
            "pointillist diagnosis record --out disk.parquet --step ./libtrain.so:train_step "
            "--class disk_io --fault 60 120   you disturb the disk from second 60 to 120"
        ),
    ),
    "train": (
        "pointillist diagnosis train recordings --out model.json   what its held-in runs teach",
    ),
    "evaluate": (
        (
            "pointillist diagnosis evaluate recordings --model model.json   every method, on the "
            "held-out runs"
        ),
    ),
    "groups": (
        "pointillist diagnosis groups recordings --out groups.json   unknown spikes that are alike",
    ),
    "name": ('pointillist diagnosis name groups.json group-1 "nightly backup"',),
}


def _epilog(*commands: str) -> str:
    lines = [line for command in commands or _EXAMPLES for line in _EXAMPLES[command]]
    return "\n\n".join([f"Example{'' if len(lines) == 1 else 's'}:", *lines])


_TRAINED: Final = "pointillist diagnosis train writes one"
_GROUPED: Final = "pointillist diagnosis groups writes one"

app = typer.Typer(
    help="Causes of tail latency: record, teach, judge, group.", rich_markup_mode="rich",
    no_args_is_help=True,
)  # fmt: skip

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Recordings (*.parquet), or one of them.")
]
ModelFile = Annotated[Path | None, typer.Option("--model", help="In place of the packaged model.")]


@app.callback(epilog=_epilog())
def diagnosis() -> None:
    """Record runs, teach a model of causes from them, judge it on others, group the unknown."""


app.command(epilog=_epilog("record"))(record)


@app.command(epilog=_epilog("train"))
def train(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Where to write the model.")],
    kind: Annotated[
        str, typer.Option(metavar="KIND", help=f"What to learn: {', '.join(_KINDS)}.")
    ] = "forest",
    open_set: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="How to tell the unknown: knn, mahalanobis, gmm; none: everything is known.",
        ),
    ] = "knn",
    groups: Annotated[
        Path | None, typer.Option(help="Groups of unknown spikes; named ones are taught too.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Teach with held-out runs too; nothing judges it then.")
    ] = False,
    judge: Annotated[
        bool,
        typer.Option(
            help="Also judge by teaching runs, each left out in turn, beside the hand rules."
        ),
    ] = True,
    json: JsonFlag = False,
) -> None:
    """Learn a model from labelled recordings, write it to a file, and say how good it is.

    An agent without a model uses its hand rules: ship a model only where it does better.
    """
    with _refusals():
        from pointillist.teaching.learning import CLOSED, KINDS
        from pointillist.teaching.open_set import KINDS as OPEN_SETS
        from pointillist.teaching.teaching import teach

        _one_of("--kind", kind, list(KINDS))
        _one_of("--open-set", open_set, [*OPEN_SETS, CLOSED])
        named = _load_groups(groups) if groups else []
        version = f"{datetime.now(UTC):%Y.%m.%d}"
        taught = teach(folder, kind, open_set, version, everything, named, _tell(json), judge)
    with reported(ExitCode.UNAVAILABLE, OSError):
        out.write_bytes(taught.content)
    emit(taught_document(taught, out), json, text=taught_lines)


@app.command(epilog=_epilog("evaluate"))
def evaluate(
    folder: Folder,
    model: ModelFile = None,
    rules: Annotated[bool, typer.Option("--rules", help="Judge the hand rules.")] = False,
    ablate: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="What is judged without each group of signals in turn: shipped (the agent's rules "
            f"or model as it is), a kind taught anew ({', '.join(_KINDS)}), none.",
        ),
    ] = "none",
    json: JsonFlag = False,
) -> None:
    """Compare all methods on the runs that teach none of them, and judge one model in full."""
    with _refusals():
        from pointillist.teaching.evaluation import evaluate as run
        from pointillist.teaching.learning import KINDS
        from pointillist.teaching.recorded_runs import runs_in
        from pointillist.teaching.results import results_of

        _one_of("--ablate", ablate, ["none", "shipped", *KINDS])
        chosen = None if rules else _load_model(model)
        found = results_of(run(runs_in(folder), chosen, _tell(json), ablate))
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
    model: ModelFile = None,
    json: JsonFlag = False,
) -> None:
    """Group the spikes that nothing known explains, and say what sets each group apart.

    Recordings need no labels. To name a group, look at what happened on the host at its times.
    """
    with _refusals():
        from diagnosis.frames.recording import iterate
        from pointillist.teaching.groups import find_groups, save_groups
        from pointillist.teaching.recorded_runs import run_paths
        from pointillist.teaching.unknown_spikes import spikes_of, unknown

        chosen, tell = _load_model(model), _tell(json)
        spikes = []
        for path in run_paths(folder):
            tell(path.name)
            spikes += unknown(spikes_of(path.stem, iterate(path), chosen))
        known = _load_groups(out) if out.exists() else []
        found = find_groups([o.member for o in spikes], [o.vector for o in spikes], known)
        save_groups(out, found)
    emit([group_document(group) for group in found], json, text=group_lines)


@app.command(epilog=_epilog("name"))
def name(
    file: Annotated[Path, typer.Argument(metavar="GROUPS", help="What `groups` wrote.")],
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="Its name so far, as `groups` printed it.")
    ],
    called: Annotated[
        str, typer.Argument(metavar="NAME", help="A cause's name makes its spikes examples.")
    ],
    json: JsonFlag = False,
) -> None:
    """Name a group; `train --groups` then teaches it."""
    with _refusals():
        from pointillist.teaching.groups import rename, save_groups
        from pointillist.teaching.unknown_spikes import CAUSES

        renamed = rename(_load_groups(file), group, called)
        save_groups(file, renamed)
        teaches = called in CAUSES
    rows = [group_document(group) for group in renamed]
    emit(rows, json, text=lambda told: named_lines(told, group, called, teaches))


@contextmanager
def _refusals() -> Iterator[None]:
    """Give wrong input its exit code."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, _input_errors()):
            raise usage_error(str(error)) from error
        raise


def _input_errors() -> tuple[type[ValueError], ...]:
    from diagnosis.detect.model_fields import ModelError
    from diagnosis.frames.recording import RecordingError
    from pointillist.teaching.evaluation import TaughtByHeldOut
    from pointillist.teaching.groups import GroupsRefused
    from pointillist.teaching.lessons import TooFewExamples
    from pointillist.teaching.recorded_runs import RunRefused

    return (
        ModelError, RecordingError, GroupsRefused, TooFewExamples, RunRefused, TaughtByHeldOut,
    )  # fmt: skip


def _one_of(option: str, told: str, known: list[str]) -> None:
    if told not in known:
        raise usage_error(f"{option}: expected one of {', '.join(known)}, got {told!r}")


def _tell(json: bool) -> Callable[[str], None]:
    """Progress goes to stderr, and to no one where a program reads."""
    return (lambda _: None) if json else (lambda text: typer.echo(text, err=True))


def _load_model(path: Path | None) -> Model | None:
    from diagnosis.detect.model_fields import ModelError
    from diagnosis.detect.model_file import load_model

    file = need_file(path, "a model", _TRAINED) if path else None
    try:
        return load_model(file)
    except ModelError as error:
        named = str(error) if file is None or str(file) in str(error) else f"{file}: {error}"
        raise usage_error(named) from error


def _load_groups(path: Path) -> list[SpikeGroup]:
    from pointillist.teaching.groups import load_groups

    return load_groups(need_file(path, "a file of groups", _GROUPED))
