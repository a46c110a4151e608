"""`pointillist size`: cores, brokers and bytes that a fleet needs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Final

import typer

from pointillist.plan_file import DEFAULT_PATH, PlanFileError, plan_from, read_content
from pointillist.plan_report import catalogue_shapes, coordinates_of
from pointillist.sizing import (
    REPLICAS,
    RETENTION_DAYS,
    MeasuredCosts,
    Size,
    TaskLoad,
    shipped_costs,
    size_of,
)
from pointillist.table import value_lines
from privacy.plan import Plan
from wire.catalogue import Catalogue

from .output import ExitCode, JsonFlag, emit, examples, need_file, rate, reported, usage_error

_HELP = """Say what machines a fleet needs: cores, brokers, bytes of the log.

It takes what a report costs each party and the broker, as a benchmark measured it, and what the
plan has every host report. Cores are planned half busy: reports of a window come together, and an
outage is made up. The last lines say where the costs come from and how far the model was off.
"""

_EPILOG = examples("""
pointillist size --gpus 100000   the shipped plan, on hosts of 8 GPUs
pointillist size --gpus 1000000 --gpus-per-host 4 --plan my-plan.toml
pointillist size --gpus 100000 --json | jq .size.leader_cores""")

app = typer.Typer(
    help="What machines a fleet needs: cores, brokers, bytes.",
    subcommand_metavar="",
)

_WORDS: Final = {
    "leader_cores": "Leader",
    "helper_cores": "Helper",
    "broker_cores": "Kafka, all brokers",
}
_GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class _Sized:
    """What was asked, what came of it, and by which costs."""

    gpus: int
    hosts: int
    plan: str
    tasks: list[TaskLoad]
    size: Size
    costs: MeasuredCosts


@app.callback(invoke_without_command=True, help=_HELP, epilog=_EPILOG)
def size(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the fleet.")],
    gpus_per_host: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Without it as the plan has it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--plan", help="A plan in TOML; the shipped one without it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    if file is not None:
        need_file(file, "a plan file", "docs/plan-file.md shows one")
    with reported(ExitCode.USAGE, PlanFileError, KeyError):
        plan: Plan = plan_from(read_content(file or DEFAULT_PATH))
        shapes = catalogue_shapes(plan, Catalogue.load())
    if plan.scheme != "masked":
        raise usage_error(f"expected a plan of scheme masked, got {plan.scheme}: it has no Helper")
    hosts = ceil(gpus / (gpus_per_host or plan.gpus_per_host))
    tasks = [TaskLoad(coordinates_of(task, shapes), task.window_s) for task in plan.tasks]
    costs = shipped_costs()
    sized = size_of(hosts, tasks, costs.one)
    emit(_Sized(gpus, hosts, plan.name, tasks, sized, costs), json, text=_text)


def _two_places(number: float) -> str:
    return "under 0.01" if 0 < number < 0.005 else f"{number:.2f}"


def _text(asked: _Sized) -> str:
    found, source = asked.size, asked.costs.source
    cores = [(_WORDS[name], f"{_two_places(getattr(found, name))} cores") for name in _WORDS]
    rows = [
        ("reports", f"{rate(found.reports_a_second)} a second of {rate(asked.hosts)} hosts"),
        *cores,
        ("brokers", f"{found.brokers}, {REPLICAS} copies of each record"),
        ("log", f"{found.log_bytes_a_day / _GB:,.1f} GB a day and copy"),
        (
            "disks of all brokers",
            f"{found.log_bytes_kept / _GB:,.0f} GB, {RETENTION_DAYS} days kept",
        ),
        ("Leader's memory", f"{found.leader_bytes / _GB:,.2f} GB for a window of each task"),
    ]
    if found.fleets > 1:
        divided = (
            f"{found.fleets}, hosts divided among them: each role is one process, of one core; "
            "a Leader's reports may be read by Spark instead (--engine spark)"
        )
        rows.insert(0, ("fleets", divided))
    off = ", ".join(f"{role} {error:+.0f} %" for role, error in asked.costs.error_percent.items())
    return "\n".join(
        [
            f"{asked.gpus:,} GPUs on {asked.hosts:,} hosts, plan {asked.plan}",
            *value_lines(rows, 100),
            "",
            f"Costs: {source['command']}, {source['date']}, {source['device']}.",
            f"At a width that they were not fitted to the model is off by: {off}.",
        ]
    )
