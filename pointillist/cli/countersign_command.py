"""`pointillist helper countersign`: check what the Leader signed, and sign it beside the Leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transport.process.printable import printable

from .output import ExitCode, JsonFlag, emit, need_file, reported, say, usage_error
from .party import load_helper, load_identity, public_key

if TYPE_CHECKING:
    from aggregator.enrolment.roster_review import RosterEvidence
    from aggregator.party.config import HelperConfig
    from aggregator.protocol.directory import PinnedParties
    from privacy.signing import SigningKey
    from wire.rejection import ReportRejected

EPILOG: Final = """Examples:

pointillist helper countersign next.roster --config helper.toml --previous fleet.roster

pointillist helper countersign joins/ --config helper.toml   each *.entry that lacks it"""

_MAX_VOUCHERS_BYTES: Final = 1 << 28
_SIGNED: Final = "a signed task, roster or entry"
_FOLDERS_HOLD: Final = (".task", ".entry")
"""What a folder stands for; a roster is asked for by its name, as a person compares its counts."""


@dataclass(frozen=True, slots=True)
class _Signer:
    """Who signs, and what a roster is held against.

    evidence    for each roster that was named
    """

    key: SigningKey
    parties: PinnedParties
    evidence: Mapping[Path, RosterEvidence]

    def sign(self, file: Path, content: bytes) -> tuple[bytes, dict[str, Any]]:
        """Check a file's content and put the Helper's signature beside the Leader's.

        Raises      ReportRejected, ParameterError
        """
        from aggregator.enrolment.roster_review import NO_EVIDENCE
        from aggregator.enrolment.tasks import check_and_countersign

        return check_and_countersign(
            content,
            self.parties.leader_pk,
            self.key,
            evidence=self.evidence.get(file, NO_EVIDENCE),
            tell=_say_counts,
        )


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
            "--previous",
            help="A roster before this one that is not in signed_dir; repeat it.",
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
    json: JsonFlag = False,
) -> None:
    """Check what the Leader signed and put the Helper's signature beside it.

    A task is recomputed: noise below what its own numbers ask for is refused. A roster is compared
    with those in signed_dir: it starts with a week to come, gives no machine weight that was not
    free, has a voucher of a pinned operator for every new host, and changes at most a tenth of its
    hosts in a week unless you say how many. The counts of hosts added, removed and changed come
    first: compare them with what you know.

    Of several files each that passes is signed; the others are named, and the exit code is 3.
    """
    from aggregator.protocol.directory import PinnedParties
    from privacy.errors import ParameterError
    from wire.rejection import ReportRejected

    settings = None if config is None else load_helper(config)
    for path in (*files, *(previous or []), *(task or [])):
        if not path.is_dir():
            need_file(path, _SIGNED, "the Leader's operator makes and signs it")
    signing = load_identity(_identity_file(key, settings))
    parties = PinnedParties(_leader_pk(leader, settings), signing.public_bytes)
    with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
        asked = _asked(files)
        rosters = [path for path, content in asked.found.items() if _is_roster(content)]
        if len(rosters) > 1:
            names = ", ".join(str(path) for path in rosters)
            raise usage_error(f"expected one roster at a time, got {names}")
        evidence = {}
        former = None if former_helper is None else public_key(former_helper)
        for path in rosters:
            held_by = _need(settings, path)
            told = _evidence(path, held_by, vouchers, accept_change)
            told = replace(told, first=first, former_helper_pk=former)
            evidence[path] = _known(
                asked.found[path], held_by, parties, told, previous or (), task or ()
            )
        signer = _Signer(signing, parties, evidence)
        if len(files) == 1 and not files[0].is_dir():
            signed, summary = signer.sign(files[0], asked.found[files[0]])
            _write({out or files[0]: signed})
            emit({"file": str(out or files[0])} | summary, json)
            return
    if out is not None:
        raise usage_error("--out: expected one file to sign, got several")
    _sign_each(signer, asked, json)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be signed, each read once; and what lies in a folder and is not what it says."""

    found: dict[Path, bytes] = field(default_factory=dict)
    refused: dict[Path, ReportRejected] = field(default_factory=dict)


def _asked(files: Sequence[Path]) -> _Asked:
    """Files as named, and what lacks the Helper's signature of each folder."""
    from aggregator.enrolment.tasks import MAX_FILE_BYTES
    from transport.files.private_files import read_bounded
    from wire.rejection import ReportRejected

    asked = _Asked()
    for named in files:
        if not named.is_dir():
            asked.found[named] = read_bounded(named, MAX_FILE_BYTES)
            continue
        for path in (path for kind in _FOLDERS_HOLD for path in sorted(named.glob(f"*{kind}"))):
            try:
                content = _of_folder(path)
            except ReportRejected as refusal:
                asked.refused[path] = refusal
                continue
            if _lacks(content):
                asked.found[path] = content
    return asked


def _of_folder(path: Path) -> bytes:
    """Read what another company put into a folder: of the kind that its name says, or nothing.

    Raises      ReportRejected, OSError
    """
    from transport.files.private_files import UnfitFile, read_bounded
    from wire import fields, labels
    from wire.envelope import SIGNED_OVERHEAD_BYTES
    from wire.rejection import Reason, ReportRejected

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
    from aggregator.enrolment.tasks import label_of
    from wire.envelope import Signed
    from wire.fields import NO_SIGNATURE
    from wire.rejection import ReportRejected

    try:
        return Signed.decode(content, label_of(content)).sig_helper == NO_SIGNATURE
    except ReportRejected:
        return True  # to be refused by name


def _is_roster(content: bytes) -> bool:
    from wire import labels

    return content.startswith(labels.ROSTER)


def _sign_each(signer: _Signer, asked: _Asked, json: bool) -> None:
    from privacy.errors import ParameterError
    from wire.rejection import ReportRejected

    kinds = dict.fromkeys(("task", "roster", "entry"), 0)
    signed: dict[Path, bytes] = {}
    refused: dict[Path, Exception] = dict(asked.refused)
    for path, content in asked.found.items():
        try:
            signed[path], summary = signer.sign(path, content)
        except (ReportRejected, ParameterError) as refusal:
            refused[path] = refusal
            continue
        kinds[summary["kind"]] += 1
        if summary["kind"] == "task":
            _say_task(path, summary)
    for path, why in refused.items():
        say(f"not signed: {printable(f'{path}: {why}')}")
    _write(signed)
    rows = [{"file": str(path), "why": str(why)} for path, why in refused.items()]
    emit({"signed": kinds, "refused": rows if json else len(rows)}, json)
    if refused:
        raise typer.Exit(ExitCode.REFUSED)


def _say_task(path: Path, task: Mapping[str, Any]) -> None:
    """Tell what a task asks of hosts: beside hundreds of answers one would not be noticed."""
    asks = f"epsilon {task['epsilon']:g}, n_min {task['n_min']:,}, t {task['t']:,}"
    say(f"signed the task {printable(str(path))}: {task['series']} of {task['domain']}, {asks}")


def _write(signed: Mapping[Path, bytes]) -> None:
    from aggregator.state.state_file import StorageUnavailable, write_all_durably

    with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
        write_all_durably(signed)


def _known(
    content: bytes,
    settings: HelperConfig,
    parties: PinnedParties,
    told: RosterEvidence,
    previous: Sequence[Path],
    tasks: Sequence[Path],
) -> RosterEvidence:
    """Add rosters before this one, and tasks: of signed_dir, and as named."""
    from aggregator.enrolment.roster_review import signed_before, signed_tasks

    folder = settings.signed_dir
    before = signed_before(folder, content, parties, told.former_helper_pk)
    before += [path.read_bytes() for path in previous]
    served = signed_tasks(folder, parties)
    served += [path.read_bytes() for path in tasks]
    return replace(told, earlier=before, tasks=served)


def _say_counts(counts: Mapping[str, float]) -> None:
    """Tell first, and also of a roster that is refused, what it changes; folded between counts."""
    from pointillist.table import terminal_columns

    lines = [""]
    for name, n in counts.items():
        one = f"{name} {n}"
        if lines[-1] and len(f"{lines[-1]}, {one},") > terminal_columns():
            lines[-1] += ","
            lines.append(one)
        else:
            lines[-1] += f"{', ' if lines[-1] else ''}{one}"
    say("\n".join(lines))


def _need(settings: HelperConfig | None, file: Path) -> HelperConfig:
    if settings is None:
        raise usage_error(
            f"{file}: a roster is held against the operators that helper.toml pins",
            "name it: --config helper.toml",
        )
    return settings


def _evidence(
    file: Path, settings: HelperConfig, vouchers: Path | None, accept_change: str | None
) -> RosterEvidence:
    """Read who vouches for a roster's hosts, and what its reader was told of it."""
    from aggregator.enrolment.roster_review import RosterEvidence, accepted_hosts
    from transport.files.private_files import read_bounded

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
    )


def _leader_pk(leader: str | None, settings: HelperConfig | None) -> bytes:
    if leader is not None:
        return public_key(leader)
    if settings is None:
        raise usage_error("whose signature to expect", "--leader HEX, or --config helper.toml")
    return settings.leader_pk


def _identity_file(key: Path | None, settings: HelperConfig | None) -> Path:
    if key is not None:
        return key
    if settings is None:
        raise usage_error("which key to sign with", "--key identity.key, or --config helper.toml")
    return settings.key_dir / "identity.key"
