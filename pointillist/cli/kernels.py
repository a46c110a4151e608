"""`pointillist kernels`: which family a kernel is of, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import ExitCode, JsonFlag, emit, need_file, reported, usage_error

if TYPE_CHECKING:
    from edge_agent.families import FamilyRules

_MOST_NAMES: Final = 10_000_000
_LONGEST_LINE: Final = 1 << 16

_EPILOG: Final = """Examples:

pointillist kernels classify trace.json.gz   a PyTorch trace: launches and GPU time by family

nm -C libfoo.so | cut -c20- | pointillist kernels classify -   one name a line

pointillist kernels explain 'void vllm::rms_norm_kernel<half>(half*)'   which rule, and why"""

app = typer.Typer(
    help="Kernel names and their families.", rich_markup_mode="rich", no_args_is_help=True
)

Rules = Annotated[Path | None, typer.Option(help="Rules in TOML in place of the packaged ones.")]


@app.callback(epilog=_EPILOG)
def kernels() -> None:
    """Say which family a kernel is of, by the ordered rules of `edge_agent/families.toml`."""


@app.command(epilog=_EPILOG)
def classify(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Names, one a line, or a PyTorch trace.")
    ],
    rules: Rules = None,
    json: JsonFlag = False,
) -> None:
    """Show launches and GPU time by family, of a list of names or of a recorded trace."""
    from edge_agent.kernel_shares import family_shares
    from edge_agent.sources.port import SourceUnavailable

    found = load_rules(rules)
    with reported(ExitCode.USAGE, SourceUnavailable, UnicodeDecodeError):
        rows = family_shares(_launches(file), found)
    if not rows:
        raise usage_error(f"{file}: expected kernel names or a trace with GPU events, found none")
    emit(rows, json, text=_table)


@app.command(epilog=_EPILOG)
def explain(
    name: Annotated[str, typer.Argument(help="A kernel's name, demangled.")],
    rules: Rules = None,
    json: JsonFlag = False,
) -> None:
    """Show the rule that decided, the words it found, the normalised name, and rules that lost."""
    from edge_agent.kernel_name import normalise

    found = load_rules(rules)
    told = found.explain(name)
    answer = {
        "family": told.family,
        "rule": told.rule,
        "why": told.why,
        "normalised": normalise(name),
        "lost": [
            {"family": o.family, "rule": o.rule, "priority": o.priority, "words": o.words}
            for o in found.others(name)
        ],
    }
    emit(answer, json)


def load_rules(path: Path | None) -> FamilyRules:
    """The packaged rules, or those of a file; families must be the catalogue's."""
    from edge_agent.families import FamilyRules
    from wire.catalogue import Catalogue

    if path is not None:
        need_file(path, "family rules in TOML", "edge_agent/families.toml shows the packaged ones")
    try:
        return FamilyRules.load(path, families=Catalogue.load().classes("family"))
    except ValueError as error:
        where = "the packaged rules" if path is None else str(path)
        raise usage_error(f"{where}: expected rules in TOML: {error}") from error


def _launches(file: str) -> Iterator[tuple[str, int | None]]:
    """Each launch of a trace with its time, or each line of a list without one."""
    if file == "-":
        yield from _names(sys.stdin.buffer, "standard input")
        return
    path = need_file(Path(file), "kernel names or a trace", "`-` reads names from standard input")
    from edge_agent.sources.kineto import gpu_events, open_trace

    with open_trace(path) as stream:
        head = stream.read(256).lstrip()
        if head[:1] not in {b"{", b"["} or head.startswith(b"[CUDA "):
            stream.seek(0)
            yield from _names(stream, file)
            return
    for event in gpu_events(path, reorder=1):
        yield event.name, event.duration_ns


def _names(stream: IO[bytes], where: str) -> Iterator[tuple[str, None]]:
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if number == 1 and line.lstrip()[:1] == b"{":
            raise usage_error(f"{where}: expected kernel names, got JSON", "name a trace's file")
        if number > _MOST_NAMES:
            raise usage_error(f"{where}: expected at most {_MOST_NAMES:,} names")
        if name := line.decode("utf-8", errors="replace").strip():
            yield name, None


def _table(rows: Any) -> str:
    timed = rows[0].gpu_time_ns is not None
    time_head = f"{'GPU time ms':>13} {'%':>6} " if timed else ""
    lines = [f"{'family':<20} {time_head}{'launches':>10} {'%':>6} {'names':>6}  heaviest"]
    for row in rows:
        time = f"{row.gpu_time_ns / 1e6:>13,.3f} {row.gpu_time_percent:>6.2f} " if timed else ""
        lines.append(
            f"{row.family:<20} {time}{row.launches:>10,} {row.launch_percent:>6.2f} "
            f"{row.kernels:>6}  {row.heaviest[:60]}"
        )
    return "\n".join(lines)
