"""`pointillist diagnosis`: teach a model of causes, judge it, group what nobody knows yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import CommandError, ExitCode, JsonFlag, emit, need_file, usage_error

if TYPE_CHECKING:
    from edge_agent.diagnosis.model import Model
    from pointillist.diagnosis.groups import Group

_EPILOG: Final = """Examples:

pointillist diagnosis train recordings --out model.json   what its held-in runs teach

pointillist diagnosis evaluate recordings --model model.json   every method on held-out runs

pointillist diagnosis groups recordings --out groups.json   unknown spikes that are alike

pointillist diagnosis name groups.json group-1 "nightly backup\""""
_TRAINED: Final = "pointillist diagnosis train writes one"
_GROUPED: Final = "pointillist diagnosis groups writes one"

app = typer.Typer(
    help="Causes of tail latency: teach, judge, group.", rich_markup_mode="rich",
    no_args_is_help=True,
)  # fmt: skip

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Recordings (*.parquet), or one of them.")
]
ModelFile = Annotated[Path | None, typer.Option("--model", help="In place of the packaged model.")]


@app.callback(epilog=_EPILOG)
def diagnosis() -> None:
    """Teach a model of causes from recorded runs, judge it on others, group the unknown."""


@app.command(epilog=_EPILOG)
def train(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Where to write the model.")],
    kind: Annotated[str, typer.Option(help="What to learn; `evaluate` compares all.")] = "forest",
    open_set: Annotated[
        str, typer.Option(help="How to tell the unknown: knn, mahalanobis, gmm; none.")
    ] = "knn",
    groups: Annotated[
        Path | None, typer.Option(help="Groups of unknown spikes; named ones are taught too.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Teach with held-out runs too; nothing judges it then.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Learn a model from labelled recordings, and write it to a file."""
    with _refusals():
        from pointillist.diagnosis.learning import CLOSED, KINDS
        from pointillist.diagnosis.open_set import KINDS as OPEN_SETS
        from pointillist.diagnosis.teaching import teach

        _one_of("--kind", kind, list(KINDS))
        _one_of("--open-set", open_set, [*OPEN_SETS, CLOSED])
        named = _load_groups(groups) if groups else []
        version = f"{datetime.now(UTC):%Y.%m.%d}"
        taught = teach(folder, kind, open_set, version, everything, named, _tell(json))
    out.write_bytes(taught.content)
    answer = {
        "model": taught.title,
        "bytes": len(taught.content),
        "examples": taught.examples,
        "causes": list(taught.causes),
        "runs": len(taught.runs),
        "held_out": taught.held_out,
    }
    emit(answer, json)


@app.command(epilog=_EPILOG)
def evaluate(
    folder: Folder,
    model: ModelFile = None,
    rules: Annotated[bool, typer.Option("--rules", help="Judge the hand rules.")] = False,
    ablate: Annotated[
        str, typer.Option(help="What loses each group of signals: shipped, a kind, none.")
    ] = "none",
    json: JsonFlag = False,
) -> None:
    """Compare all methods on the runs that teach none of them, and judge one model in full."""
    with _refusals():
        from pointillist.diagnosis.evaluation import evaluate as run
        from pointillist.diagnosis.folder import runs_in
        from pointillist.diagnosis.learning import KINDS
        from pointillist.diagnosis.results import results_of

        _one_of("--ablate", ablate, ["none", "shipped", *KINDS])
        chosen = None if rules else _load_model(model)
        found = results_of(run(runs_in(folder), chosen, _tell(json), ablate))
    answer = {
        "figures": [{"name": o.name, "value": o.value, "unit": o.unit} for o in found.lines],
        "absent": dict(found.absent),
        "tables": found.tables,
    }
    emit(answer, json, text=_summary)


@app.command(epilog=_EPILOG)
def groups(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File of groups; what it names stays named.")],
    model: ModelFile = None,
    json: JsonFlag = False,
) -> None:
    """Group the spikes that nothing known explains; recordings need no labels."""
    with _refusals():
        from edge_agent.frames.recording import iterate
        from pointillist.diagnosis.folder import run_paths
        from pointillist.diagnosis.groups import find_groups, save_groups
        from pointillist.diagnosis.unknowns import spikes_of, unknown

        chosen, tell = _load_model(model), _tell(json)
        spikes = []
        for path in run_paths(folder):
            tell(path.name)
            spikes += unknown(spikes_of(path.stem, iterate(path), chosen))
        known = _load_groups(out) if out.exists() else []
        found = find_groups([o.member for o in spikes], [o.vector for o in spikes], known)
        save_groups(out, found)
    emit([_group_row(one) for one in found], json, text=_group_lines)


@app.command(epilog=_EPILOG)
def name(
    file: Annotated[Path, typer.Argument(metavar="GROUPS", help="What `groups` wrote.")],
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    called: Annotated[
        str, typer.Argument(metavar="NAME", help="A cause's name makes its spikes examples.")
    ],
    json: JsonFlag = False,
) -> None:
    """Name a group; `train --groups` then teaches it."""
    with _refusals():
        from pointillist.diagnosis.groups import rename, save_groups

        renamed = rename(_load_groups(file), group, called)
        save_groups(file, renamed)
    emit([_group_row(one) for one in renamed], json, text=_group_lines)


@contextmanager
def _refusals() -> Iterator[None]:
    """Give wrong input its exit code; a missing scikit-learn its way out."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise CommandError(
            ExitCode.FAILED, "this needs scikit-learn", "pip install 'pointillist[training]'"
        ) from error
    except ValueError as error:
        if isinstance(error, _input_errors()):
            raise usage_error(str(error)) from error
        raise


def _input_errors() -> tuple[type[ValueError], ...]:
    from edge_agent.diagnosis.model_fields import ModelError
    from edge_agent.frames.recording import RecordingError
    from pointillist.diagnosis.evaluation import TaughtByHeldOut
    from pointillist.diagnosis.groups import GroupsRefused
    from pointillist.diagnosis.learning import TooFewExamples
    from pointillist.diagnosis.runs import RunRefused

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
    from edge_agent.diagnosis.model_file import load_model

    return load_model(need_file(path, "a model", _TRAINED) if path else None)


def _load_groups(path: Path) -> list[Group]:
    from pointillist.diagnosis.groups import load_groups

    return load_groups(need_file(path, "a file of groups", _GROUPED))


def _group_row(group: Group) -> dict[str, Any]:
    return {"group": group.name, "named": group.named, "spikes": len(group.members)}


def _group_lines(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "No unknown spike was found."
    return "\n".join(
        f"{row['group']}  {row['spikes']} spikes{'' if row['named'] else ', not named yet'}"
        for row in rows
    )


def _summary(answer: dict[str, Any]) -> str:
    lines = [f"{one['name']}  {one['value']:g} {one['unit']}" for one in answer["figures"]]
    lines += [f"{name}  absent: {why}" for name, why in answer["absent"].items()]
    lines += ["", "macro-F1, ungated, accuracy, found; of held-out runs"]
    for row in answer["tables"]["methods"]:
        if "skipped" in row:
            lines.append(f"{row['method']:26} not run: {row['skipped']}")
            continue
        told = [row[key] for key in ("macro_f1", "macro_f1_ungated", "accuracy", "detected")]
        cells = "  ".join("  -  " if one is None else f"{one:5.3f}" for one in told)
        lines.append(f"{row['method']:26} {cells}")
    return "\n".join(lines)
