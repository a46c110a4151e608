"""`pointillist plan`: what a plan costs in error, bytes and CPU, and what it protects."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from typing import Annotated, Any, Final

import typer

from pointillist import sizing
from pointillist.plan_file import (
    DEFAULT_PATH,
    PlanFileError,
    equal_sections,
    plan_from,
    plan_path,
    read_content,
)
from pointillist.plan_report import PlanReport, catalogue_shapes, coordinates_of, plan_report
from pointillist.plan_text import beside_text, plan_text
from pointillist.table import terminal_columns, value_lines
from privacy.errors import ParameterError
from privacy.plan import Plan, SectionShape
from wire.catalogue import Catalogue

from .output import (
    ExitCode,
    JsonFlag,
    emit,
    examples,
    jsonable,
    rate,
    reported,
    usage_error,
)

_HELP = """Say what an epsilon costs in error, bytes and CPU, and what it protects.

Without --sections or --window it is the shipped default plan, at the size you name; --plan takes
another, by its file or a shipped one's name. A plan that breaks a bound of the protocol is refused,
naming the bound.
"""

_EPILOG = examples("""
pointillist plan --hosts 12500 --short   the default plan at 12,500 hosts, on one screen
pointillist plan --hosts 12500 --window 60 --epsilon 2 --n-min 10000 --sections 10   ten equal mixes
pointillist plan --plan my-plan.toml --json   a plan of your own, for a script
pointillist plan --plan weekly_applications --beside default   what another plan gains and loses
pointillist plan --hosts 12500 --sections 10 --scheme local   without a Helper: far larger errors
""")

app = typer.Typer(help="What an epsilon costs in error, bytes and CPU.", subcommand_metavar="")

_WIDEST: Final = 100

Hosts = Annotated[int | None, typer.Option(min=10, help="Hosts on the roster.")]
Window = Annotated[int | None, typer.Option(min=1, help="Window in seconds; 60 without it.")]
Sections = Annotated[int | None, typer.Option(min=1, max=256, help="Equal sections of one task.")]


@app.callback(invoke_without_command=True, help=_HELP, epilog=_EPILOG)
def plan(
    hosts: Hosts = None,
    window: Window = None,
    epsilon: Annotated[str | None, typer.Option(help="Of any 168 hours of a host.")] = None,
    delta: Annotated[str | None, typer.Option(help="Beside epsilon.")] = None,
    n_min: Annotated[
        int | None,
        typer.Option("--n-min", help="Fewest hosts a release may sum; 80 % of --hosts without it."),
    ] = None,
    t: Annotated[
        int | None,
        typer.Option(
            "--t",
            help="Hosts whose data and noise one party may know (its own, or broken into); "
            "10 % of --hosts without it.",
        ),
    ] = None,
    sections: Sections = None,
    coordinates: Annotated[int, typer.Option(min=1, help="Coordinates of each section.")] = 60,
    scheme: Annotated[str | None, typer.Option(help="masked, or local: no Helper.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--plan", help="A plan of several tasks: a file, or a shipped one."),
    ] = None,
    beside: Annotated[
        str | None, typer.Option("--beside", help="Another plan: both errors, section by section.")
    ] = None,
    accountant: Annotated[
        bool, typer.Option("--accountant", help="Check the week by dp-accounting too; slower.")
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Errors, cohort, cost and protection; no tables.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    if (file or beside) and (sections is not None or window is not None):
        raise usage_error("a plan has its own tasks: leave --sections and --window out")
    wanted: dict[str, Any] = {"hosts": hosts, "n_min": n_min, "t": t, "scheme": scheme}
    wanted |= {"epsilon": _decimal(epsilon, "epsilon"), "delta": _decimal(delta, "delta")}

    def text(report: PlanReport) -> str:
        return plan_text(report, min(terminal_columns(), _WIDEST), short=short)

    with (
        reported(ExitCode.USAGE, PlanFileError, KeyError),
        reported(ExitCode.REFUSED, ParameterError),
    ):
        if sections is None and window is None:
            found = [
                plan_report(planned, catalogue_shapes(planned, Catalogue.load()), accountant)
                for name in (file or DEFAULT_PATH.stem, beside)
                if name is not None
                for planned in [plan_from(_changed(read_content(plan_path(name)), wanted))]
            ]
            if beside is None:
                emit(found[0], json, text=text)
            else:
                width = min(terminal_columns(), _WIDEST)
                emit({"plans": found}, json, text=beside_text(found[0], found[1], width))
            return
        cohort = _changed({"hosts": 12_500}, wanted)
        planned = equal_sections(cohort, window or 60, sections or 10)
        names = [section.name for section in planned.tasks[0].sections]
        shapes = dict.fromkeys(names, SectionShape("mix", coordinates, 64, 64, 1))
        report = plan_report(planned, shapes, accountant)
        emit(_flat(report) if json else report, json, text=text)


def _changed(content: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Put what is wanted over a plan's content; a new roster size brings its own n_min and t."""
    changed = dict(content)
    if wanted["hosts"] is not None and wanted["hosts"] != content.get("hosts"):
        changed.pop("n_min", None)
        changed.pop("t", None)
    return changed | {name: value for name, value in wanted.items() if value is not None}


def _decimal(value: str | None, name: str) -> Decimal | None:
    try:
        return None if value is None else Decimal(value)
    except ArithmeticError as error:
        raise usage_error(f"--{name}: expected a number, got {value!r}") from error


def _flat(report: PlanReport) -> dict[str, Any]:
    """One section stands for all, as they are equal: its figures at the top level."""
    task = report.tasks[0]
    section = task.sections[0]
    return {
        "sigma_total": section.sigma_total,
        "sigma_local": section.sigma_local,
        "sigma_released": section.sigma_released,
        **{f"error_percent_{name}": value for name, value in section.error_percent.items()},
        "windows": task.windows,
        "weight": section.weight,
        "coordinates": task.coordinates,
        "report_bytes": task.report_bytes,
        **{name: value for name, value in jsonable(report).items() if name != "tasks"},
    }


_SIZE_HELP = """Say what machines a fleet needs: cores, brokers, bytes of the log.

It takes what a report costs each party and the broker, as a benchmark measured it, and what the
plan has every host report. Cores are planned half busy: reports of a window come together, and an
outage is made up. The last lines say where the costs come from and how far the model was off.
"""

_SIZE_EPILOG = examples("""
pointillist size --gpus 100000   the shipped plan, on hosts of 8 GPUs
pointillist size --gpus 1000000 --gpus-per-host 4 --plan my-plan.toml
pointillist size --gpus 100000 --json | jq .size.leader_cores""")

size_app = typer.Typer(
    help="What machines a fleet needs: cores, brokers, bytes.", subcommand_metavar=""
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
    tasks: list[sizing.TaskLoad]
    size: sizing.Size
    costs: sizing.MeasuredCosts


@size_app.callback(invoke_without_command=True, help=_SIZE_HELP, epilog=_SIZE_EPILOG)
def size(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the fleet.")],
    gpus_per_host: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Without it as the plan has it.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--plan", help="A plan: a file, or a shipped one; default.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    with reported(ExitCode.USAGE, PlanFileError, KeyError):
        plan: Plan = plan_from(read_content(plan_path(file or DEFAULT_PATH.stem)))
        shapes = catalogue_shapes(plan, Catalogue.load())
    if plan.scheme != "masked":
        raise usage_error(f"expected a plan of scheme masked, got {plan.scheme}: it has no Helper")
    hosts = ceil(gpus / (gpus_per_host or plan.gpus_per_host))
    tasks = [sizing.TaskLoad(coordinates_of(task, shapes), task.window_s) for task in plan.tasks]
    costs = sizing.shipped_costs()
    sized = sizing.size_of(hosts, tasks, costs.one)
    emit(_Sized(gpus, hosts, plan.name, tasks, sized, costs), json, text=_size_text)


def _two_places(number: float) -> str:
    return "under 0.01" if 0 < number < 0.005 else f"{number:.2f}"


def _size_text(asked: _Sized) -> str:
    found, source = asked.size, asked.costs.source
    cores = [(_WORDS[name], f"{_two_places(getattr(found, name))} cores") for name in _WORDS]
    rows = [
        ("reports", f"{rate(found.reports_a_second)} a second of {rate(asked.hosts)} hosts"),
        *cores,
        ("brokers", f"{found.brokers}, {sizing.REPLICAS} copies of each record"),
        ("log", f"{found.log_bytes_a_day / _GB:,.1f} GB a day and copy"),
        (
            "disks of all brokers",
            f"{found.log_bytes_kept / _GB:,.0f} GB, {sizing.RETENTION_DAYS} days kept",
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
