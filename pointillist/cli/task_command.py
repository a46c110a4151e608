"""`pointillist task`: from a plan file to a task under both signatures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from aggregator.enrolment import tasks
from aggregator.protocol.directory import Directory
from pointillist.plan_file import DEFAULT_PATH, PlanFileError, load_plan, plan_path
from privacy.calibrate import WEEK_S
from privacy.errors import ParameterError
from privacy.signing import SigningKey
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.task import DEMO_DOMAIN, Task

from .output import (
    ExitCode,
    HelperKey,
    JsonFlag,
    LeaderKey,
    emit,
    examples,
    need_file,
    refused,
    reported,
    usage_error,
)
from .party import CatalogueFile, load_catalogue, load_identity, pinned_parties, public_key

_BUILT = "`pointillist task build` makes one"

_EXAMPLES = examples("""
pointillist task build --series minute --leader 00aa... --helper 11bb... --out m.task
pointillist task show m.task
pointillist task sign m.task --key keys/leader/identity.key
pointillist helper countersign m.task --key keys/helper/identity.key --leader 00aa...
pointillist task verify m.task --leader 00aa... --helper 11bb...""")

app = typer.Typer(
    help="What the fleet is asked: build, show, sign, verify.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)

TaskFile = Annotated[Path, typer.Argument(help="A .task file.")]


@app.command(
    epilog="Example: pointillist task build --series minute --leader 00aa... --helper 11bb... "
    "--out m.task   (the shipped default plan)"
)
def build(
    series: Annotated[str, typer.Option("--series", help="Which task of the plan.")],
    leader: LeaderKey,
    out: Annotated[Path, typer.Option("--out", help="The draft to write.")],
    helper: Annotated[
        str, typer.Option("--helper", help="The Helper's identity key, hex; none in scheme local.")
    ] = "",
    plan: Annotated[
        str, typer.Option("--plan", help="A plan file, or a shipped plan's name.")
    ] = DEFAULT_PATH.stem,
    version: Annotated[int, typer.Option(help="Rises with every change.", min=1)] = 1,
    start: Annotated[
        int | None,
        typer.Option(help="First second of the series, unix time; the next week without it."),
    ] = None,
    weeks: Annotated[
        int, typer.Option(help="How long an open-ended series runs.", min=1, max=5200)
    ] = 52,
    largest_operator: Annotated[
        int, typer.Option(help="Hosts of the largest operator; t must cover them.", min=0)
    ] = 0,
    catalogue: CatalogueFile = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial", help="A trial's task, of the domain demo: agents of a fleet refuse it."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Resolve a planned task to bounds, steps and noise; every bound is checked."""
    with (
        reported(ExitCode.USAGE, PlanFileError),
        reported(ExitCode.REFUSED, ParameterError, ReportRejected),
    ):
        planned = load_plan(plan_path(plan))
        there = {task.series: task for task in planned.tasks}
        if series not in there:
            raise usage_error(f"the plan has no task {series!r}; there are {', '.join(there)}")
        chosen = there[series]
        first = (int(time.time()) // WEEK_S + 1) * WEEK_S if start is None else start
        wanted = tasks.task_plan(
            planned,
            chosen,
            tasks.windows_from(chosen, first, weeks),
            (public_key(leader), public_key(helper) if helper else b""),
            version=version,
            largest_operator=largest_operator,
            domain=DEMO_DOMAIN if trial else "fleet",
        )
        known = load_catalogue(catalogue)
        task = tasks.build_task(known, wanted)
        task.need_timely(time.time())
    draft = Signed(labels.TASK, task.encode_body()).encode()
    out.write_bytes(draft)
    emit({"file": str(out)} | tasks.summary(draft, known), json)


@app.command(epilog="Example: pointillist task show m.task --json | jq .sections")
def show(file: TaskFile, catalogue: CatalogueFile = None, json: JsonFlag = False) -> None:
    """Show what a task asks for, and who has signed it."""
    emit(_summary(file, load_catalogue(catalogue)), json)


@app.command(epilog="Example: pointillist task sign m.task --key keys/leader/identity.key")
def sign(
    files: Annotated[list[Path], typer.Argument(help="Drafts: .task files, or rosters.")],
    key: Annotated[Path, typer.Option("--key", help="The Leader's identity.key.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to, of one file; the same without it.")
    ] = None,
    catalogue: CatalogueFile = None,
    json: JsonFlag = False,
) -> None:
    """Put the Leader's signature under drafts; the Helper countersigns with its own command.

    Every draft is checked before the first is signed.
    """
    if out is not None and len(files) > 1:
        raise usage_error("--out: expected one file to sign, got several")
    signing = load_identity(key)
    for file in files:
        need_file(file, "a task or a roster", _BUILT)
    signed, known = {}, load_catalogue(catalogue)
    for file in files:
        with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
            signed[out or file] = _signed(file, signing, known)
    for target, content in signed.items():
        target.write_bytes(content)
    if len(signed) > 1:
        emit({"signed": len(signed)}, json)
        return
    for target, content in signed.items():
        emit({"file": str(target)} | tasks.summary(content, known), json)


def _signed(file: Path, signing: SigningKey, catalogue: Catalogue) -> bytes:
    """Sign a draft of this Leader's. Raises ReportRejected, ParameterError; CommandError."""
    content = file.read_bytes()
    if content[:16] == labels.TASK:
        task = Task.decode_body(Signed.decode(content, labels.TASK).body)
        tasks.check_task(task, catalogue)
        task.need_timely(time.time())
        if task.leader_pk != signing.public_bytes:
            raise refused(f"{file}: the draft names another Leader's key")
    return tasks.leader_sign(content, signing)


@app.command(epilog="Example: pointillist task verify m.task --leader 00aa... --helper 11bb...")
def verify(
    file: TaskFile,
    leader: LeaderKey,
    helper: HelperKey = "",
    catalogue: CatalogueFile = None,
    json: JsonFlag = False,
) -> None:
    """Check both signatures, sections and noise; exit code 3 when one is not as it must be."""
    parties = pinned_parties(public_key(leader), public_key(helper) if helper else b"")
    need_file(file, "a task", _BUILT)
    with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
        known = Directory(parties).add_task(file.read_bytes(), time.time())
        asked = load_catalogue(catalogue)
        tasks.check_task(known.task, asked)
        known.task.need_timely(time.time())
    emit(_summary(file, asked) | {"verified": True}, json)


def _summary(file: Path, catalogue: Catalogue) -> dict[str, Any]:
    need_file(file, "a task", _BUILT)
    try:
        found = tasks.summary(file.read_bytes(), catalogue)
    except ReportRejected as error:
        raise usage_error(f"{file}: expected a task: {error}", _BUILT) from error
    if found["kind"] != "task":
        raise usage_error(f"{file}: expected a task, got a {found['kind']}")
    return found
