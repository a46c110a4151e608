"""`pointillist simulate`: what a fleet of any size would see, what it would cost, how private."""

from __future__ import annotations

import os
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    log_to_stderr,
    reported,
    say,
    usage_error,
)
from .run_folder import interrupt_on_signals, new_run_folder, writable_folder

_EXAMPLES = """Examples:

pointillist simulate                                the shipped scenarios

pointillist simulate steady --hours 0.2

pointillist simulate ten_percent_load --fidelity noise --out runs/anchor

pointillist simulate --resume runs/anchor           go on where it was cut off

pointillist simulate faulty_month --hours 336 --journals bench/journals --out runs/lived

pointillist simulate my-fleet.toml --json | jq .standard_error_points

pointillist simulate practice --store small         four weeks of 500 hosts, in minutes

pointillist simulate --weeks 8 --store practice     weeks of 12,500 hosts, in hours"""

app = typer.Typer(
    help="Play a simulated fleet of any size, beside its truth.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    invoke_without_command=True,
    # A group takes options before its arguments alone, unless it is told otherwise.
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": True},
)


@app.callback(epilog=_EXAMPLES)
def simulate(
    scenario: Annotated[
        str | None, typer.Argument(help="A shipped scenario or a TOML file; none lists them.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(help="Hosts in place of the scenario's.", min=1, max=1_000_000)
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Hours of the fleet's time.", min=0.001, max=8760)
    ] = None,
    weeks: Annotated[
        float | None, typer.Option(help="Weeks in place of --hours.", min=0.0001, max=52)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeats truth and releases bit for bit.", min=0)
    ] = None,
    fidelity: Annotated[
        str | None,
        typer.Option(
            help="exact: sealed, sent, opened, released. masked: real noise and masks. "
            "noise: the distribution. auto: masked up to a day, then noise."
        ),
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="A shipped plan or a plan file in place of the scenario's.")
    ] = None,
    section: Annotated[
        str, typer.Option(help="Section of the screen and the chart.")
    ] = "kernel_mix",
    processes: Annotated[
        int, typer.Option(help="Processes that share the hosts.", min=1, max=64)
    ] = min(os.cpu_count() or 1, 8),
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/simulate-NAME-TIME without it.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Write the folder of releases that a Leader would have, every window by itself; "
            "the same command goes on with one that was cut off. Without a scenario: eight_weeks, "
            "hours long; the scenario practice takes minutes."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run that was cut off: go on.")
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="kafka (or log): send the reports to running aggregators as if it were the fleet."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="With --export: export.toml.")
    ] = None,
    enrol: Annotated[
        bool, typer.Option("--enrol", help="With --export: make identities and join requests.")
    ] = False,
    journals: Annotated[
        Path | None,
        typer.Option(help="Folder of agents' diagnosis journals (*.jsonl): hosts live them again."),
    ] = None,
    journal_hosts: Annotated[
        int | None,
        typer.Option(help="With --journals: hosts for each of them and week; 130.", min=1),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Play a scenario and show the releases beside the truth.

    Every report, its noise and its masks are made by the agent's code, every sum and estimate by
    the aggregators'. What each window held is kept in the run's folder; a run that is cut off goes
    on with --resume.
    """
    if weeks is not None:
        if hours is not None:
            raise usage_error("--weeks and --hours exclude each other")
        hours = weeks * 168
    if scenario is None and resume is None and store is None:
        if export is not None:
            raise usage_error("--export: expected a scenario, got none", "name a scenario")
        _list(json)
        return
    interrupt_on_signals()
    if journal_hosts is not None and journals is None:
        raise usage_error("--journal-hosts goes with --journals", "--journals FOLDER")
    asked: dict[str, Any] = {"hosts": hosts, "hours": hours, "seed": seed, "fidelity": fidelity}
    asked["journals"] = None if journals is None else str(journals.resolve())
    asked["journal_hosts"] = journal_hosts
    if store is not None:
        _check_store({"--out": out, "--resume": resume, "--export": export}, fidelity)
        _fill(scenario, plan, asked | {"fidelity": None}, (store, processes), json)
        return
    if export is not None:
        _export(scenario, plan, asked, (export, config, enrol), json)
        return
    if config is not None or enrol:
        raise usage_error("--config and --enrol go with --export", "--export kafka")
    if resume is not None:
        _check_resume(scenario, plan, out, asked)
    _play(scenario, plan, asked, (out, resume), (processes, section), json)


def _list(json: bool) -> None:
    from pointillist.simulate.simulation_farewell import list_scenarios
    from pointillist.table import Column, cells_of, table_lines, terminal_columns

    found = list_scenarios()

    def text(rows: list[dict[str, Any]]) -> str:
        columns = (
            Column("scenario", itemgetter("name")),
            Column("GPUs", lambda row: f"{row['gpus']:,}", right=True),
            Column("hours", lambda row: f"{row['hours']:g}", right=True),
            Column("what it is", itemgetter("about"), folds=True),
        )
        lines = table_lines(columns, cells_of(columns, rows), terminal_columns())
        more = "\nPlay one: pointillist simulate steady --hours 0.2"
        return "\n".join(["Shipped scenarios:", "", *lines, more])

    emit(found, json, text=text)


def _check_resume(
    scenario: str | None, plan: str | None, out: Path | None, asked: dict[str, Any]
) -> None:
    given = {"SCENARIO": scenario, "--plan": plan, "--out": out} | {
        f"--{name.replace('_', '-')}": value for name, value in asked.items()
    }
    stray = [name for name, value in given.items() if value is not None]
    if stray:
        raise usage_error(
            f"--resume: expected nothing beside it that changes the run, got {', '.join(stray)}",
            "the folder remembers scenario, plan and options",
        )


def _play(
    scenario: str | None,
    plan: str | None,
    asked: dict[str, Any],
    folders: tuple[Path | None, Path | None],
    how: tuple[int, str],
    json: bool,
) -> None:
    from rich.console import Console

    from pointillist.plan_file import PlanFileError
    from pointillist.simulate.play import Player
    from pointillist.simulate.setup import Changes, NoSuchRun, Setup
    from pointillist.simulate.simulation_farewell import tell
    from pointillist.simulate.simulation_screen import SimulationStage
    from simulator.engine.crew import CrewFailed
    from simulator.engine.outcome_store import AnotherRun
    from simulator.scenario import ScenarioError

    out, resume = folders
    _check_fidelity(asked["fidelity"])
    with reported(ExitCode.USAGE, ScenarioError, PlanFileError, NoSuchRun, AnotherRun, ValueError):
        if resume is not None:
            setup, folder = Setup.resume(resume), resume
        else:
            setup = Setup.make(scenario or "", plan, Changes(**asked))
            folder = _folder(out, setup.scenario.name)
        player = Player(setup, folder, *how)
        if resume is None:
            setup.keep(folder)
    try:
        with (
            reported(ExitCode.FAILED, CrewFailed),
            reported(ExitCode.USAGE, AnotherRun),
            SimulationStage(Console(stderr=True), quiet=json) as stage,
        ):
            result = player.play(stage.show)
    except KeyboardInterrupt:
        say(f"cut off; go on: pointillist simulate --resume {folder}")
        raise
    if json:
        emit(result.summary, json)
    else:
        tell(Console(), result, folder)
    if not result.summary["windows_released"]:
        raise CommandError(
            ExitCode.FAILED,
            f"nothing was released: {result.summary['kept_back'] or 'no window ended'}",
            "fewer dropouts, or more hosts than the plan's n_min",
        )


def _check_store(others: dict[str, Any], fidelity: str | None) -> None:
    stray = [name for name, value in others.items() if value is not None]
    if stray:
        raise usage_error(f"--store: expected no {', '.join(stray)} beside it")
    if fidelity not in {None, "auto", "noise"}:
        raise usage_error(f"--store: expected --fidelity noise or none, got {fidelity!r}")


def _fill(
    scenario: str | None,
    plan: str | None,
    asked: dict[str, Any],
    how: tuple[Path, int],
    json: bool,
) -> None:
    from rich.console import Console

    from aggregator.releases.compaction import CompactionUnderWay
    from aggregator.releases.simulated_mark import MarkUnreadable
    from pointillist.plan_file import PlanFileError
    from pointillist.simulate.setup import Changes, Setup
    from pointillist.simulate.store_play import SCENARIO, StorePlayer, tell_store
    from simulator.engine.crew import CrewFailed
    from simulator.scenario import ScenarioError
    from simulator.store_fill import AnotherStore

    folder, processes = how
    with reported(
        ExitCode.USAGE, ScenarioError, PlanFileError, AnotherStore, MarkUnreadable, ValueError
    ):
        setup = Setup.make(scenario or SCENARIO, plan, Changes(**asked))
        player = StorePlayer(setup, writable_folder(folder, "--store"), processes)
    try:
        with (
            reported(ExitCode.FAILED, CrewFailed),
            reported(ExitCode.UNAVAILABLE, CompactionUnderWay),
        ):
            summary = player.play(say)
    except KeyboardInterrupt:
        say("cut off; the same command goes on")
        raise
    if json:
        emit(summary, json)
    else:
        tell_store(Console(), summary)


def _check_fidelity(fidelity: str | None) -> None:
    known = ("auto", "exact", "masked", "noise")
    if fidelity is not None and fidelity not in known:
        raise usage_error(f"--fidelity: expected one of {', '.join(known)}, got {fidelity!r}")


def _folder(out: Path | None, name: str) -> Path:
    if out is None:
        return new_run_folder(Path("runs"), f"simulate-{name}", "--out")
    if out.exists() and any(out.iterdir()):
        raise usage_error(
            f"{out}: expected a new or empty folder, found files in it",
            f"go on with it: pointillist simulate --resume {out}",
        )
    return writable_folder(out, "--out")


def _export(
    scenario: str | None,
    plan: str | None,
    asked: dict[str, Any],
    export: tuple[str, Path | None, bool],
    json: bool,
) -> None:
    from pointillist.simulate.export import ExportConfigError, enrol_hosts, export_reports
    from simulator.scenario import ScenarioError

    kind, config, enrol = export
    if kind not in {"kafka", "log"}:
        raise usage_error(f"--export: expected kafka or log, got {kind!r}")
    if config is None:
        raise usage_error("--export: expected --config FILE", "docs/simulate.md shows one")
    if plan is not None or asked["fidelity"] is not None:
        raise usage_error(
            "--export: expected neither --plan nor --fidelity",
            "the running aggregators' signed tasks are the plan, and every report is sealed",
        )
    if asked["journals"] is not None:
        raise usage_error("--export: expected no --journals", "they are lived through in simulate")
    with reported(ExitCode.USAGE, ScenarioError, ExportConfigError):
        if enrol:
            emit(enrol_hosts(scenario or "", asked, config, kind), json, text=_enrolled)
        else:
            log_to_stderr()
            emit(export_reports(scenario or "", asked, config, kind, say), json)


def _enrolled(made: dict[str, Any]) -> str:
    head = f"{made['hosts']:,} hosts of {made['operators']} operators have keys and join requests."
    return "\n".join([head, "", "Next:", *made["next"]])
