"""GPU calls in `agent history`: lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf, isfinite, sqrt
from typing import Any, Final

from collectors.records.quantiles import NORMAL
from pointillist.table import Column, cells_of, table_lines, terminal_columns

from .output import age, amount, rate

Rows = Callable[[str], Iterator[dict[str, Any]]]

MOST_LINES: Final = 40
MOST_PROCESSES: Final = 20
UNNAMED: Final = "(unnamed)"
"""A process that had ended before the agent could read its name."""
_NS_PER_S: Final = 1_000_000_000
_KernelSums = tuple[tuple[int, str, str, str], dict[str, float]]
"""Process id, process, kernel and family; sums of its rows."""
_SUMS: Final = ("launches", "error", "span_ns", "seen_ns")


def kernel_lines(rows: Rows) -> list[str]:
    """Sum up launches by process and kernel, the most frequent first."""
    found: dict[tuple[int, str, str, str], dict[str, float]] = {}
    for row in rows("kernel"):
        place = (row["pid"], row["process"], row["name"], row["family"])
        sums = found.setdefault(place, dict.fromkeys(_SUMS, 0.0))
        sums["launches"] += row["launches"]
        # What hits cost is wrong in all rows alike, so that errors do not cancel.
        sums["error"] += inf if row["variance"] is None else NORMAL * sqrt(row["variance"])
        sums["span_ns"] += row["span_ns"]
        sums["seen_ns"] += row["span_ns"] * row["share"]
    if not found:
        return []
    busiest = sorted(found.items(), key=lambda item: -item[1]["launches"])
    lines = table_lines(_KERNELS, cells_of(_KERNELS, busiest[:MOST_LINES]), terminal_columns())
    if len(busiest) > MOST_LINES:
        lines.append(f"and {len(busiest) - MOST_LINES} more: --kind kernel --json has them")
    return lines


def _process(row: _KernelSums) -> str:
    (pid, process, _, _), _sums = row
    return f"{process or UNNAMED}[{pid}]"


def _error(row: _KernelSums) -> str:
    """Write half of an interval of 95 % or more; where nothing bounds it, there is none."""
    error = row[1]["error"]
    return f"{error:,.0f}" if isfinite(error) else "?"


def _seen(row: _KernelSums) -> str:
    return f"{100 * row[1]['seen_ns'] / max(row[1]['span_ns'], 1):.1f}"


_KERNELS: Final = (
    Column("GPU kernel", lambda row: row[0][2], folds=True),
    Column("family", lambda row: row[0][3], leaves=0),
    Column("launches", lambda row: f"{row[1]['launches']:,.0f}", right=True),
    Column("±", _error, right=True),
    Column("seen %", _seen, right=True, leaves=1),
    Column("process", _process, folds=True),
)


def process_lines(rows: Rows) -> list[str]:
    """Sum up each process, the busiest first: rates over its time, memory as it was last."""
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows("process"):
        found.setdefault((row["pid"], row["start_ns"], row["name"]), []).append(row)
    busiest = sorted(found.items(), key=lambda item: -sum(row["launches"] for row in item[1]))
    lines: list[str] = []
    for (pid, _, process), spans in busiest[:MOST_PROCESSES]:
        lines += _process_lines(f"{process or UNNAMED}[{pid}]", spans)
    if len(busiest) > MOST_PROCESSES:
        left_out = len(busiest) - MOST_PROCESSES
        lines.append(f"and {left_out} more processes: --kind process --json has them")
    return lines


def _process_lines(name: str, spans: list[dict[str, Any]]) -> list[str]:
    last, span_ns = spans[-1], sum(row["span_ns"] for row in spans)
    launches = sum(row["launches"] for row in spans) * _NS_PER_S / max(span_ns, 1)
    waited = sum(row["wait_share"] * row["span_ns"] for row in spans) / max(span_ns, 1)
    places = [last[key] for key in ("application", "container", "pod", "slurm_job") if last[key]]
    lines = [
        f"GPU calls of {name}: {rate(launches)} launches/s, waits {100 * waited:.1f} % "
        f"in {age(span_ns)}  {' '.join(places)}".rstrip()
    ]
    if last["live_bytes"] is not None:
        peak = max(row["peak_bytes"] or 0 for row in spans)
        kept = last["allocations"] - last["frees"]
        lines.append(
            f"  device memory  live {amount(last['live_bytes'])}, peak {amount(peak)}, "
            f"{kept:,} never freed, the oldest for {age(last['oldest_age_ns'])}"
        )
    copies: dict[str, list[float]] = {}
    for copy in (copy for row in spans for copy in row["copies"] if copy["share"]):
        sums = copies.setdefault(copy["direction"], [0.0, 0.0])
        sums[:] = [sums[0] + copy["copies"], sums[1] + copy["bytes"] / copy["share"]]
    for direction, (count, size) in copies.items():
        lines.append(f"  copies {direction}  {count:,.0f}, {amount(size)}")
    calls: dict[tuple[str, str], list[float]] = {}
    for collective in (
        collective for row in spans for collective in row["collectives"] if collective["share"]
    ):
        sums = calls.setdefault((collective["communicator"], collective["call"]), [0.0, 0.0])
        sums[:] = [
            sums[0] + collective["calls"],
            sums[1] + collective["bytes"] / collective["share"],
        ]
    for (communicator, call), (count, size) in calls.items():
        lines.append(f"  {call} on {communicator}  {count:,.0f}, {amount(size)}")
    failures: Counter[tuple[str, int]] = Counter()
    for error in (error for row in spans for error in row["errors"]):
        failures[error["call"], error["code"]] += error["failures"]
    lines += [f"  {call} failed {n:,} times with {code}" for (call, code), n in failures.items()]
    return lines
