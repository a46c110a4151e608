"""`pointillist experiment`: sweep simulations in parallel, and write a report of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining

from pointillist.plan_file import PlanFileError, load_plan, plan_path
from privacy.errors import ParameterError
from privacy.plan import Plan
from simulator.experiments.experiment_file import (
    Experiment,
    ExperimentError,
    ExperimentRun,
    load,
    runs_of,
)
from wire.catalogue import Catalogue

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    need_file,
    reported,
    say,
    usage_error,
)
from .simulate import interrupt_on_signals, writable_folder

_EXAMPLES = examples("""
pointillist experiment docs/experiments/report.toml
pointillist experiment my.toml --part epsilon --processes 4 --out runs/mine
pointillist experiment my.toml --json | jq '.rows[] | {axis_epsilon, error_points}'
A run that is finished is not played again: the same command goes on where it was cut off.""")

app = typer.Typer(
    help="Sweep simulations over epsilon, window, cohort, dropout, d, sampling rate, and report.",
    epilog=_EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": True},
)


@app.callback(epilog=_EXAMPLES)
def experiment(
    file: Annotated[Path, typer.Argument(help="TOML: parts, each a scenario and its axes.")],
    part: Annotated[
        list[str] | None, typer.Option("--part", help="This part alone; repeat it for more.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Runs at the same time; each takes memory.", min=1)
    ] = min(os.cpu_count() or 1, 8),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of finished runs and results; runs/experiment-NAME without it."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Play finished runs again.")] = False,
    json: JsonFlag = False,
) -> None:
    """Play every run of an experiment that is not finished yet, then draw and report all of them.

    Writes one Parquet row a run, each figure as PNG and SVG, and one HTML file with everything in
    it, which needs no network.
    """
    from simulator.experiments.figures import FIGURES
    from simulator.experiments.kinds import KINDS

    interrupt_on_signals()
    need_file(file, "an experiment", "docs/experiments/report.toml is one")
    with reported(ExitCode.USAGE, ExperimentError):
        asked = load(file, KINDS, FIGURES)
    chosen = _chosen(asked, part)
    folder = writable_folder(out or Path("runs") / f"experiment-{asked.name}", "--out")
    runs = _runs(chosen, file)
    if fresh:
        from simulator.experiments.sweep import forget

        forget(runs, folder)
    _sweep(runs, folder, processes, quiet=json)
    body = _report(asked, file, folder, whole=part is None)
    if json:
        emit(body, json)
        return
    for name, path in body["files"].items():
        typer.echo(f"{name:8} {path}")


def _chosen(asked: Experiment, names: list[str] | None) -> Experiment:
    if not names:
        return asked
    known = {part.name: part for part in asked.parts}
    for name in names:
        if name not in known:
            raise usage_error(f"--part: expected one of {', '.join(known)}, got {name!r}")
    return replace(asked, parts=tuple(part for part in asked.parts if part.name in names))


def _runs(asked: Experiment, file: Path) -> list[ExperimentRun]:
    from simulator.scenario import Scenario, ScenarioError, load

    def scenario(name: str) -> Scenario:
        beside = file.parent / name
        return load(beside if beside.is_file() else name)

    def plan(name: str) -> Plan:
        return load_plan(plan_path(name, file.parent))

    with reported(ExitCode.USAGE, ScenarioError, PlanFileError, ParameterError):
        return list(runs_of(asked, scenario, plan, Catalogue.load()))


def _sweep(runs: list[ExperimentRun], folder: Path, processes: int, *, quiet: bool) -> None:
    from simulator.experiments.sweep import SweepFailed, sweep

    whole = len({run.key for run in runs})
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), Elapsed(), Remaining(),
               TextColumn("{task.description}"))  # fmt: skip
    console = Console(stderr=True)
    try:
        with (
            reported(ExitCode.FAILED, SweepFailed),
            Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar,
        ):
            task = bar.add_task("", total=whole)
            for number, sweep_run in enumerate(sweep(runs, folder, processes), 1):
                bar.update(task, advance=1, description=sweep_run.run.label)
                if not quiet and not console.is_terminal and not sweep_run.kept:
                    say(f"{number} of {whole}: {sweep_run.run.label}")
    except KeyboardInterrupt:
        say("cut off; the same command goes on where it stopped")
        raise


def _report(asked: Experiment, file: Path, folder: Path, *, whole: bool) -> dict[str, Any]:
    from simulator.experiments.experiment_report import report_html, show, write_figures
    from simulator.experiments.sweep import read_rows, write_table

    runs = _runs(asked, file)
    rows = read_rows(runs, folder)
    if not rows:
        raise CommandError(ExitCode.FAILED, "no run is finished")
    shown = show(asked, rows)
    command = f"pointillist experiment {file}"
    html = report_html(asked, shown, command, len(runs))
    homes = [folder, *([file.parent] if asked.publish and whole else [])]
    files: dict[str, Path] = {"figures": folder / "figures"}
    write_figures(shown, folder / "figures")
    for home in homes:
        write_table(rows, home / "rows.parquet")
        (home / "report.html").write_text(html)
        files |= {"rows": home / "rows.parquet", "report": home / "report.html"}
    return {
        "name": asked.name,
        "runs": len(runs),
        "finished": len(rows),
        "files": {name: str(path) for name, path in files.items()},
        "rows": [{k: v for k, v in row.items() if k != "key"} for row in rows],
    }
