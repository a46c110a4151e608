"""`pointillist agent diagnose`: why was it slow, from the journal, live, or from recordings."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .output import ExitCode, reported, say, usage_error

if TYPE_CHECKING:
    from pointillist.diagnose.finding_printer import Teller

    from .diagnose_asked import Asked, Told

_EPILOG: Final = """Examples:

pointillist agent diagnose   what this host's agent found, from its journal

pointillist agent diagnose --live   beside a running agent, or with sources of its own

pointillist agent diagnose --live --watch '/train/*' --step ./libtrain.so:train_step

pointillist agent diagnose --replay spike.parquet --plots pictures

pointillist agent diagnose --replay recordings --json   every recording and journal of a folder"""

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
    from pointillist.diagnose.finding_printer import Teller

    from .diagnose_asked import Asked

    _agree(live, replay, {"--watch": watch, "--step": step, "--seconds": seconds}, rhythm)
    if plots is not None:
        _folder(plots)
    width = shutil.get_terminal_size((100, 24)).columns
    teller = Teller(typer.echo, as_json=json, plots=plots, verbose=verbose, width=width)
    asked = Asked(tuple(watch or ()), tuple(step or ()), rhythm, subject, seconds)
    tell = asked.only(teller.tell)
    if replay is not None:
        from .diagnose_replay import replay_all

        replay_all(replay, asked, tell)
    elif live:
        _live(config, asked, tell)
    else:
        _journal(config, asked, tell)
    _farewell(teller, plots)


def _agree(live: bool, replay: Path | None, live_alone: dict[str, object], rhythm: bool) -> None:
    """Refuse options that would be passed over."""
    if live and replay is not None:
        raise usage_error("--live and --replay: expected one of them")
    if not live:
        for name in (name for name, given in live_alone.items() if given):
            raise usage_error(f"{name}: expected with --live alone")
    if rhythm and not live and replay is None:
        raise usage_error(
            "--rhythm: expected with --live or --replay", "a journal holds what was found then"
        )


def _folder(plots: Path) -> None:
    import pointillist.diagnose.spike_plot  # noqa: F401  (while libraries can be reached)

    if plots.exists() and not plots.is_dir():
        raise usage_error(f"--plots {plots}: expected a folder, is a file")
    with reported(ExitCode.UNAVAILABLE, OSError):
        plots.mkdir(parents=True, exist_ok=True)


def _farewell(teller: Teller, plots: Path | None) -> None:
    from edge_agent.local.words import counted

    if plots is None:
        return
    say(f"{counted(teller.drawn, 'picture')} in {plots}")
    missing = teller.diagnosed - teller.drawn
    if missing > 0:
        say(f"{counted(missing, 'spike')} without a picture: its seconds were not kept")


def _live(config: Path | None, asked: Asked, tell: Told) -> None:
    from .diagnose_live import agent_answers, follow, run_sources

    path = config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
    loaded = None if path is None else agent_file.load_file(path)
    if loaded is not None and not asked.own and agent_answers(loaded.live_socket):
        with suppress(KeyboardInterrupt):
            follow(loaded.journal_file, asked, tell)
        return
    run_sources(asked, None if loaded is None else loaded.diagnosis, tell)


def _journal(config: Path | None, asked: Asked, tell: Told) -> None:
    from .diagnose_replay import read_journal

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
