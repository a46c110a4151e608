"""GPU time in `agent history`: by kernel family over time, and by kernel, for people."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from edge_agent.local.quantity import quantity
from pointillist.table import Column, cells_of, table_lines, terminal_columns

from .output import rate

if TYPE_CHECKING:
    from edge_agent.local.gpu_time_series import GpuTimeSeries, KernelPlace, KernelSums

MOST_KERNELS: Final = 30
_MOST_FAMILIES: Final = 6
_OTHERS: Final = "others"
_KernelRow = tuple["KernelPlace", "KernelSums"]


def gpu_time_lines(series: GpuTimeSeries) -> list[str]:
    """Give a table over time and one of kernels; nothing where nothing was kept."""
    if not series.steps:
        return []
    width = terminal_columns()
    steps = [_grouped(document, _largest(series)) for document in series.documents()]
    columns = _step_columns(_largest(series))
    told = [
        *textwrap.wrap(_title(series), width),
        "",
        *table_lines(columns, cells_of(columns, steps), width),
    ]
    busiest = sorted(series.kernels.items(), key=lambda item: -item[1].time.value_ns)
    if not busiest:
        return told
    kernels = [
        column
        for column in _KERNELS
        if column.head != _INTERVAL or any(row[1].time.error_ns is not None for row in busiest)
    ]
    told += ["", *table_lines(kernels, cells_of(kernels, busiest[:MOST_KERNELS]), width)]
    if len(busiest) > MOST_KERNELS:
        left_out = len(busiest) - MOST_KERNELS
        told.append(f"and {left_out} more: --kind gpu_time --json has them")
    return told


def _title(series: GpuTimeSeries) -> str:
    first, last = series.steps[0], series.steps[-1]
    begin, end = _time(first.unix_ns), _time(last.unix_ns + last.span_ns)
    gpus = f"{series.gpus} GPU{'' if series.gpus == 1 else 's'}"
    return (
        f"GPU time by kernel family, {begin:%Y-%m-%d %H:%M:%SZ} to {end:%Y-%m-%d %H:%M:%SZ}, % of "
        f"the time of {gpus}. Covered is where every program on the GPU was measured."
    )


def _largest(series: GpuTimeSeries) -> list[str]:
    """Name the families with most time."""
    total: Counter[str] = Counter()
    for step in series.steps:
        total.update(step.families)
    return [family for family, _ in total.most_common(_MOST_FAMILIES)]


def _grouped(document: dict[str, Any], largest: list[str]) -> dict[str, Any]:
    """Add up the families that have no column."""
    shares: dict[str, float] = document["family_shares"]
    others = sum(share for family, share in shares.items() if family not in largest)
    return document | {"family_shares": shares | {_OTHERS: others}}


def _step_columns(largest: list[str]) -> list[Column]:
    return [
        Column("from", lambda step: f"{_time(step['unix_ns']):%H:%M:%SZ}"),
        Column("covered %", lambda step: f"{100 * step['covered_share']:.0f}", right=True),
        Column("busy %", lambda step: f"{100 * step['busy_share']:.1f}", right=True),
        *(
            Column(family, _share(family), right=True, leaves=_MOST_FAMILIES - number)
            for number, family in enumerate([*largest, _OTHERS])
        ),
    ]


def _share(family: str) -> Callable[[dict[str, Any]], str]:
    return lambda step: f"{100 * max(step['family_shares'].get(family, 0.0), 0.0):.1f}"


def _time(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)


_INTERVAL: Final = "±"


def _error(row: _KernelRow) -> str:
    error_ns = row[1].time.error_ns
    return "-" if error_ns is None else quantity(error_ns / 1e6, "ms")


def _mean(row: _KernelRow) -> str:
    launches = row[1].launches
    return quantity(_time_ns(row) / 1e3 / launches, "µs") if launches > 0 else "-"


def _time_ns(row: _KernelRow) -> float:
    """An estimate that no window of its own bears out may be below 0."""
    return max(row[1].time.value_ns, 0.0)


_KERNELS: Final = (
    Column("kernel", lambda row: row[0][3], folds=True),
    Column("family", lambda row: row[0][2], leaves=1),
    Column("GPU time", lambda row: quantity(_time_ns(row) / 1e6, "ms"), right=True),
    Column(_INTERVAL, _error, right=True),
    Column("launches", lambda row: rate(row[1].launches), right=True),
    Column("mean", _mean, right=True, leaves=0),
    Column("program", lambda row: f"{row[0][0]}[{row[0][1]}]", folds=True),
)
