"""`pointillist agent diagnose`: why was it slow, from the journal, live, or from a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import ExitCode, JsonFlag, need_file, reported, say, usage_error

if TYPE_CHECKING:
    from edge_agent.diagnosis.diagnoser import Diagnoser
    from edge_agent.diagnosis.findings import Finding
    from edge_agent.diagnosis.trail import Series
    from edge_agent.frames.frame import Frame
    from pointillist.diagnose.told import Clock, Teller

EPILOG: Final = """Examples:

pointillist agent diagnose   what this host's agent found, from its journal

pointillist agent diagnose --live   beside a running agent, or with sources of its own

pointillist agent diagnose --live --watch '/train/*' --step ./libtrain.so:train_step

pointillist agent diagnose --replay spike.parquet --plots pictures --json"""

_DEFAULT: Final = Path("/etc/pointillist/agent.toml")
_POLL_S: Final = 0.25


def diagnose(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file; else /etc/pointillist/agent.toml."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow what is found from now on.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Diagnose a recording of frames (Parquet).")
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(help="Live, without an agent: cgroups to watch, as '/train/*'; repeat."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(help="Likewise: FILE:FUNCTION whose calls end a step; repeat."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A model file of your own.")] = None,
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
    json: JsonFlag = False,
) -> None:
    """Say when steps became slow, and why: cause, confidence and evidence.

    Without --live or --replay it reads the journal that the agent of this host keeps. --live beside
    a running agent follows that journal; without an agent it runs the sources itself, as root.
    With --json each finding is a JSON document on a line of its own.
    """
    from fnmatch import fnmatchcase

    from pointillist.diagnose.told import Teller

    if live and replay is not None:
        raise usage_error("--live and --replay: expected one of them")
    if plots is not None:
        import pointillist.diagnose.plot  # noqa: F401  (while libraries can be reached)

        with reported(ExitCode.UNAVAILABLE, OSError):
            plots.mkdir(parents=True, exist_ok=True)
    teller = Teller(typer.echo, as_json=json, plots=plots)

    def tell(found: Finding | Series, clock: Clock) -> None:
        if subject is None or fnmatchcase(found.subject, subject):
            teller.tell(found, clock)

    if replay is not None:
        _replay(replay, model, rhythm, tell)
    elif live:
        with suppress(KeyboardInterrupt):
            _live(config, watch or [], step or [], model, rhythm, tell, seconds)
    else:
        _journal(config, tell)
    _farewell(teller, plots, json)


_Tell = Callable[..., None]


def _farewell(teller: Teller, plots: Path | None, json: bool) -> None:
    if not teller.told and not json:
        say("nothing was found")
    if teller.drawn:
        say(f"{teller.drawn} pictures in {plots}")


def _diagnoser(model: Path | None, rhythm: bool) -> Diagnoser:
    from edge_agent.diagnosis.diagnoser import Diagnoser
    from edge_agent.diagnosis.model_fields import ModelError
    from edge_agent.diagnosis.model_file import load_model

    if model is not None:
        need_file(model, "a model of causes", "`pointillist diagnosis train` writes one")
    with reported(ExitCode.USAGE, ModelError, OSError):
        loaded = load_model(model)
    return Diagnoser(model=loaded, source="rhythm" if rhythm else "measured")


def _found(diagnoser: Diagnoser, frames: Iterable[Frame]) -> Iterator[Finding | Series]:
    """Give the findings of frames, and the picture of each spike."""
    from edge_agent.diagnosis.trail import Pictures

    pictures = Pictures()
    for frame in frames:
        findings = diagnoser.handle(frame)
        yield from findings
        yield from pictures.take(frame, findings)
    yield from pictures.rest()


def _replay(path: Path, model: Path | None, rhythm: bool, tell: _Tell) -> None:
    from edge_agent.frames.recording import RecordingError, iterate, read_meta
    from pointillist.diagnose.told import recording_clock

    need_file(path, "a recording of frames", "`make bench-diagnosis ARGS=record` makes some")
    diagnoser = _diagnoser(model, rhythm)
    with reported(ExitCode.USAGE, RecordingError, OSError):
        facts = read_meta(path)
        words = (f"{name} {facts[name]}" for name in _SHOWN_FACTS if name in facts)
        say(f"{path.name}: {', '.join(words) or 'a recording'}")
        frames = iterate(path)
        first = next(frames, None)
        if first is None:
            return
        clock = recording_clock(first.boottime_ns - first.span_ns)
        for found in _found(diagnoser, _after(first, frames)):
            tell(found, clock)


_SHOWN_FACTS: Final = ("workload", "cause", "class", "injector", "intensity", "seed")
"""What a recording's metadata may say of what was done to the machine."""


def _after(first: Frame, rest: Iterator[Frame]) -> Iterator[Frame]:
    yield first
    yield from rest


def _journal(config: Path | None, tell: _Tell) -> None:
    from edge_agent.diagnosis.journal_lines import JournalReader
    from edge_agent.journal import read_lines
    from pointillist.diagnose.told import unix_clock

    from . import agent

    loaded = agent.load_file(config or _DEFAULT)
    reader = JournalReader()
    try:
        for line in reader.read(read_lines(loaded.journal_file)):
            tell(line.finding, unix_clock(line.offset_ns))
    except FileNotFoundError:
        say(f"{loaded.journal_file}: no journal yet: diagnosis starts with [sources] ebpf = true")
    if reader.damaged:
        say(f"{reader.damaged} damaged lines were left out")


def _live(
    config: Path | None, watch: list[str], step: list[str], model: Path | None, rhythm: bool,
    tell: _Tell, seconds: float | None,
) -> None:  # fmt: skip
    from . import agent

    ends = None if seconds is None else time.monotonic() + seconds
    own = bool(watch or step or model or rhythm)
    path = config or (_DEFAULT if _DEFAULT.exists() else None)
    if path is not None and not own:
        loaded = agent.load_file(path)
        if _is_running(loaded.live_socket):
            say("beside the running agent; Ctrl-C ends this")
            _follow(loaded.journal_file, tell, ends)
            return
    _run_sources(watch, step, _diagnoser(model, rhythm), tell, ends)


def _is_running(socket: Path) -> bool:
    from edge_agent.local.live_socket import LiveClient

    client = LiveClient(socket)
    try:
        client.poll()
    except OSError:
        return False
    client.close()
    return True


def _follow(journal: Path, tell: _Tell, ends: float | None) -> None:
    """Tell what is written to a journal from now on."""
    from edge_agent.diagnosis.journal_lines import JournalReader
    from edge_agent.journal import follow_lines
    from pointillist.diagnose.told import unix_clock

    reader = JournalReader()
    lines = follow_lines(journal, lambda: _waits(ends))
    with reported(ExitCode.UNAVAILABLE, OSError):
        for line in reader.read(lines):
            tell(line.finding, unix_clock(line.offset_ns))


def _waits(ends: float | None) -> bool:
    """Wait a moment for more; False once the time is up."""
    if ends is not None and time.monotonic() >= ends:
        return False
    time.sleep(_POLL_S)
    return True


def _run_sources(
    watch: list[str], step: list[str], diagnoser: Diagnoser, tell: _Tell, ends: float | None
) -> None:
    from edge_agent.boot_clock import read_point
    from edge_agent.frames.framer import Framer
    from edge_agent.frames.live import LiveFrames, host_registry
    from edge_agent.sources.steps import StepsSource
    from pointillist.diagnose.told import unix_clock

    probes = tuple(_step_probe(text) for text in step)
    registry = host_registry()
    if probes:
        registry.register("steps", lambda: StepsSource(probes), probes)
    clock = unix_clock(read_point().offset_ns)
    with LiveFrames(registry, Framer(watch=tuple(watch))) as frames:
        for one in frames.absent:
            say(f"source {one.source} is absent: {one.reason}")
        if not frames.running:
            raise usage_error("no source runs here", "run it as root: eBPF needs it")
        say("no agent runs here: with sources of its own; what is usual is learnt first, "
            "some 15 s; Ctrl-C ends this")  # fmt: skip

        def over() -> bool:
            return ends is not None and time.monotonic() >= ends

        for found in _found(diagnoser, frames.frames(over)):
            tell(found, clock)


def _step_probe(text: str) -> Any:
    """Read FILE:FUNCTION, or FILE:FUNCTION() where each call is a step."""
    from edge_agent.sources.step_programs import StepProbe

    path, colon, symbol = text.rpartition(":")
    returns = symbol.endswith("()")
    symbol = symbol.removesuffix("()")
    if not colon or not path or not symbol:
        raise usage_error(f"--step: expected FILE:FUNCTION, got {text!r}")
    return StepProbe(str(need_file(Path(path), "a program or library", "--step FILE:FUNCTION")
                         .absolute()), symbol, returns)  # fmt: skip
