"""`pointillist diagnosis`: record a dataset, judge the diagnosis by it, group the unknown."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from collectors.interface import SourceRegistry
from collectors.steps.steps_source import StepProbe, StepsSource
from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import HostSample
from diagnosis.frames.framer import Framer, LiveFrames, host_framer, host_registry
from edge_agent.local.words import counted
from pointillist.table import terminal_columns, value_lines

from .output import ExitCode, JsonFlag, emit, need_file, reported, say, usage_error

if TYPE_CHECKING:
    from pointillist.judging.groups import SpikeGroup


CALM_S: Final = 20.0
"""Seconds before a fault: a detector learns in them what is usual."""
QUIET: Final = "none"
_TOLD_EVERY_S: Final = 30


@dataclass(slots=True)
class RecordedSoFar:
    """What was written so far: when, and whom it saw; the frames themselves are in the file."""

    frames: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    subjects: set[str] = field(default_factory=set)

    def take(self, frame: HostSample) -> None:
        if not self.frames:
            self.began_ns = frame.boottime_ns - frame.span_ns
        self.ended_ns = frame.boottime_ns
        self.frames += 1
        self.subjects |= set(frame.subjects)


def record(
    out: Annotated[Path, typer.Option(help="The recording (Parquet); must not be there yet.")],
    watch: Annotated[
        list[str] | None,
        typer.Option(metavar="CGROUP", help="Cgroups to watch, as '/train/*'; give it again."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:FUNCTION", help="Function whose calls end a step; give it again."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="How long; else until Ctrl-C, which keeps the file.", min=1.0),
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option("--class", metavar="CAUSE",
                     help="What was wrong, by your own knowledge; none: nothing was."),
    ] = None,
    fault: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="FROM TO",
                     help="With --class: from which to which second it was there."),
    ] = None,
    injector: Annotated[
        str, typer.Option(help="With --class: by what; runs of one are held out together.")
    ] = "by hand",
    workload: Annotated[str, typer.Option(help="With --class: name of the job.")] = "own",
    seed: Annotated[int, typer.Option(help="With --class: a number of this run.")] = 1,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Record this host's own job, a frame a second, for `groups` and `agent diagnose --replay`.

    Needs root, as eBPF does. With --class the recording is labelled, and `train` and `evaluate`
    take it: disturb the job yourself at the times that --fault names, and only then.
    """
    spans = _spans(cause, fault, seconds, injector)
    if out.exists():
        raise usage_error(f"{out}: expected a new file, there is one already")
    probes = tuple(step_probe(text) for text in step or [])
    facts: dict[str, Any] = {"recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if cause is not None:
        facts |= {"workload": workload, "seed": seed, "class": cause, "intensity": ""}
    registry = host_registry()
    if probes:
        registry.register("steps", lambda: StepsSource(probes), probes)
    if os.geteuid() != 0:
        raise usage_error("expected root: eBPF needs it", "sudo pointillist diagnosis record ...")
    kept = capture(out, registry, host_framer(tuple(watch or ())), seconds, facts, spans)
    answer = {"file": str(out), "seconds": kept.frames, "subjects": sorted(kept.subjects)}
    emit(answer, json)
    if not answer["subjects"]:
        say("no subject was seen: name cgroups by --watch, or steps by --step")


def _spans(
    cause: str | None, fault: tuple[float, float] | None, seconds: float | None, injector: str
) -> list[dict[str, Any]] | None:
    """What is said of faults, in seconds from the beginning; None: nothing is."""
    known = [*(str(cause) for cause in Cause), QUIET]
    if cause is None:
        if fault is not None:
            raise usage_error("--fault: expected --class beside it")
        return None
    if cause not in known:
        raise usage_error(f"--class: expected one of {', '.join(known)}, got {cause!r}")
    if cause == QUIET:
        if fault is not None:
            raise usage_error("--fault: expected a cause, with --class none there is no fault")
        return []
    if fault is None:
        raise usage_error("--class: expected --fault FROM TO beside it, in seconds")
    begin, end = fault
    if begin < CALM_S or end <= begin or (seconds is not None and end > seconds):
        raise usage_error(
            f"--fault: expected a beginning after {CALM_S:g} calm seconds, and an end after it "
            f"within --seconds, got {begin:g} {end:g}"
        )
    return [{"cause": cause, "injector": injector, "begin_s": begin, "end_s": end}]


def capture(
    out: Path, registry: SourceRegistry, framer: Framer, seconds: float | None,
    facts: dict[str, Any], spans: list[dict[str, Any]] | None,
) -> RecordedSoFar:  # fmt: skip
    """Run sources and write their frames; Ctrl-C ends it and keeps what there is.

    spans       in seconds from the first frame on; None: the recording stays without labels
    Raises      CommandError when not one second was recorded
    """
    from diagnosis.frames.recording import RecordingWriter

    kept = RecordedSoFar()
    ends = None if seconds is None else time.monotonic() + seconds
    with (
        reported(ExitCode.UNAVAILABLE, OSError),
        LiveFrames(registry, framer) as live,
        RecordingWriter(out, facts) as writer,
    ):
        for absent in live.absent:
            say(f"source {absent.source} is absent: {absent.reason}")
        say(f"recording{'' if seconds is None else f' for {seconds:g} s'}; Ctrl-C ends it")
        try:
            for frame in live.frames(lambda: ends is not None and time.monotonic() >= ends):
                writer.append(frame)
                kept.take(frame)
                if kept.frames % _TOLD_EVERY_S == 0:
                    say(f"{kept.frames} s, subjects: {', '.join(sorted(kept.subjects)) or 'none'}")
        except KeyboardInterrupt:
            say("ended")
        if not kept.frames:
            raise usage_error("expected a second at least, nothing was recorded")
        writer.close(_labels(kept, spans))
    return kept


def _labels(kept: RecordedSoFar, spans: list[dict[str, Any]] | None) -> dict[str, Any]:
    """What is known at the end alone: the clock of the spans, and whom they struck."""
    if spans is None:
        return {}
    if not kept.subjects:
        say("no subject was watched: the recording has no label, and counts for nothing")
        return {}
    clocked = []
    for span in spans:
        start_ns = kept.began_ns + round(span["begin_s"] * 1e9)
        end_ns = min(kept.began_ns + round(span["end_s"] * 1e9), kept.ended_ns)
        if end_ns <= start_ns:
            say(f"ended before second {span['begin_s']:g}: the recording has no fault and no label")
            return {}
        clocked.append(
            {"cause": span["cause"], "injector": span["injector"], "start_ns": start_ns,
             "end_ns": end_ns}
        )  # fmt: skip
    return {"spans": clocked, "subjects": sorted(kept.subjects), "workers": 1}


def step_probe(text: str) -> StepProbe:
    """Read FILE:FUNCTION, or FILE:FUNCTION() where each call is a step. Raises CommandError."""
    path, colon, symbol = text.rpartition(":")
    name = symbol.removesuffix("()")
    if not colon or not path or not name:
        raise usage_error(f"--step: expected FILE:FUNCTION, got {text!r}")
    file = need_file(Path(path), "a program or library", "--step FILE:FUNCTION")
    return StepProbe(str(file.absolute()), name, returns=symbol != name)


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
        from pointillist.judging.results import evaluate as run
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
