"""`pointillist stragglers`: which rank of one job is slow, and who waited for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import CommandError, ExitCode, JsonFlag, emit, need_file, reported, say, usage_error

if TYPE_CHECKING:
    from edge_agent.stragglers.judge import Judgement, RankResult

_HELP = """Say which rank of one job is slow, at what, and who waited for it.

Ranks are compared with ranks of their own pipeline stage, over all steps. The trace is the
operator's own: nothing of it leaves this machine.
"""

_EXAMPLES: Final = """Examples:

pointillist stragglers trace.parquet   a row an operation: rank, step, optype, start, duration

pointillist stragglers trace.csv --plot job.png   with a picture of ranks and steps

pointillist stragglers trace.parquet --json | jq '.ranks[] | select(.verdict == "slow")'"""

_PLOTS: Final = (".png", ".svg")
_MOST_ROWS: Final = 40

app = typer.Typer(
    help="Which rank of one job is slow.", rich_markup_mode="rich", subcommand_metavar=""
)


@app.callback(
    invoke_without_command=True,
    help=_HELP,
    epilog=_EXAMPLES,
    # Options may follow the file, as in every other command.
    context_settings={"allow_interspersed_args": True},
)
def stragglers(
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="TRACE", help="Parquet, CSV or JSON; a folder of PyTorch traces."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture, .png or .svg.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show each rank of a large job.")] = False,
    json: JsonFlag = False,
) -> None:
    if trace is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    if plot is not None and plot.suffix not in _PLOTS:
        raise usage_error(f"--plot: expected a name ending in .png or .svg, got {plot.name}")
    judged = _judged(trace)
    _show(judged, every, json)
    if plot is not None:
        _draw(plot, judged, trace.name)


def _judged(trace: Path) -> Judgement:
    from edge_agent.stragglers.judge import job_of, judge
    from edge_agent.stragglers.trace import TraceRefused
    from edge_agent.stragglers.trace_file import read_trace

    need_file(trace, "a trace of ranks", "`pointillist stragglers --help` says what it holds")
    with reported(ExitCode.USAGE, TraceRefused):
        return judge(job_of(read_trace(trace)))


def _draw(plot: Path, judged: Judgement, name: str) -> None:
    from edge_agent.stragglers.plot import draw

    try:
        draw(plot, judged, f"{name}: {_verdict(judged)}")
    except OSError as error:
        message = f"cannot write {plot}: {error.strerror or error}"
        raise CommandError(ExitCode.UNAVAILABLE, message) from error
    say(f"picture in {plot}")


def _show(judged: Judgement, every: bool, json: bool) -> None:
    document = {
        "slow_ranks": [one.rank for one in judged.slow],
        "steps": len(judged.steps),
        "ranks": [_row(one, judged) for one in judged.ranks],
        "slow_links": [
            {"ranks": one.ranks, "excess_ms_per_step": 1e3 * one.compared.excess_s}
            for one in judged.links
        ],
        "uneven_stages": judged.uneven,
        "calls": judged.waits.calls,
        "calls_out_of_order": judged.waits.impossible,
        "waited_ms_per_step": _waits(judged),
    }
    emit(document, json, text=lambda _: "\n".join(_text(judged, every)))


def _row(one: RankResult, judged: Judgement) -> dict[str, Any]:
    steps = max(len(judged.steps), 1)
    return {
        "rank": one.rank,
        "stage": one.stage,
        "verdict": one.verdict,
        "cause": one.slowness,
        "test": one.compared.test,
        "z": one.compared.z,
        "excess_percent": 100 * one.compared.excess,
        "excess_ms_per_step": 1e3 * one.compared.excess_s,
        "slow_steps_percent": 100 * one.compared.persistence,
        "from_step": one.slow_steps[0] if one.slow_steps else None,
        "to_step": one.slow_steps[1] if one.slow_steps else None,
        "others_waited_ms_per_step": 1e3 * one.waited_for_s / steps,
        "waited_ms_per_step": 1e3 * one.waited_s / steps,
    }


def _waits(judged: Judgement) -> list[dict[str, Any]]:
    """Pairs of ranks, the longest waits first; no pair that waited under a thousandth of all."""
    per_step = 1e3 * judged.waits.followed / max(len(judged.steps), 1)
    least = 0.001 * per_step.sum()
    pairs = [
        {"rank": one.rank, "for": other.rank, "ms": float(per_step[row, column])}
        for row, one in enumerate(judged.ranks)
        for column, other in enumerate(judged.ranks)
        if row != column and per_step[row, column] > least
    ]
    return sorted(pairs, key=lambda pair: -pair["ms"])


def _verdict(judged: Judgement) -> str:
    if judged.slow:
        named = ", ".join(f"{one.rank} ({one.slowness.replace('_', ' ')})" for one in judged.slow)
        return f"slow: rank {named}"
    if judged.links:
        named = ", ".join(" - ".join(map(str, one.ranks)) for one in judged.links)
        return f"no slow rank; slow link: {named}"
    return "no slow rank"


def _text(judged: Judgement, every: bool) -> list[str]:
    rows = list(judged.ranks)
    if len(rows) > _MOST_ROWS and not every:
        rows = sorted(rows, key=lambda one: -one.compared.excess)[:_MOST_ROWS]
    lines = [
        f"{'rank':>6} {'stage':>5} {'z':>7} {'excess':>8} {'ms/step':>10} {'in steps':>8} "
        f"{'others waited':>14} {'waited':>10}  verdict"
    ]
    steps = max(len(judged.steps), 1)
    for one in rows:
        z = "-" if one.compared.z is None else f"{one.compared.z:.1f}"
        told = one.verdict.replace("_", " ")
        if one.slow_steps:
            told += f": {one.slowness.replace('_', ' ')}, steps {one.slow_steps[0]} to "
            told += f"{one.slow_steps[1]}"
        lines.append(
            f"{one.rank:>6} {one.stage:>5} {z:>7} {100 * one.compared.excess:>6.1f} % "
            f"{1e3 * one.compared.excess_s:>10,.1f} {100 * one.compared.persistence:>6.0f} % "
            f"{1e3 * one.waited_for_s / steps:>11,.1f} ms {1e3 * one.waited_s / steps:>7,.1f} ms"
            f"  {told}"
        )
    if len(rows) < len(judged.ranks):
        lines.append(f"... and {len(judged.ranks) - len(rows)} more; --all shows them")
    return [*lines, "", *_remarks(judged)]


def _remarks(judged: Judgement) -> list[str]:
    said = [f"{_verdict(judged)} in {len(judged.steps)} steps"]
    if judged.uneven:
        stages = ", ".join(map(str, judged.uneven))
        said.append(
            f"the work of each rank varies from step to step (stage {stages}): uneven input"
        )
    if judged.waits.impossible:
        said.append(
            f"{judged.waits.impossible:,} of {judged.waits.calls:,} calls left out of the waits: a "
            "rank left before another came"
        )
    if not judged.waits.calls:
        said.append("no calls between ranks in this trace: who waited is not known")
    return said
