"""`pointillist simulate`: what a fleet of any size would see, what it would cost, how private.

A run leaves its results in a folder, where a disk fails or a signal ends it as well.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console

from pointillist.play.stage import Stage, Summary, print_summary
from pointillist.table import Column, cells_of, table_lines, terminal_columns
from simulator.scenario import FOLDER, ScenarioError, load, names

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    log_to_stderr,
    reported,
    say,
    usage_error,
)

_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""What may be over when it is tried again; anything else needs another folder."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: whoever sent it waits for no last words."""


def interrupt_on_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does: they raise Terminated."""

    def interrupt(_number: int, _frame: object) -> None:
        raise Terminated

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def new_run_folder(base: Path, name: str, option: str) -> Path:
    """Make `base`/`name`-TIME; runs of the same second are told apart by a number.

    option      what names another base, for the refusal
    Raises      CommandError
    """
    stem = base.resolve() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():
                continue
            raise _refusal(base, option, "a file stands there") from None
        except OSError as error:
            raise _refusal(base, option, error.strerror, error.errno) from error
        return folder
    raise AssertionError("counting does not end")


def writable_folder(folder: Path, option: str) -> Path:
    """Give a folder, made if missing. Raises CommandError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(folder, option, error.strerror, error.errno) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refusal(folder, option, "it is read-only")
    return folder


def _refusal(folder: Path, option: str, why: str | None, number: int | None = None) -> CommandError:
    code = ExitCode.UNAVAILABLE if number in _DISK else ExitCode.USAGE
    said = f"{option}: expected a folder that results can be written to, got {folder}: {why}"
    return CommandError(code, said)


T = TypeVar("T")


def keep(write: Callable[[Path], T], folder: Path) -> tuple[T | None, str | None]:
    """Write results into a folder; where that fails, into a new one among the temporary files.

    write       writes all of them into a folder; raises OSError
    Returns     what was written, and one sentence about what went wrong, if anything
    """
    try:
        return write(folder), None
    except OSError as error:
        first = why(error)
        shutil.rmtree(folder, ignore_errors=True)  # half of the results would only mislead
    spare = None
    try:
        spare = Path(tempfile.mkdtemp(prefix="pointillist-results-"))
        return write(spare), f"{folder}: {first}; the files are in {spare} instead"
    except OSError as error:
        if spare is not None:
            shutil.rmtree(spare, ignore_errors=True)
        told = f"{folder}: {first}, and {tempfile.gettempdir()}: {why(error)}"
        return None, f"{told}; no file was kept"


def why(error: OSError) -> str:
    """Say what the system said, without its number; of a copied tree, what it said first."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2]).partition("] ")[2].partition(": '")[0]
    return error.strerror or str(error)


_LINE_S: Final = 10.0
"""Between two lines, where there is no terminal."""
_EXAMPLES = examples("""
pointillist simulate                                the shipped scenarios
pointillist simulate steady --hours 0.2
pointillist simulate ten_percent_load --fidelity noise --out runs/anchor
pointillist simulate --resume runs/anchor           go on where it was cut off
pointillist simulate faulty_month --hours 336 --journals bench/journals --out runs/lived
pointillist simulate my-fleet.toml --json | jq .standard_error_points
pointillist simulate practice --store small         four weeks of 500 hosts, in minutes
pointillist simulate --weeks 8 --store practice     weeks of 12,500 hosts, in hours""")

app = typer.Typer(
    help="Play a simulated fleet of any size, beside its truth.",
    epilog=_EXAMPLES,
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
        others = _given({"--out": out, "--resume": resume, "--export": export})
        if others:
            raise usage_error(f"--store: expected no {others} beside it")
        if fidelity not in {None, "auto", "noise"}:
            raise usage_error(f"--store: expected --fidelity noise or none, got {fidelity!r}")
        _fill(scenario, plan, asked | {"fidelity": None}, store, processes, json)
    elif export is not None:
        _export(scenario or "", plan, asked, (export, config, enrol), json)
    elif config is not None or enrol:
        raise usage_error("--config and --enrol go with --export", "--export kafka")
    else:
        _play(scenario, plan, asked, (out, resume), (processes, section), json)


def _given(options: dict[str, Any]) -> str:
    return ", ".join(name for name, value in options.items() if value is not None)


def _list(json: bool) -> None:
    about = ("hosts", "gpus", "hours", "plan", "about")
    found: list[dict[str, Any]] = []
    for name in names():
        scenario = load(name)
        row = {"name": name} | {field: getattr(scenario, field) for field in about}
        found.append(row | {"file": str(FOLDER / f"{name}.toml")})

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


def _play(
    scenario: str | None,
    plan: str | None,
    asked: dict[str, Any],
    folders: tuple[Path | None, Path | None],
    how: tuple[int, str],
    json: bool,
) -> None:
    from pointillist.play.scenario_play import Player, simulation_end
    from pointillist.play.setup import Changes, Setup

    out, resume = folders
    if resume is not None:
        changes = {f"--{name.replace('_', '-')}": value for name, value in asked.items()}
        stray = _given({"SCENARIO": scenario, "--plan": plan, "--out": out} | changes)
        if stray:
            raise usage_error(
                f"--resume: expected nothing beside it that changes the run, got {stray}",
                "the folder remembers scenario, plan and options",
            )
    known = ("auto", "exact", "masked", "noise")
    if asked["fidelity"] not in {None, *known}:
        expected = f"expected one of {', '.join(known)}, got {asked['fidelity']!r}"
        raise usage_error(f"--fidelity: {expected}")
    with reported(ExitCode.USAGE, ValueError):
        if resume is not None:
            setup, folder = Setup.resume(resume), resume
        else:
            setup = Setup.make(scenario or "", plan, Changes(**asked))
            folder = _folder(out, setup.scenario.name)
        player = Player(setup, folder, *how)
        if resume is None:
            setup.keep(folder)
    stage = Stage(Console(stderr=True), quiet=json, line_s=_LINE_S)
    with _cut_off(f"go on: pointillist simulate --resume {folder}"), stage:
        result = player.play(stage.show)
    _end(result.summary, json, lambda: simulation_end(result, folder))
    if not result.summary["windows_released"]:
        raise CommandError(
            ExitCode.FAILED,
            f"nothing was released: {result.summary['kept_back'] or 'no window ended'}",
            "fewer dropouts, or more hosts than the plan's n_min",
        )


def _fill(
    scenario: str | None,
    plan: str | None,
    asked: dict[str, Any],
    folder: Path,
    processes: int,
    json: bool,
) -> None:
    from pointillist.play.setup import Changes, Setup
    from pointillist.play.weeks import SCENARIO, StorePlayer, store_end

    with reported(ExitCode.USAGE, ValueError):
        setup = Setup.make(scenario or SCENARIO, plan, Changes(**asked))
        player = StorePlayer(setup, writable_folder(folder, "--store"), processes)
    with _cut_off("the same command goes on"):
        summary = player.play(say)
    _end(summary, json, lambda: store_end(summary))


@contextmanager
def _cut_off(how: str) -> Iterator[None]:
    """Report what ends a run too early; `how` says what goes on with one that a person ends."""
    from aggregator.releases.compaction import CompactionUnderWay
    from simulator.engine.simulation import AnotherRun
    from simulator.engine.worker_pool import WorkerFailed

    try:
        with (
            reported(ExitCode.FAILED, WorkerFailed),
            reported(ExitCode.USAGE, AnotherRun),
            reported(ExitCode.UNAVAILABLE, CompactionUnderWay),
        ):
            yield
    except KeyboardInterrupt:
        say(f"cut off; {how}")
        raise


def _end(body: dict[str, Any], json: bool, told: Callable[[], Summary]) -> None:
    if json:
        emit(body, json)
        return
    console = Console()
    console.print()
    print_summary(console, told())


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
    scenario: str,
    plan: str | None,
    asked: dict[str, Any],
    export: tuple[str, Path | None, bool],
    json: bool,
) -> None:
    from pointillist.play.export import ExportConfigError, enrol_hosts, export_reports
    from simulator.exported_fleet import IdentitiesError

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
    with reported(ExitCode.USAGE, ScenarioError, ExportConfigError, IdentitiesError):
        if enrol:
            made = enrol_hosts(scenario, asked, config, kind)
            who = f"{made['hosts']:,} hosts of {made['operators']} operators"
            lines = [f"{who} have keys and join requests.", "", "Next:", *made["next"]]
            emit(made, json, "\n".join(lines))
        else:
            log_to_stderr()
            emit(export_reports(scenario, asked, config, kind, say), json)
