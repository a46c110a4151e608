"""`pointillist agent diagnose`: why was it slow, from the journal, live, or from recordings."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

import typer

from collectors.boot_clock import read_point
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.interface import SourceUnavailable
from collectors.steps.steps_source import StepsSource
from diagnosis.detect.findings import SpikeBegan
from diagnosis.detect.journal import JournalReader
from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from edge_agent.config import DiagnosisSection
from edge_agent.journal import follow_lines
from edge_agent.local.live_socket import LiveClient
from edge_agent.local.words import counted
from pointillist.diagnose.finding_layout import unix_clock
from pointillist.diagnose.finding_printer import Teller, Watching

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .diagnose_replay import Asked, Told, found_in, read_journal, replay_all
from .diagnosis_record import step_probe
from .output import ExitCode, examples, reported, say, usage_error

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
    with reported(ExitCode.UNAVAILABLE, OSError):
        for line in reader.read(follow_lines(journal, _Until(asked.seconds).waits)):
            told += asked.wants(line.finding.subject)
            tell(line.finding, unix_clock(line.offset_ns))
    if not told:
        say("the agent found nothing meanwhile")


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
        bool,
        typer.Option("--rhythm", help="Go by the rhythm even where steps are marked."),
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
        bool,
        typer.Option("--json", help="Print JSON lines: one document a finding, as it comes."),
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
