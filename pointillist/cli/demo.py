"""`pointillist demo`: a private fleet of thousands of GPUs on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from collectors.interface import SourceUnavailable
from kernels.families import FamilyRules
from pointillist.play.stage import Stage, print_summary

if TYPE_CHECKING:
    from pointillist.play.demo_fleet import DemoFleet
    from pointillist.play.demo_plan import DemoPlan
    from pointillist.play.demo_run import DemoPages
    from pointillist.play.demo_tally import DemoTally
    from pointillist.play.processes import Family

from .output import CommandError, ExitCode, JsonFlag, emit, open_page, say, unavailable, usage_error
from .simulate import Terminated, interrupt_on_signals, keep, new_run_folder

app = typer.Typer(
    help="Play a simulated fleet of 12,000 GPUs on this machine through the real protocol.",
    invoke_without_command=True,
    subcommand_metavar="",
)


@app.callback(
    epilog="""Examples:

[bold]pointillist demo[/bold]   1,500 hosts of 8 GPUs and this host, 24 windows, about 2.5 minutes;
on a terminal its pages stay until Ctrl-C

[bold]pointillist demo --windows 6 --json[/bold]   a short run, one JSON document at its end

[bold]pointillist demo --seed 7 --opendp-hosts 0 --no-live[/bold]   repeats to the last digit

[bold]pointillist demo --open[/bold]   in a browser as well

[bold]pointillist demo --trace train.json.gz[/bold]   this host plays a PyTorch trace of yours"""
)
def demo(
    hosts: Annotated[int, typer.Option(help="Simulated hosts of 8 GPUs.", min=20)] = 1500,
    windows: Annotated[int, typer.Option(help="Windows of 5 s.", min=1, max=1000)] = 24,
    opendp_hosts: Annotated[
        int | None, typer.Option(help="How many draw their noise by opendp; 50, or all.", min=0)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Fix workloads, dropouts and the table sampler's noise.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Run this host's own agent as well.")
    ] = True,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="PyTorch (Kineto) trace that plays as this host's GPU.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    dropout: Annotated[
        float, typer.Option(help="Share of hosts that are down in a window.", min=0, max=0.9)
    ] = 0.02,
    processes: Annotated[
        int, typer.Option(help="Processes that share the simulated hosts.", min=1, max=16)
    ] = 2,
    kafka: Annotated[
        bool,
        typer.Option("--kafka", help="Send everything through Apache Kafka, started for this run."),
    ] = False,
    web: Annotated[
        bool | None,
        typer.Option(
            "--web/--no-web",
            help="Serve the fleet's pages and this host's; so without --json.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the fleet's in a browser.")] = False,
    serve: Annotated[
        bool | None,
        typer.Option(
            "--serve/--no-serve",
            help="Go on serving the pages at the end, until Ctrl-C; so on a terminal.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for the results; a subfolder is made for each run."),
    ] = Path("runs"),
    json: JsonFlag = False,
) -> None:
    """Start a Leader, a Helper and a whole fleet, and watch the releases beside the truth.

    On a terminal, where CI is not set, its pages are served on at the end, and Ctrl-C ends it at
    any time with what was released so far.
    Identities, roster, budget and tasks are made for this run and thrown away; nothing of a real
    agent on this machine is touched.
    """
    if opendp_hosts is None:
        opendp_hosts = min(50, hosts)
    if opendp_hosts > hosts:
        raise usage_error(f"--opendp-hosts: expected at most {hosts}, got {opendp_hosts}")
    if trace is not None and not live:
        raise usage_error("--trace plays on this host's own agent: leave --no-live out")
    if trace is not None:
        _check_trace(trace)
    from pointillist.play.demo_plan import DemoPlan

    traced = trace.resolve() if trace else None
    plan = DemoPlan(hosts, windows, live, processes, opendp_hosts, seed, dropout, traced)
    if web is False and (open_ or serve):
        raise usage_error("--no-web: expected neither --open nor --serve beside it")
    person = not json and _person_looks_on()
    pages = bool(open_ or serve or (not json if web is None else web))
    serve = person if serve is None else serve
    interrupt_on_signals()
    _play(plan, out, kafka=kafka, json=json, person=person, web=pages, open_=open_, serve=serve)


def _person_looks_on() -> bool:
    """Whether a person is at the terminal: in a pipe or under CI nobody would press Ctrl-C."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")


def _play(
    plan: DemoPlan, out: Path, *, kafka: bool, json: bool, person: bool, web: bool, open_: bool,
    serve: bool,
) -> None:  # fmt: skip
    """Play a demo.

    person      who is at the terminal can end it by Ctrl-C, and is told what was released
    web, open_, serve   whether pages are served, opened in a browser, and served on at the end
    """
    from pointillist.broker.local import BrokerError, LocalBroker
    from pointillist.play.demo_fleet import DemoFleet, RunFolders
    from pointillist.play.demo_run import DemoPages, released
    from pointillist.play.processes import ChildFailed, Family

    folder = new_run_folder(out, "demo", "--out")
    folders = RunFolders.make(embedded=not kafka)
    try:
        with ExitStack() as stack:
            local = stack.enter_context(LocalBroker(folders.kafka)) if kafka else None
            broker = None if local is None else local.start(say).bootstrap
            family = stack.enter_context(Family(folders.logs))
            fleet, pages = DemoFleet(replace(plan, kafka=broker), folders, family), None
            if web:
                servers = stack.enter_context(Family(folders.logs))
                pages = DemoPages(fleet, servers, open_page if open_ else None)
            try:
                tally = _follow(fleet, family, pages, folder, quiet=json)
                family.stop()
            except KeyboardInterrupt as interrupt:
                if isinstance(interrupt, Terminated) or not person:
                    raise
                say("ending; Ctrl-C again ends at once")
                family.stop()
                tally = released(fleet)
                if not tally.mix:
                    raise CommandError(
                        ExitCode.INTERRUPTED, "ended before a window was released"
                    ) from None
                _end(fleet, tally, folder, json=False, early=True)
                raise typer.Exit(ExitCode.INTERRUPTED) from None
            _end(fleet, tally, folder, json)
            if pages is not None and serve:
                with suppress(KeyboardInterrupt):
                    pages.serve(say)
    except (BrokerError, ChildFailed) as error:
        raise unavailable(str(error)) from error
    finally:
        folders.remove()
        with suppress(OSError):
            folder.rmdir()  # an interrupted run leaves no empty folder


def _follow(
    fleet: DemoFleet, family: Family, pages: DemoPages | None, results: Path, *, quiet: bool
) -> DemoTally:
    from pointillist.play.demo_run import follow

    with Stage(Console(stderr=True), quiet=quiet, transient=True) as stage:
        stage.say("starting Leader, Helper and hosts")
        fleet.start()
        if pages is not None:
            pages.start(results)
        return follow(fleet, family, pages, stage.show)


def _end(
    fleet: DemoFleet, tally: DemoTally, folder: Path, json: bool, *, early: bool = False
) -> None:
    """Show what came of a run, and keep it.

    early       a person ended it

    Raises      CommandError where nothing was released, or where its disk did not take the files
    """
    from pointillist.play import demo_summary

    summary = demo_summary.summarise(fleet, tally)
    if not summary["windows_released"]:
        logs = shutil.copytree(fleet.folders.logs, folder / "logs")
        late = summary["rejections"].get("window_late", 0)
        why = f": {late:,} reports came too late for this machine's pace" if late else ""
        hint = f"fewer hosts need less: --hosts 300; the logs are in {logs}"
        raise CommandError(ExitCode.FAILED, f"nothing was released{why}", hint)
    written, problem = keep(
        lambda where: demo_summary.write_results(fleet, tally, summary, where), folder
    )
    whole = written or summary
    if json:
        emit(whole, json)
    else:
        end = demo_summary.demo_end(whole, tally.mean.mean(), tally.events, early=early)
        print_summary(Console(), end)
    if problem is not None:
        raise unavailable(problem)


def _check_trace(trace: Path) -> None:
    """Read a trace's beginning now, so that a junk file is refused before anything starts."""
    from collectors.replay.replay_source import ReplaySource

    source = ReplaySource(trace, FamilyRules.load(), gpus=1)
    try:
        source.start()
    except SourceUnavailable as error:
        raise usage_error(str(error)) from error
    finally:
        source.stop()


if __name__ == "__main__":
    sys.exit(app())
