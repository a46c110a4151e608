"""`pointillist plan`: what a plan costs in error, bytes and CPU, and what it protects."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pointillist.table import terminal_columns

from .output import ExitCode, JsonFlag, emit, need_file, reported, usage_error

if TYPE_CHECKING:
    from pointillist.plan_report import PlanReport
    from privacy.plan import Plan

_HELP = """Say what an epsilon costs in error, bytes and CPU, and what it protects.

Without --sections or --window it is the shipped default plan, at the size you name; --plan FILE
takes another. A plan that breaks a bound of the protocol is refused, naming the bound.
"""

_EPILOG = """Examples:

pointillist plan --hosts 12500 --short   the default plan at 12,500 hosts, on one screen

pointillist plan --hosts 12500 --window 60 --epsilon 2 --n-min 10000 --sections 10   ten equal mixes

pointillist plan --plan my-plan.toml --json   a plan of your own, for a script

pointillist plan --hosts 12500 --sections 10 --scheme local   without a Helper: far larger errors"""

app = typer.Typer(
    help="What an epsilon costs in error, bytes and CPU.",
    subcommand_metavar="",
)

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
        Path | None, typer.Option("--plan", help="A plan of several tasks, in TOML.")
    ] = None,
    accountant: Annotated[
        bool, typer.Option("--accountant", help="Check the week by dp-accounting too; slower.")
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Errors, cohort, cost and protection; no tables.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    from pointillist.plan_file import PlanFileError
    from privacy.errors import ParameterError

    if file is not None and (sections is not None or window is not None):
        raise usage_error("--plan has its own tasks: leave --sections and --window out")
    if file is not None:
        need_file(file, "a plan file", "docs/plan-file.md shows one")
    text = partial(_text, short=short)
    wanted = _Wanted(hosts, epsilon, delta, n_min, t, scheme)
    with (
        reported(ExitCode.USAGE, PlanFileError, KeyError),
        reported(ExitCode.REFUSED, ParameterError),
    ):
        if sections is None and window is None:
            emit(_report_of_file(file, wanted, accountant), json, text=text)
            return
        report = _report_of_sections(window or 60, sections or 10, coordinates, wanted, accountant)
        emit(_flat(report) if json else report, json, text=text)


class _Wanted:
    """What the command line says of the cohort; it overrides a plan's own."""

    def __init__(
        self,
        hosts: int | None,
        epsilon: str | None,
        delta: str | None,
        n_min: int | None,
        t: int | None,
        scheme: str | None,
    ) -> None:
        self.hosts, self.n_min, self.t, self.scheme = hosts, n_min, t, scheme
        self.epsilon, self.delta = epsilon, delta

    def over(self, content: dict[str, Any]) -> dict[str, Any]:
        """Put this over a plan's content; a new roster size brings its own n_min and t."""
        changed = dict(content)
        if self.hosts is not None and self.hosts != content.get("hosts"):
            changed.pop("n_min", None)
            changed.pop("t", None)
        for name in ("hosts", "n_min", "t", "scheme"):
            if getattr(self, name) is not None:
                changed[name] = getattr(self, name)
        for name in ("epsilon", "delta"):
            if getattr(self, name) is not None:
                changed[name] = _decimal(getattr(self, name), name)
        return changed


def _decimal(value: str, name: str) -> Decimal:
    try:
        return Decimal(value)
    except ArithmeticError as error:
        raise usage_error(f"--{name}: expected a number, got {value!r}") from error


def _report_of_file(file: Path | None, wanted: _Wanted, accountant: bool) -> PlanReport:
    from pointillist.plan_file import DEFAULT_PATH, plan_from, read_content
    from pointillist.plan_report import catalogue_shapes, plan_report
    from wire.catalogue import Catalogue

    planned = plan_from(wanted.over(read_content(file or DEFAULT_PATH)))
    return plan_report(planned, catalogue_shapes(planned, Catalogue.load()), accountant)


def _report_of_sections(
    window: int, sections: int, coordinates: int, wanted: _Wanted, accountant: bool
) -> PlanReport:
    from pointillist.plan_file import equal_sections
    from pointillist.plan_report import plan_report
    from privacy.plan import SectionShape

    planned: Plan = equal_sections(wanted.over({"hosts": 12_500}), window, sections)
    shape = SectionShape("mix", coordinates, 64, 64, 1)
    names = [section.name for section in planned.tasks[0].sections]
    return plan_report(planned, dict.fromkeys(names, shape), accountant)


def _flat(report: PlanReport) -> dict[str, Any]:
    """One section stands for all, as they are equal: its figures at the top level."""
    from .output import jsonable

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


def _text(report: Any, *, short: bool) -> str:
    from pointillist.plan_text import plan_text

    return plan_text(report, min(terminal_columns(), _WIDEST), short=short)
