"""`pointillist helper countersign`: check what the Leader signed, and sign it beside the Leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from aggregator.enrolment.roster_review import (
    NO_EVIDENCE,
    RosterEvidence,
    accepted_hosts,
    signed_before,
    signed_tasks,
)
from aggregator.enrolment.tasks import MAX_FILE_BYTES, check_and_countersign, label_of
from aggregator.party.config import HelperConfig
from aggregator.state.state_file import StorageUnavailable, write_all_durably
from pointillist.table import terminal_columns
from privacy.errors import ParameterError
from transport.files.own_names import files_ending
from transport.files.private_files import UnfitFile, read_bounded
from transport.process.printable import printable
from wire import fields, labels
from wire.envelope import SIGNED_OVERHEAD_BYTES, Signed
from wire.fields import NO_SIGNATURE
from wire.rejection import Reason, ReportRejected

from .output import ExitCode, JsonFlag, emit, examples, need_file, reported, say, usage_error
from .party import (
    CatalogueFile,
    load_catalogue,
    load_helper,
    load_identity,
    pinned_parties,
    public_key,
)

EPILOG: Final = examples("""
pointillist helper countersign next.roster --config helper.toml --previous fleet.roster
pointillist helper countersign joins/ --config helper.toml   each *.entry that lacks it""")

_MAX_VOUCHERS_BYTES: Final = 1 << 28
_SIGNED: Final = "a signed task, roster or entry"
_FOLDERS_HOLD: Final = (".task", ".entry")
"""What a folder stands for; a roster is asked for by its name, as a person compares its counts."""


def countersign(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="What the Leader signed: .task, .roster, .entry; of a folder each task and entry "
            "that lacks the Helper's signature."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="helper.toml: pinned operators, for a roster a must; both keys."
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="The Helper's identity.key; else key_dir's.")
    ] = None,
    leader: Annotated[
        str | None, typer.Option("--leader", help="The Leader's identity key, hex; else leader_pk.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to, of one file; the same without it.")
    ] = None,
    previous: Annotated[
        list[Path] | None,
        typer.Option(
            "--previous", help="A roster before this one that is not in signed_dir; repeat it."
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="It is the fleet's first roster: none was before it.")
    ] = False,
    task: Annotated[
        list[Path] | None,
        typer.Option("--task", help="A task that it serves and that is not in signed_dir yet."),
    ] = None,
    vouchers: Annotated[
        Path | None,
        typer.Option(help="Of the roster's new hosts; the file beside it without this."),
    ] = None,
    accept_change: Annotated[
        str | None,
        typer.Option(help="How much a week may change, where it is above 10 %: 90%, or 40 hosts."),
    ] = None,
    former_helper: Annotated[
        str | None,
        typer.Option(help="This Helper's key before, hex: rosters under it count as earlier ones."),
    ] = None,
    catalogue: CatalogueFile = None,
    json: JsonFlag = False,
) -> None:
    """Check what the Leader signed and put the Helper's signature beside it.

    A task's sections must be those of the catalogue that it names, and its noise what its own
    numbers ask for at least. A roster is compared
    with those in signed_dir: it starts with a week to come, gives no machine weight that was not
    free, has a voucher of a pinned operator for every new host, and changes at most a tenth of its
    hosts in a week unless you say how many. The counts of hosts added, removed and changed come
    first: compare them with what you know.

    Of several files each that passes is signed; the others are named, and the exit code is 3.
    """
    settings = None if config is None else load_helper(config)
    for path in (*files, *(previous or []), *(task or [])):
        if not path.is_dir():
            need_file(path, _SIGNED, "the Leader's operator makes and signs it")
    own_key = key or (None if settings is None else settings.key_dir / "identity.key")
    if own_key is None:
        raise usage_error("which key to sign with", "--key identity.key, or --config helper.toml")
    signing = load_identity(own_key)
    if leader is None and settings is None:
        raise usage_error("whose signature to expect", "--leader HEX, or --config helper.toml")
    leader_pk = settings.leader_pk if settings and leader is None else public_key(leader or "")
    with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
        found, refused = _asked(files)
        rosters = [path for path, content in found.items() if content.startswith(labels.ROSTER)]
        if len(rosters) > 1:
            names = ", ".join(str(path) for path in rosters)
            raise usage_error(f"expected one roster at a time, got {names}")
        evidence = NO_EVIDENCE
        parties = pinned_parties(leader_pk, signing.public_bytes)
        former = None if former_helper is None else public_key(former_helper)
        for path in rosters:
            if settings is None:
                raise usage_error(
                    f"{path}: a roster is held against the operators that helper.toml pins",
                    "name it: --config helper.toml",
                )
            folder = settings.signed_dir
            before = signed_before(folder, found[path], parties, former)
            evidence = replace(
                _evidence(path, settings, vouchers, accept_change),
                first=first,
                former_helper_pk=former,
                earlier=[*before, *(path.read_bytes() for path in previous or ())],
                tasks=[*signed_tasks(folder, parties), *(path.read_bytes() for path in task or ())],
            )
        sign = partial(
            check_and_countersign, leader_pk=leader_pk, helper=signing, evidence=evidence,
            catalogue=load_catalogue(catalogue), tell=_say_counts,
        )  # fmt: skip
        if len(files) == 1 and not files[0].is_dir():
            signed, summary = sign(found[files[0]])
            with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
                write_all_durably({out or files[0]: signed})
            emit({"file": str(out or files[0])} | summary, json)
            return
    if out is not None:
        raise usage_error("--out: expected one file to sign, got several")
    _sign_each(sign, found, refused, json)


def _asked(files: Sequence[Path]) -> tuple[dict[Path, bytes], dict[Path, Exception]]:
    """Read files as named, and what lacks the Helper's signature of each folder; each once.

    Returns     what is to be signed, and what lies in a folder and is not what its name says
    """
    found: dict[Path, bytes] = {}
    refused: dict[Path, Exception] = {}
    for named in files:
        if not named.is_dir():
            found[named] = read_bounded(named, MAX_FILE_BYTES)
            continue
        for path in (
            path for kind in _FOLDERS_HOLD for path in files_ending(named, kind, folders=None)
        ):
            try:
                content = _of_folder(path)
            except ReportRejected as refusal:
                refused[path] = refusal
                continue
            if _lacks(content):
                found[path] = content
    return found, refused


def _of_folder(path: Path) -> bytes:
    """Read what another company put into a folder: of the kind that its name says, or nothing.

    Raises      ReportRejected, OSError
    """
    label, body_bytes, name = {
        ".task": (labels.TASK, fields.MAX_TASK_BODY, "a task"),
        ".entry": (labels.ENTRY_ANSWER, fields.MAX_ENTRY_BODY, "an answer to a host"),
    }[path.suffix]
    try:
        content = read_bounded(path, body_bytes + SIGNED_OVERHEAD_BYTES)
    except UnfitFile as unfit:
        raise ReportRejected(Reason.LENGTH, f"{name} in a file", unfit.strerror) from unfit
    if not content.startswith(label):
        raise ReportRejected(Reason.VERSION, f"{name}, as its name says", "something else")
    return content


def _lacks(content: bytes) -> bool:
    try:
        return Signed.decode(content, label_of(content)).sig_helper == NO_SIGNATURE
    except ReportRejected:
        return True  # to be refused by name


def _sign_each(
    sign: Callable[[bytes], tuple[bytes, dict[str, Any]]],
    found: Mapping[Path, bytes],
    refused: dict[Path, Exception],
    json: bool,
) -> None:
    kinds = dict.fromkeys(("task", "roster", "entry"), 0)
    signed: dict[Path, bytes] = {}
    for path, content in found.items():
        try:
            signed[path], summary = sign(content)
        except (ReportRejected, ParameterError) as refusal:
            refused[path] = refusal
            continue
        kinds[summary["kind"]] += 1
        if summary["kind"] == "task":  # beside hundreds of answers one would not be noticed
            asks = "epsilon {epsilon:g}, n_min {n_min:,}, t {t:,}".format_map(summary)
            whose = f"{summary['series']} of {summary['domain']}"
            say(f"signed the task {printable(str(path))}: {whose}, {asks}")
    for path, why in refused.items():
        say(f"not signed: {printable(f'{path}: {why}')}")
    with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
        write_all_durably(signed)
    rows = [{"file": str(path), "why": str(why)} for path, why in refused.items()]
    emit({"signed": kinds, "refused": rows if json else len(rows)}, json)
    if refused:
        raise typer.Exit(ExitCode.REFUSED)


def _say_counts(counts: Mapping[str, float]) -> None:
    """Tell first, and also of a roster that is refused, what it changes; folded between counts."""
    lines = [""]
    for name, n in counts.items():
        one = f"{name} {n}"
        if lines[-1] and len(f"{lines[-1]}, {one},") > terminal_columns():
            lines[-1] += ","
            lines.append(one)
        else:
            lines[-1] += f"{', ' if lines[-1] else ''}{one}"
    say("\n".join(lines))


def _evidence(
    file: Path, settings: HelperConfig, vouchers: Path | None, accept_change: str | None
) -> RosterEvidence:
    if accept_change is not None:
        with reported(ExitCode.USAGE, ValueError):
            accepted_hosts(accept_change, 0)
    beside = vouchers or file.with_suffix(".vouchers")
    if vouchers is not None:
        need_file(vouchers, "vouchers of new hosts", "`leader roster build` writes them")
    return RosterEvidence(
        vouchers=read_bounded(beside, _MAX_VOUCHERS_BYTES) if beside.exists() else b"",
        operators=settings.operators,
        accepted_change=accept_change,
        fleet=settings.fleet,
    )
