"""`pointillist agent diagnose`: why was it slow, from the journal, live, or from recordings."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from collectors.boot_clock import read_point
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.interface import SourceUnavailable
from collectors.steps.steps_source import StepProbe, StepsSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding, SpikeBegan
from diagnosis.detect.journal import JournalReader, Series, SignalHistory
from diagnosis.frames.frame import HostSample
from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from edge_agent.journal import follow_lines, read_lines
from edge_agent.local.live_socket import LiveClient
from edge_agent.local.words import counted
from pointillist.diagnose.finding_layout import BoottimeReader, recording_clock, unix_clock
from pointillist.diagnose.finding_printer import Teller, Watching
from transport.files.own_names import files_ending

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .diagnosis import step_probe
from .output import CommandError, ExitCode, examples, reported, say, usage_error

if TYPE_CHECKING:
    from edge_agent.config import DiagnosisSection

Told = Callable[[Finding | Series, BoottimeReader], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that stand.

    steps     texts FILE:FUNCTION of the command line; `probes` those of a configuration
    """

    watch: tuple[str, ...]
    steps: tuple[str, ...]
    rhythm: bool
    subject: str | None
    seconds: float | None
    probes: tuple[StepProbe, ...] = ()

    @property
    def own(self) -> bool:
        """Whether something is asked for that a running agent may not do."""
        return bool(self.watch or self.steps or self.rhythm)

    def with_section(self, section: DiagnosisSection | None) -> Asked:
        if section is None:
            return self
        return replace(
            self, watch=self.watch or section.watch, probes=() if self.steps else section.steps
        )

    def only(self, tell: Told) -> Told:
        def passed(found: Finding | Series, clock: BoottimeReader) -> None:
            if self.wants(found.subject):
                tell(found, clock)

        return passed

    def wants(self, subject: str) -> bool:
        return self.subject is None or fnmatchcase(subject, self.subject)

    def diagnoser(self) -> Diagnoser:
        return Diagnoser(source="rhythm" if self.rhythm else "measured")

    def refuse_strangers(self, known: Iterable[str]) -> None:
        """Say that no subject is asked for. Raises CommandError."""
        if self.subject is None:
            return
        there = ", ".join(sorted(known)[:5]) or "nobody"
        raise usage_error(f"--subject {self.subject}: no subject fits; there was {there}")


def found_in(
    diagnoser: Diagnoser, frames: Iterable[HostSample], watching: Watching
) -> Iterator[Finding | Series]:
    pictures = SignalHistory()
    for frame in frames:
        findings = diagnoser.handle(frame)
        watching.take(frame, diagnoser)
        yield from findings
        yield from pictures.take(frame, findings)
    yield from pictures.rest()


_JOURNAL: Final = ".jsonl"
_RECORDING: Final = ".parquet"
_WHAT: Final = "a recording (.parquet), a journal (.jsonl), or a folder of them"


def replay_all(path: Path, asked: Asked, tell: Told) -> None:
    """Replay a file, or those of a folder in the order of their names. Raises CommandError."""
    if not path.exists():
        raise usage_error(f"{path}: there is no such file", f"expected {_WHAT}")
    if not path.is_dir():
        _replay_one(path, asked, tell)
        return
    with reported(ExitCode.USAGE, OSError):
        files = files_ending(path, _JOURNAL, _RECORDING)
    if not files:
        raise usage_error(f"{path}: the folder holds none", f"expected {_WHAT}")
    failed: list[CommandError] = []
    for file in files:
        try:
            _replay_one(file, asked, tell)
        except CommandError as error:  # the others can be read all the same
            say(f"{file.name}: {error}")
            failed.append(error)
    if len(failed) == len(files):
        raise failed[0]


def _replay_one(path: Path, asked: Asked, tell: Told) -> None:
    if path.suffix == _JOURNAL:
        if asked.rhythm:
            raise usage_error(f"{path}: --rhythm: expected a recording of frames")
        say(f"{path.name}: a journal")
        if not read_journal(path, asked, tell, name=path.stem):
            say(f"{path.name}: no finding")
        return
    _replay_recording(path, asked, tell)


def read_journal(path: Path, asked: Asked, tell: Told, name: str = "") -> int:
    """Tell the findings of a journal; give how many there were. Raises CommandError."""
    reader = JournalReader()
    told = 0
    subjects: set[str] = set()
    for line in reader.read(_lines(path)):
        offset = unix_clock(line.offset_ns)
        tell(line.finding, BoottimeReader(offset.zero_ns, is_unix=True, name=name))
        subjects.add(line.finding.subject)
        told += 1
    if reader.damaged and not told:
        raise usage_error(f"{path}: expected the journal of an agent, got other lines")
    if reader.damaged:
        say(f"{counted(reader.damaged, 'damaged line')} left out")
    if told and not any(map(asked.wants, subjects)):
        asked.refuse_strangers(subjects)
    return told


def _lines(path: Path) -> Iterator[bytes]:
    with reported(ExitCode.USAGE, OSError):
        yield from read_lines(path)


def _replay_recording(path: Path, asked: Asked, tell: Told) -> None:
    # Recordings are Parquet: an agent's installation reads journals, and goes without PyArrow.
    from diagnosis.frames.recording import RecordingError, read_meta

    with reported(ExitCode.USAGE, RecordingError, OSError):
        facts = read_meta(path)
    say(f"{path.name}: {_header(facts)}")
    diagnoser, watching = asked.diagnoser(), Watching(pattern=asked.subject)
    frames = _frames(path)
    first = next(frames, None)
    if first is None:
        raise usage_error(f"{path}: the recording holds no frame")
    recorded = str(facts.get("recorded", ""))
    clock = recording_clock(first.boottime_ns - first.span_ns, path.stem, recorded)
    spikes = 0
    for found in found_in(diagnoser, chain([first], frames), watching):
        spikes += asked.wants(found.subject) and isinstance(found, SpikeBegan)
        tell(found, clock)
    if not watching.subjects and watching.others:
        asked.refuse_strangers(watching.others)
    if not watching.known and not spikes:
        raise usage_error(
            f"{path}: nothing could be judged: {counted(len(watching.subjects), 'subject')} made "
            f"steps in {watching.span_s:.0f} s",
            "what is usual is learnt in the first 10 to 15 s of steps",
        )
    say(watching.summary(spikes))


def _frames(path: Path) -> Iterator[HostSample]:
    from diagnosis.frames.recording import RecordingError, iterate

    with reported(ExitCode.USAGE, RecordingError, OSError):
        yield from iterate(path)


def _header(facts: Mapping[str, Any]) -> str:
    """Say what a recording's maker says was done to the machine: no part of the diagnosis."""
    parts = [str(facts["workload"])] if facts.get("workload") else []
    if facts.get("recorded"):
        parts.append(f"recorded {facts['recorded']}")
    cause = str(facts.get("cause") or facts.get("class") or "")
    if cause == "none" and not facts.get("injector"):
        parts.append("nothing was done to it")
    elif cause:
        by = f" by {facts['injector']}" if facts.get("injector") else ""
        level = f", {facts['intensity']}" if facts.get("intensity") else ""
        parts.append(f"made with {cause}{by}{level} (its maker's word, unknown to the diagnosis)")
    return "; ".join(parts) or "a recording"


_POLL_S: Final = 0.25
_MOST_CGROUPS: Final = 100_000
_NEEDED: Final = "ebpf"


def agent_answers(socket: Path) -> bool:
    client = LiveClient(socket)
    try:
        client.poll()
    except OSError:
        return False
    client.close()
    return True


def follow(journal: Path, asked: Asked, tell: Told) -> None:
    """Tell what a running agent writes to its journal from now on. Raises CommandError."""
    if not journal.exists():
        raise usage_error(
            f"{journal}: the running agent keeps no journal",
            "[sources] ebpf = true and [diagnosis] enabled = true make it diagnose",
        )
    say("beside the running agent, whose journal is followed; `agent top` shows what it watches; "
        "Ctrl-C ends this")  # fmt: skip
    reader = JournalReader()
    told = 0
    for line in reader.read(_followed(journal, _Until(asked.seconds))):
        told += asked.wants(line.finding.subject)
        tell(line.finding, unix_clock(line.offset_ns))
    if not told:
        say("the agent found nothing meanwhile")


def _followed(journal: Path, until: _Until) -> Iterator[bytes]:
    with reported(ExitCode.UNAVAILABLE, OSError):  # of reading: a closed pipe ends as elsewhere
        yield from follow_lines(journal, until.waits)


class _Until:
    """The end of what was asked for; seconds: None stands for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds

    def over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def waits(self) -> bool:
        if self.over():
            return False
        time.sleep(_POLL_S)
        return True


def run_sources(asked: Asked, section: DiagnosisSection | None, tell: Told) -> None:
    """Run sources in this process and tell what is found. Raises CommandError.

    section   of a configuration: what the command line leaves open; None: there is none
    """
    named, asked = asked, asked.with_section(section)
    probes = (*map(step_probe, asked.steps), *asked.probes)
    diagnoser = asked.diagnoser()
    registry = host_registry()
    if probes:
        registry.register("steps", lambda: StepsSource(probes), probes)
    clock = unix_clock(read_point().offset_ns)
    watching = Watching(say, asked.subject)
    with LiveFrames(registry, host_framer(asked.watch)) as frames:
        _refuse_the_impossible(frames, named)
        say("no agent is asked: sources of its own; what is usual is learnt from the first 15 s "
            "or so of steps; Ctrl-C ends this")  # fmt: skip
        spikes = 0
        interrupted = True
        with suppress(KeyboardInterrupt):
            for found in found_in(diagnoser, frames.frames(_Until(asked.seconds).over), watching):
                spikes += asked.wants(found.subject) and isinstance(found, SpikeBegan)
                tell(found, clock)
            interrupted = False
    if not interrupted and not watching.known and not spikes:
        _nothing_judged(watching, asked)
    say(watching.summary(spikes))


def _nothing_judged(watching: Watching, asked: Asked) -> None:
    if not watching.subjects and watching.others:
        asked.refuse_strangers(watching.others)
    if watching.subjects:
        raise usage_error(
            f"nothing could be judged: {counted(len(watching.subjects), 'subject')} seen, but what "
            f"is usual was not learnt in {watching.span_s:.0f} s",
            "let it run for 20 s or more",
        )
    raise usage_error(
        f"nothing could be judged: nobody made steps in {watching.span_s:.0f} s",
        "--watch names cgroups, --step a function whose calls end a step; a rhythm is known "
        "after some 15 s",
    )


def _refuse_the_impossible(frames: LiveFrames, asked: Asked) -> None:
    """Say at once where nothing can be found. Raises CommandError.

    asked   of the command line: who names something there expects it to be
    """
    for absence in frames.absent:
        if absence.source in (_NEEDED, "steps"):
            root = "run it as root: eBPF needs it" if os.geteuid() else None
            raise usage_error(
                f"nothing can be found without {absence.source}: {absence.reason}", root
            )
        say(f"source {absence.source} is absent: {absence.reason}")
    steps = [source for source in frames.running if isinstance(source, StepsSource)]
    for probe in (gone for source in steps for gone in source.absent):
        if asked.steps:
            raise usage_error(f"--step {probe.source}: {probe.reason}")
        say(f"no steps by {probe.source}: {probe.reason}")  # of a configuration, for other days too
    _need_cgroups(asked.watch)


def _need_cgroups(patterns: Sequence[str]) -> None:
    left = set(patterns)
    for name in _cgroups() if left else ():
        left = {pattern for pattern in left if not fnmatchcase(name, pattern)}
        if not left:
            return
    for pattern in sorted(left):
        raise usage_error(
            f"--watch {pattern}: no cgroup matches",
            "systemd-cgls or `pointillist agent top` shows their names; start the job first",
        )


def _cgroups() -> Iterator[str]:
    with reported(ExitCode.UNAVAILABLE, SourceUnavailable):
        root = Path(hierarchy_of("cpu").path)
    for number, (folder, _, _) in enumerate(os.walk(root)):
        if number >= _MOST_CGROUPS:
            return
        relative = Path(folder).relative_to(root).as_posix()
        yield "/" if relative == "." else f"/{relative}"


_EPILOG: Final = examples("""
pointillist agent diagnose   what this host's agent found, from its journal
pointillist agent diagnose --live   beside a running agent, or with sources of its own
pointillist agent diagnose --live --watch '/train/*' --step ./libtrain.so:train_step
pointillist agent diagnose --replay spike.parquet --plots pictures
pointillist agent diagnose --replay recordings --json   every recording and journal of a folder""")

app = typer.Typer()


@app.command(epilog=_EPILOG)
def diagnose(
    config: AgentConfigOption = None,
    live: Annotated[bool, typer.Option("--live", help="Follow what is found from now on.")] = False,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Diagnose a recording of frames (Parquet), read a journal (JSON lines) from "
            "elsewhere, or take a folder of both."
        ),
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(help="With --live: cgroups to watch, as '/train/*'; may be given again."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(help="With --live: FILE:FUNCTION whose calls end a step; may be given again."),
    ] = None,
    rhythm: Annotated[
        bool, typer.Option("--rhythm", help="Go by the rhythm even where steps are marked.")
    ] = False,
    subject: Annotated[
        str | None, typer.Option(help="A pattern of subjects, as '/train/*'; others are left out.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Draw each spike into this folder, made if need be.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="End --live after so long.", min=1.0)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Every signal, with its name and plain figures.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines: one document a finding, as it comes.")
    ] = False,
) -> None:
    """Say when steps became slow, and why: cause, confidence, evidence and what to look at next.

    Without --live or --replay it reads the journal that the agent of this host keeps. --live beside
    a running agent follows that journal. Without an agent, or with --watch, --step or --rhythm, it
    runs the sources itself, as root; what these leave open is read from the diagnosis section of
    the file, where there is one.
    """
    _agree(live, replay, {"--watch": watch, "--step": step, "--seconds": seconds}, rhythm)
    if plots is not None:
        import pointillist.diagnose.spike_plot  # noqa: F401  (while libraries can be reached)

        if plots.exists() and not plots.is_dir():
            raise usage_error(f"--plots {plots}: expected a folder, is a file")
        with reported(ExitCode.UNAVAILABLE, OSError):
            plots.mkdir(parents=True, exist_ok=True)
    width = shutil.get_terminal_size((100, 24)).columns
    teller = Teller(typer.echo, as_json=json, plots=plots, verbose=verbose, width=width)
    asked = Asked(tuple(watch or ()), tuple(step or ()), rhythm, subject, seconds)
    tell = asked.only(teller.tell)
    if replay is not None:
        replay_all(replay, asked, tell)
    elif live:
        path = config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
        loaded = None if path is None else agent_file.load_file(path)
        if loaded is not None and not asked.own and agent_answers(loaded.live_socket):
            with suppress(KeyboardInterrupt):
                follow(loaded.journal_file, asked, tell)
        else:
            run_sources(asked, None if loaded is None else loaded.diagnosis, tell)
    else:
        _journal(config, asked, tell)
    if plots is not None:
        say(f"{counted(teller.drawn, 'picture')} in {plots}")
        missing = teller.diagnosed - teller.drawn
        if missing > 0:
            say(f"{counted(missing, 'spike')} without a picture: its seconds were not kept")


def _agree(live: bool, replay: Path | None, live_alone: dict[str, object], rhythm: bool) -> None:
    if live and replay is not None:
        raise usage_error("--live and --replay: expected one of them")
    if not live:
        for name in (name for name, given in live_alone.items() if given):
            raise usage_error(f"{name}: expected with --live alone")
    if rhythm and not live and replay is None:
        raise usage_error(
            "--rhythm: expected with --live or --replay", "a journal holds what was found then"
        )


def _journal(config: Path | None, asked: Asked, tell: Told) -> None:
    if config is None and not DEFAULT_CONFIG.exists():
        raise usage_error(
            f"{DEFAULT_CONFIG}: no agent is set up here, so that there is no journal to read",
            "--config names another file; --live and --replay need none",
        )
    loaded = agent_file.load_file(config or DEFAULT_CONFIG)
    with reported(ExitCode.UNAVAILABLE, OSError):
        there = loaded.journal_file.exists()
    if not there:
        raise usage_error(
            f"{loaded.journal_file}: there is no journal: no agent that diagnoses has run here",
            "`pointillist agent run` with [sources] ebpf = true and [diagnosis] keeps one; "
            "--live needs none",
        )
    if not read_journal(loaded.journal_file, asked, tell):
        say("the journal holds no finding: the agent found nothing yet")
