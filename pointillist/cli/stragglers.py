"""`pointillist stragglers`: which rank of one job is slow, and who waited for it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from collectors.interface import SourceUnavailable
from diagnosis.stragglers.trace import TraceRefused
from pointillist.table import Column, cells_of, laid_out, terminal_columns
from transport.process.printable import printable

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    reported,
    say,
    span,
    unavailable,
    usage_error,
)

if TYPE_CHECKING:
    from diagnosis.stragglers.judge import JobJudgement, RankResult


Row = Mapping[str, Any]


def _verdict(row: Row) -> str:
    told = words(row["verdict"])
    return f"{told}: {words(row['cause'])}" if row["verdict"] == "slow" else told


def _share(row: Row) -> str:
    if row["excess_percent"] is None:
        return "-"
    return f"{round(row['excess_percent'], 1) + 0.0:.1f} %"


def _more(row: Row) -> str:
    return "-" if row["excess_ms_per_step"] is None else span(row["excess_ms_per_step"])


def _z(row: Row) -> str:
    return "-" if row["z"] is None else f"{round(row['z'], 1) + 0.0:.1f}"


def _slow_steps(row: Row) -> str:
    return f"{row['slow_steps']:,} of {row['compared_steps']:,}"


_COLUMNS: Final = (
    Column("rank", lambda row: str(row["rank"]), right=True),
    Column("stage", lambda row: str(row["stage"]), right=True, leaves=1),
    Column("excess", _share, right=True),
    Column("a step", _more, right=True, leaves=3),
    Column("z", _z, right=True, leaves=0),
    Column("slow steps", _slow_steps, right=True, leaves=5),
    Column(
        "others waited", lambda row: span(row["others_waited_ms_per_step"]), right=True, leaves=4
    ),
    Column("it waited", lambda row: span(row["waited_ms_per_step"]), right=True, leaves=2),
    Column("verdict", _verdict),
)
_CGROUP: Final = Column("cgroup", lambda row: printable(str(row["name"])))


def words(name: str) -> str:
    return str(name).replace("_", " ")


_MOST_ROWS: Final = 40
_MOST_TOLD: Final = 8
_LEAST_SHARE: Final = 0.001
_EXCESS: Final = "excess_percent"


def document(
    judged: JobJudgement,
    names: Sequence[str] = (),
    reasons: Mapping[int, str] | None = None,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything, for --json.

    names     of the ranks, where they have any beside their number
    reasons   what the time of a slow rank goes to, where more is known than the trace tells
    remarks   of the trace's files
    """
    return {
        "slow_ranks": [result.rank for result in judged.slow],
        "steps": len(judged.steps),
        "first_step": int(judged.steps[0]),
        "last_step": int(judged.steps[-1]),
        "ranks": [_row(rank, judged, names, reasons or {}) for rank in judged.ranks],
        "slow_links": [
            {"ranks": link.ranks, "excess_ms_per_step": 1e3 * link.compared.excess_s}
            for link in judged.links
        ],
        "stages": [
            {
                "stage": stage.stage,
                "work_ms_per_step": 1e3 * stage.work_s,
                "work_over_others": stage.over_others,
            }
            for stage in judged.stages
        ],
        "uneven_stages": [stage.stage for stage in judged.stages if stage.uneven],
        "uneven_input_stages": [stage.stage for stage in judged.stages if stage.uneven_input],
        "calls": judged.waits.calls,
        "calls_out_of_order": judged.waits.impossible,
        "waited_ms_per_step": _waits(judged),
        "remarks": list(remarks),
    }


def text(told: Mapping[str, Any], every: bool) -> str:
    width = terminal_columns()
    rows = list(told["ranks"])
    if len(rows) > _MOST_ROWS and not every:
        rows = sorted(rows, key=lambda row: (row["verdict"] != "slow", -(row[_EXCESS] or 0.0)))
        rows = rows[:_MOST_ROWS]
    columns = [*_COLUMNS, _CGROUP] if rows and "name" in rows[0] else _COLUMNS
    lines, left_out = laid_out(columns, cells_of(columns, rows), width, heads_fold=False)
    if len(rows) < len(told["ranks"]):
        lines.append(f"... and {len(told['ranks']) - len(rows)} more; --all shows them")
    said = [*_remarks(told), "", *_legend(told)]
    if left_out:
        said.append(f"Left out, as the terminal is narrow: {', '.join(left_out)}.")
    wrapper = textwrap.TextWrapper(max(width, 20), subsequent_indent="  ")
    return "\n".join([*lines, "", *(part for line in said for part in wrapper.wrap(line) or [""])])


def verdict(told: Mapping[str, Any]) -> str:
    slow = [row for row in told["ranks"] if row["verdict"] == "slow"]
    if slow:
        return "slow: rank " + ", ".join(f"{row['rank']} ({words(row['cause'])})" for row in slow)
    if told["slow_links"]:
        links = ", ".join(" - ".join(map(str, link["ranks"])) for link in told["slow_links"])
        return f"no slow rank; slow link: {links}"
    if all(row["verdict"] in {"no_peers", "too_few_steps"} for row in told["ranks"]):
        return f"nothing can be said ({words(told['ranks'][0]['verdict'])})"
    return "no slow rank"


def _legend(told: Mapping[str, Any]) -> list[str]:
    said = [
        (
            "excess, a step: own work beside the peers', in the window of at most 50 steps that "
            "says most; z: its distance from them, in spreads."
        ),
        "slow steps: of the whole run, those above the margin.",
    ]
    if told["calls"]:
        said.append(
            "others waited: because of it, all of them together, a step; it waited: for others, "
            "a step."
        )
    return said


def _remarks(told: Mapping[str, Any]) -> list[str]:
    steps = told["last_step"] - told["first_step"] + 1
    gaps = f", all that was recorded of {told['first_step']} to {told['last_step']}"
    count = f"{told['steps']} step{'' if told['steps'] == 1 else 's'}"
    said = [f"{verdict(told)}; {count}{gaps if steps > told['steps'] else ''}"]
    said += map(_when, [row for row in told["ranks"] if row["from_step"] is not None][:_MOST_TOLD])
    said += [
        f"stage {stage['stage']} has {stage['work_over_others']:.2f} times the work of the others: "
        "uneven stages, or all of its ranks are slow"
        for stage in told["stages"]
        if stage["stage"] in told["uneven_stages"]
    ]
    if told["uneven_input_stages"]:
        stages = ", ".join(map(str, told["uneven_input_stages"]))
        said.append(f"stage {stages}: each rank's work varies from step to step: uneven input")
    if told["calls_out_of_order"]:
        said.append(
            f"{told['calls_out_of_order']:,} of {told['calls']:,} calls are left out of the waits: "
            "a rank left before another came"
        )
    if not told["calls"]:
        said.append("no calls between ranks were seen: who waited is not known")
    more = len(told["remarks"]) - _MOST_TOLD
    said += told["remarks"][:_MOST_TOLD]
    return said + ([f"{more:,} more remarks: --json has them"] if more > 0 else [])


def _when(row: Mapping[str, Any]) -> str:
    return (
        f"rank {row['rank']}: slow from step {row['from_step']} to {row['to_step']}, in "
        f"{row['slow_steps_of_run_percent']:.0f} % of the run's steps; in the window that shows it "
        f"best, {row['window_from_step']} to {row['window_to_step']}, in "
        f"{row['slow_steps_percent']:.0f} %"
    )


def _row(
    result: RankResult, judged: JobJudgement, names: Sequence[str], reasons: Mapping[int, str]
) -> dict[str, Any]:
    steps = max(len(judged.steps), 1)
    name = {"name": names[result.rank]} if names else {}
    return {"rank": result.rank} | name | {
        "stage": result.stage,
        "verdict": result.verdict,
        "cause": reasons.get(result.rank, result.slowness),
        "test": result.compared.test,
        "z": result.compared.z,
        "excess_percent": 100 * result.compared.excess if result.steps else None,
        "excess_ms_per_step": 1e3 * result.compared.excess_s if result.steps else None,
        "window_from_step": result.window[0],
        "window_to_step": result.window[1],
        "slow_steps_percent": 100 * result.compared.persistence,
        "slow_steps": result.slow_steps,
        "compared_steps": result.steps,
        "slow_steps_of_run_percent": 100 * result.slow_steps / max(result.steps, 1),
        "from_step": result.stretch[0] if result.stretch else None,
        "to_step": result.stretch[1] if result.stretch else None,
        "others_waited_ms_per_step": 1e3 * result.waited_for_s / steps,
        "waited_ms_per_step": 1e3 * result.waited_s / steps,
    }  # fmt: skip


def _waits(judged: JobJudgement) -> list[dict[str, Any]]:
    """Pairs of ranks, the longest waits first; none below a thousandth of all waiting."""
    per_step = 1e3 * judged.waits.followed / max(len(judged.steps), 1)
    least = _LEAST_SHARE * per_step.sum()
    pairs = [
        {"rank": rank.rank, "for": other.rank, "ms": float(per_step[row, column])}
        for row, rank in enumerate(judged.ranks)
        for column, other in enumerate(judged.ranks)
        if row != column and per_step[row, column] > least
    ]
    return sorted(pairs, key=lambda pair: -pair["ms"])


_HELP = """Say which rank of one job is slow, at what, and who waited for it.

Ranks are compared with ranks of their own pipeline stage, over all steps: from a trace of the job,
or live, where its ranks run in cgroups of this host. All of it is the operator's own; nothing
leaves this machine.
"""

_EXAMPLES: Final = examples("""
pointillist stragglers trace.parquet   rows of rank, step, optype, start, duration; stage, dp_rank
pointillist stragglers trace.csv --plot job.png   with a picture of ranks and steps
pointillist stragglers traces/   PyTorch traces of several ranks
pointillist stragglers --live '/train/rank*' --seconds 30   the ranks of this host, as root
pointillist stragglers trace.parquet --json | jq '.ranks[] | select(.verdict == "slow")'""")

_PLOTS: Final = (".png", ".svg")

app = typer.Typer(help="Which rank of one job is slow.", subcommand_metavar="")


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
    live: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Cgroups of the ranks on this host, one each."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to watch.", min=6, max=3600)] = 20.0,
    stage_size: Annotated[
        int | None, typer.Option(help="With --live: ranks in a pipeline stage; else one.", min=1)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture, .png or .svg.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show each rank of a large job.")] = False,
    json: JsonFlag = False,
) -> None:
    if plot is not None and plot.suffix not in _PLOTS:
        raise usage_error(f"--plot: expected a name ending in .png or .svg, got {plot.name}")
    if trace is not None and live is not None:
        raise usage_error("a trace and --live exclude each other")
    if live is not None:
        judged, told, title = _watched(live, seconds, stage_size)
    elif trace is not None:
        judged, told, title = _read(trace)
    else:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)

    emit(told, json, text=lambda _: text(told, every))
    if plot is not None:
        from diagnosis.stragglers.job_plot import draw

        try:
            draw(plot, judged, f"{title} · {verdict(told)}")
        except OSError as error:
            raise unavailable(f"cannot write {plot}: {error.strerror or error}") from error
        say(f"picture in {plot}")


def _read(trace: Path) -> tuple[JobJudgement, dict[str, Any], str]:
    from diagnosis.stragglers.judge import job_of, judge
    from diagnosis.stragglers.trace_file import read_trace

    if not trace.exists():
        hint = "`pointillist stragglers --help` says what it holds"
        raise usage_error(f"{trace}: expected a trace of ranks, there is no such file", hint)
    with reported(ExitCode.USAGE, TraceRefused):
        read = read_trace(trace)
        judged = judge(job_of(read))
    return judged, document(judged, remarks=read.remarks), trace.name


def _watched(
    pattern: str, seconds: float, stage_size: int | None
) -> tuple[JobJudgement, dict[str, Any], str]:
    from diagnosis.stragglers.job_watch import JobWatch, NoRanks, find_ranks

    look = "systemd-cgls, or the folders under /sys/fs/cgroup, show what there is"
    with (
        reported(ExitCode.USAGE, NoRanks, hint=look),
        reported(ExitCode.UNAVAILABLE, SourceUnavailable),
    ):
        ranks = find_ranks(pattern)
    stages = [number // (stage_size or len(ranks)) for number in range(len(ranks))]
    with JobWatch(ranks, stages) as watch:
        for absent in watch.live.absent:
            say(f"{absent.source}: {absent.reason}")
        if not watch.probes:
            say("no gloo, MPI or NCCL in these ranks: who waited for whom will not be known")
        if watch.by_hosts:
            say("GPU ranks: waits are for peers whose host comes late, not for a slow GPU")
        say(f"watching {len(ranks)} ranks for {seconds:g} s")
        watch.watch(seconds)
        found = watch.found()
    judged = found.best
    if judged is None:
        message = "expected to see what the ranks' cgroups do, saw nothing"
        hint = "run as root; `pointillist agent doctor` says what is missing"
        raise CommandError(ExitCode.UNAVAILABLE, message, hint)
    reasons = {rank: str(reason) for rank, reason in found.reasons.items()}
    told = document(judged, [judged_rank.cgroup for judged_rank in ranks], reasons)
    return judged, told, pattern
