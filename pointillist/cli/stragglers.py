"""`pointillist stragglers`: which rank of one job is slow, and who waited for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import CommandError, ExitCode, JsonFlag, emit, reported, say, usage_error

if TYPE_CHECKING:
    from diagnosis.stragglers.judge import JobJudgement

_HELP = """Say which rank of one job is slow, at what, and who waited for it.

Ranks are compared with ranks of their own pipeline stage, over all steps: from a trace of the job,
or live, where its ranks run in cgroups of this host. All of it is the operator's own; nothing
leaves this machine.
"""

_EXAMPLES: Final = """Examples:

pointillist stragglers trace.parquet   rows of rank, step, optype, start, duration; stage, dp_rank

pointillist stragglers trace.csv --plot job.png   with a picture of ranks and steps

pointillist stragglers traces/   PyTorch traces of several ranks

pointillist stragglers --live '/train/rank*' --seconds 30   the ranks of this host, as root

pointillist stragglers trace.parquet --json | jq '.ranks[] | select(.verdict == "slow")'"""

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
    from .stragglers_text import text, verdict

    emit(told, json, text=lambda _: text(told, every))
    if plot is not None:
        _draw(plot, judged, f"{title} · {verdict(told)}")


def _read(trace: Path) -> tuple[JobJudgement, dict[str, Any], str]:
    from diagnosis.stragglers.judge import job_of, judge
    from diagnosis.stragglers.trace import TraceRefused
    from diagnosis.stragglers.trace_file import read_trace

    from .stragglers_text import document

    if not trace.exists():
        hint = "`pointillist stragglers --help` says what it holds"
        raise usage_error(f"{trace}: expected a trace of ranks, there is no such file", hint)
    with reported(ExitCode.USAGE, TraceRefused):
        judged = judge(job_of(read_trace(trace)))
    return judged, document(judged), trace.name


def _watched(
    pattern: str, seconds: float, stage_size: int | None
) -> tuple[JobJudgement, dict[str, Any], str]:
    from collectors.port import SourceUnavailable
    from diagnosis.stragglers.job_watch import JobWatch, NoRanks, find_ranks

    from .stragglers_text import document

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


def _draw(plot: Path, judged: JobJudgement, title: str) -> None:
    from diagnosis.stragglers.job_plot import draw

    try:
        draw(plot, judged, title)
    except OSError as error:
        message = f"cannot write {plot}: {error.strerror or error}"
        raise CommandError(ExitCode.UNAVAILABLE, message) from error
    say(f"picture in {plot}")
