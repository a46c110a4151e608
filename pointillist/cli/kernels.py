"""`pointillist kernels`: which family a kernel is of, and why."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kernels.families import FamilyRules, normalise
from kernels.kernel_mix import family_shares
from kernels.launches.launch import LaunchesRefused
from kernels.launches.read import open_launches
from pointillist.table import Column, cells_of, table_lines, terminal_columns
from transport.process.printable import printable
from wire.catalogue import Catalogue

from .output import JsonFlag, emit, examples, need_file, usage_error

_CHUNK_BYTES: Final = 1 << 20
_MOST_INPUT_BYTES: Final = 4 << 30

_EPILOG: Final = examples("""
pointillist kernels classify trace.json.gz   a PyTorch trace: launches and GPU time by family
nsys export --type sqlite run.nsys-rep && pointillist kernels classify run.sqlite
nm -C libfoo.so | cut -c20- | pointillist kernels classify -   one name a line
pointillist kernels explain 'void vllm::rms_norm_kernel<half>(half*)'   which rule, and why""")

app = typer.Typer(help="Kernel names and their families.", no_args_is_help=True)

Rules = Annotated[Path | None, typer.Option(help="Rules in TOML in place of the packaged ones.")]


@app.callback(epilog=_EPILOG)
def kernels() -> None:
    """Say which family a kernel is of, by the ordered rules of `kernels/families.toml`."""


@app.command(epilog=_EPILOG)
def classify(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="A PyTorch trace; SQLite or CSV of Nsight Systems; CSV of Nsight Compute; JSON or "
            "CSV of rocprofv3; a kernel table in TOML; or names, one a line. Told by its content.",
        ),
    ],
    rules: Rules = None,
    json: JsonFlag = False,
) -> None:
    """Show launches and GPU time by family, of a list of names or of a recorded trace."""
    found = load_rules(rules)
    with _as_file(file) as (path, shown):
        try:
            launches = open_launches(path)
            rows = family_shares(launches.launches, found)
        except LaunchesRefused as refusal:
            raise usage_error(f"{shown}: {refusal}", refusal.hint) from refusal
    skipped = {reason.value: count for reason, count in launches.skipped.most_common()}
    if not rows:
        lost = "".join(f"; {remark}" for remark in launches.remarks)
        lost += f"; left out: {_skipped(skipped)}" if skipped else ""
        raise usage_error(
            f"{shown}: expected launches of kernels in {launches.form}, found none{lost}"
        )
    answer = {
        "read_as": launches.form, "families": rows, "skipped": skipped, "remarks": launches.remarks,
    }  # fmt: skip
    emit(answer, json, text=_report)


@app.command(epilog=_EPILOG)
def explain(
    name: Annotated[str, typer.Argument(help="A kernel's name, demangled.")],
    rules: Rules = None,
    json: JsonFlag = False,
) -> None:
    """Show the rule that decided, the words it found, the normalised name, and rules that lost."""
    found = load_rules(rules)
    told = found.explain(name)
    answer = {
        "family": told.family,
        "rule": told.rule,
        "why": told.why,
        "normalised": normalise(name),
        "lost": [
            {"family": o.family, "rule": o.id, "priority": o.priority, "words": words}
            for o, words in found.others(name)
        ],
    }
    emit(answer, json)


def load_rules(path: Path | None) -> FamilyRules:
    """The packaged rules, or those of a file; families must be the catalogue's."""
    if path is not None:
        need_file(path, "family rules in TOML", "kernels/families.toml shows the packaged ones")
    try:
        return FamilyRules.load(path, families=Catalogue.load().classes("family"))
    except ValueError as error:
        raise usage_error(f"expected family rules: {error}") from error


@contextmanager
def _as_file(file: str) -> Iterator[tuple[Path, str]]:
    """Give a file, and what to call it; standard input is copied into one."""
    if file != "-":
        hint = "`-` reads standard input"
        yield need_file(Path(file), "a trace, a profiler's table or kernel names", hint), file
        return
    with tempfile.NamedTemporaryFile(prefix="pointillist-") as copy:
        while chunk := sys.stdin.buffer.read(_CHUNK_BYTES):
            copy.write(chunk)
            if copy.tell() > _MOST_INPUT_BYTES:
                raise usage_error(f"standard input: expected at most {_MOST_INPUT_BYTES:,} bytes")
        copy.flush()
        yield Path(copy.name), "standard input"


def _report(answer: Mapping[str, Any]) -> str:
    said = [_table(answer["families"]), "", f"Read as {answer['read_as']}."]
    if answer["skipped"]:
        said.append(f"Left out: {_skipped(answer['skipped'])}.")
    said += [f"Time: {remark}." for remark in answer["remarks"]]
    return "\n".join(said)


def _skipped(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} with {reason}" for reason, count in skipped.items())


def _table(rows: Any) -> str:
    columns = _COLUMNS if rows[0].gpu_time_ns is not None else _COLUMNS[:1] + _COLUMNS[3:]
    return "\n".join(table_lines(columns, cells_of(columns, rows), terminal_columns()))


_COLUMNS: Final = (
    Column("family", attrgetter("family")),
    Column("GPU time ms", lambda row: f"{row.gpu_time_ns / 1e6:,.3f}", right=True),
    Column("%", lambda row: f"{row.gpu_time_percent:.2f}", right=True),
    Column("launches", lambda row: f"{row.launches:,}", right=True),
    Column("%", lambda row: f"{row.launch_percent:.2f}", right=True),
    Column("names", lambda row: str(row.kernels), right=True, leaves=0),
    Column("heaviest", lambda row: printable(row.heaviest), folds=True),
)
