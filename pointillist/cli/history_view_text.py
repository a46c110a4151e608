"""The view of a host in `agent history`: GPU calls, GPU time and metrics, in lines for people."""

from __future__ import annotations

import textwrap
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from edge_agent.local.view_lines import (
    FamilyStep,
    HostView,
    KernelLine,
    LevelLine,
    ProcessLine,
    RateEstimate,
)
from edge_agent.local.words import number, quantity, read_as
from pointillist.table import Column, cells_of, table_lines, terminal_columns

from .output import age, amount, rate

MOST_LINES: Final = 40
MOST_PROCESSES: Final = 20
MOST_KERNELS: Final = 30
_MOST_FAMILIES: Final = 6
_OTHERS: Final = "others"
_INTERVAL: Final = "±"
UNNAMED: Final = "(unnamed)"
"""A process that had ended before the agent could read its name."""
_NS_PER_S: Final = 1_000_000_000


def kernel_lines(view: HostView) -> list[str]:
    """Give launches by process and kernel, the most frequent first."""
    return _kernels(
        _CALLED, [k for k in view.kernels if k.gpu_ms is None], MOST_LINES, view, "kernel"
    )


def _kernels(
    columns: tuple[Column, ...], found: list[KernelLine], most: int, view: HostView, kind: str
) -> list[str]:
    if not found:
        return []
    lines = table_lines(columns, cells_of(columns, found[:most]), terminal_columns())
    beyond = "kernels" if kind == "kernel" else "timed_kernels"
    left = len(found[most:]) + view.left_out.get(beyond, 0)
    return [*lines, f"and {left} more: --kind {kind} --json has them"] if left > 0 else lines


def _process(kernel: KernelLine) -> str:
    return f"{kernel.process or UNNAMED}[{kernel.pid}]"


def _half(of: RateEstimate, seconds: float) -> str:
    """Write half of an interval of 95 % or more; where nothing bounds it, there is none."""
    return "?" if of.error is None else f"{of.error * seconds:,.0f}"


_CALLED: Final = (
    Column("GPU kernel", lambda kernel: kernel.kernel, folds=True),
    Column("family", lambda kernel: kernel.family, leaves=0),
    Column("launches", lambda k: f"{k.launches.value * k.seconds:,.0f}", right=True),
    Column(_INTERVAL, lambda kernel: _half(kernel.launches, kernel.seconds), right=True),
    Column("seen %", lambda k: f"{100 * k.launches.share:.1f}", right=True, leaves=1),
    Column("process", _process, folds=True),
)


def process_lines(view: HostView) -> list[str]:
    """Give what each process called, the busiest first: rates over its time, memory as it was."""
    found = [process for process in view.processes if process.launches is not None]
    lines = [line for process in found[:MOST_PROCESSES] for line in _process_lines(process, view)]
    left = len(found[MOST_PROCESSES:]) + view.left_out.get("processes", 0)
    if left > 0:
        lines.append(f"and {left} more processes: --kind process --json has them")
    return lines


def _process_lines(process: ProcessLine, view: HostView) -> list[str]:
    seconds, launches = process.seconds, process.launches
    if launches is None:
        return []
    half = f" ± {_half(launches, 1.0)}" if launches.share < 1 else ""
    waits = "?" if process.wait_share is None else f"{100 * process.wait_share:.1f} %"
    places = " ".join(
        filter(None, (process.application, process.container, process.pod, process.slurm_job))
    )
    lines = [
        f"GPU calls of {process.name or UNNAMED}[{process.pid}]: {rate(launches.value)}{half} "
        f"launches/s, waits {waits} in {age(int(seconds * _NS_PER_S))}  {places}".rstrip()
    ]
    if process.memory is not None:
        held = process.memory
        kept = held["allocations"] - held["frees"]
        lines.append(
            f"  device memory  live {amount(held['live_bytes'])}, peak {amount(held['peak_bytes'])}"
            f", {kept:,} never freed, the oldest for {age(held['oldest_age_ns'])}"
        )
    for copy in process.copies:
        count, size = copy.copies.value * seconds, copy.bytes_per_s * seconds
        lines.append(f"  copies {copy.direction}  {count:,.0f}, {amount(size)}")
    for call in view.collectives:
        if (call.pid, call.process, call.seconds) == (process.pid, process.name, seconds):
            count, size = call.calls.value * seconds, call.bytes_per_s * seconds
            lines.append(f"  {call.call} on {call.communicator}  {count:,.0f}, {amount(size)}")
    lines += [
        f"  {error['call']} failed {error['failures']:,} times with {error['code']}"
        for error in process.errors
    ]
    return lines


def gpu_time_lines(view: HostView, gpus: int) -> list[str]:
    """Give a table over time and one of kernels; nothing where nothing was kept."""
    if not view.steps:
        return []
    width, columns = terminal_columns(), _step_columns(view)
    return [
        *textwrap.wrap(_title(view, gpus), width),
        "",
        *table_lines(columns, cells_of(columns, view.steps), width),
        *(["", *kernels] if (kernels := timed_lines(view)) else []),
    ]


def timed_lines(view: HostView) -> list[str]:
    """Give kernels with their GPU time, that with most first; nothing where none was timed."""
    timed = [kernel for kernel in view.kernels if kernel.gpu_ms is not None]
    known = any(kernel.gpu_ms and kernel.gpu_ms.error is not None for kernel in timed)
    columns = tuple(column for column in _TIMED if known or column.head != _INTERVAL)
    return _kernels(columns, timed, MOST_KERNELS, view, "gpu_time")


def _title(view: HostView, gpus: int) -> str:
    begin, end = view.steps[0].unix_ns, view.steps[-1].unix_ns + view.steps[-1].span_ns
    return (
        f"GPU time by kernel family, {_time(begin):%Y-%m-%d %H:%M:%SZ} to "
        f"{_time(end):%Y-%m-%d %H:%M:%SZ}, % of the time of {gpus} GPU{'' if gpus == 1 else 's'}. "
        "Covered is where every program on the GPU was measured."
    )


def _step_columns(view: HostView) -> list[Column]:
    total: Counter[str] = Counter()
    for step in view.steps:
        total.update({f: share * step.span_ns for f, share in step.family_shares.items()})
    largest = [family for family, _ in total.most_common(_MOST_FAMILIES)]
    return [
        Column("from", lambda step: f"{_time(step.unix_ns):%H:%M:%SZ}"),
        Column("covered %", lambda step: f"{100 * step.covered_share:.0f}", right=True),
        Column("busy %", lambda step: f"{100 * step.busy_share:.1f}", right=True),
        *(
            Column(family, _share(family, largest), right=True, leaves=_MOST_FAMILIES - number)
            for number, family in enumerate([*largest, _OTHERS])
        ),
    ]


def _share(family: str, largest: list[str]) -> Callable[[FamilyStep], str]:
    def write(step: FamilyStep) -> str:
        shares = step.family_shares
        others = sum(share for name, share in shares.items() if name not in largest)
        share = others if family == _OTHERS else shares.get(family, 0.0)
        return f"{100 * max(share, 0.0):.1f}"

    return write


def _time(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)


def _gpu_time(kernel: KernelLine, part: str = "value") -> str:
    """Write GPU time, or half of its interval; an estimate may be below 0."""
    found = getattr(kernel.gpu_ms, part)
    return "-" if found is None else quantity(max(found * kernel.seconds, 0.0), "ms")


_TIMED: Final = (
    Column("kernel", lambda kernel: kernel.kernel, folds=True),
    Column("family", lambda kernel: kernel.family, leaves=1),
    Column("GPU time", _gpu_time, right=True),
    Column(_INTERVAL, lambda kernel: _gpu_time(kernel, "error"), right=True),
    Column("launches", lambda k: rate(k.launches.value * k.seconds), right=True),
    Column("mean", lambda k: "-" if k.mean_us is None else quantity(k.mean_us, "µs"), right=True,
           leaves=0),
    Column("GPU", lambda kernel: str(kernel.gpu), right=True, leaves=2),
    Column("program", _process, folds=True),
)  # fmt: skip


def metric_lines(levels: Iterable[LevelLine], most: int | None = None) -> list[str]:
    """Give each metric a line, those of the whole host before those of its parts.

    most    lines; where there are more, the parts of a metric share one, and the rest is counted
    """
    found = list(levels)
    if most is not None and len(found) > most:
        found = _parts_together(found)
    if not found:
        return []
    found.sort(key=lambda level: (bool(level.key), level[:4]))
    lines = table_lines(_METRICS, cells_of(_METRICS, found[:most]), terminal_columns())
    return [*lines, *left_out(len(found) - len(found[:most]), "more")]


def _parts_together(found: Iterable[LevelLine]) -> list[LevelLine]:
    """Put all keys of a metric on one line; the last value is that of one of them."""
    parts: dict[tuple[str, str, str, bool], list[LevelLine]] = {}
    for level in found:
        parts.setdefault((level.source, level.name, level.unit, bool(level.key)), []).append(level)
    return [
        of[-1]._replace(
            key=f"{len(of)} keys" if of[-1].key else "",
            rows=(rows := sum(level.rows for level in of)),
            mean=sum(level.mean * level.rows for level in of) / rows,
            least=min(level.least for level in of),
            most=max(level.most for level in of),
        )
        for of in parts.values()
    ]


def newest(rows: Iterable[Any], most: int | None) -> tuple[list[Any], int]:
    """Give the last so many rows, and how many came before them."""
    kept: deque[Any] = deque(maxlen=most)
    count = 0
    for row in rows:
        kept.append(row)
        count += 1
    return list(kept), count - len(kept)


def left_out(count: int, what: str) -> list[str]:
    return [f"and {count:,} {what}: --name PATTERN or --all shows them"] if count else []


def _shown(level: LevelLine) -> tuple[float, str]:
    unit = level.unit
    return read_as(unit) if unit.startswith("millionths") else (1.0, unit)


def _number(part: str) -> Callable[[LevelLine], str]:
    def write(level: LevelLine) -> str:
        (by, _), value = _shown(level), getattr(level, part)
        return f"{value:.6g}" if by == 1 else number(value / by)

    return write


def _metric_name(level: LevelLine) -> str:
    return f"{level.source}/{level.name}{f'[{level.key}]' if level.key else ''}"


_METRICS: Final = (
    Column("metric", _metric_name, folds=True),
    Column("rows", lambda level: str(level.rows), right=True, leaves=0),
    Column("least", _number("least"), right=True, leaves=1),
    Column("mean", _number("mean"), right=True),
    Column("most", _number("most"), right=True),
    Column("last", _number("last"), right=True),
    Column("unit", lambda level: _shown(level)[1], folds=True),
)
