"""GPU calls: launches by kernel with their sampling error, and the processes that made them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from collectors.records.quantiles import NORMAL
from edge_agent.local.history_sums import CallSum
from edge_agent.local.quantity import quantity
from pages.interval_chart import IntervalRow, interval_chart
from pages.layout import Panel, TableCell
from pages.number import Number, Unit
from pages.wording import ABSENT, interval_said, plain, value_said

LAUNCHES: Final = Unit("launches a second", 1.0, "/s", 1)
_SHOWN: Final = 16
_MOST_PROCESSES: Final = 40


def launches_panel(found: Sequence[CallSum], span_s: float) -> Panel:
    """Show the most frequent kernels: launches a second, with what sampling leaves open."""
    title = "Launches by kernel"
    if not found:
        return Panel("launches", title, "No GPU call was seen in this time.")
    rates = [_rate(row, span_s) for row in found]
    rows = [
        IntervalRow(f"{row.name} · {row.more['process']}", rate, None)
        for row, rate in zip(found[:_SHOWN], rates, strict=False)
    ]
    watched = min(row.share for row in found)
    return Panel(
        "launches", title,
        f"{found[0].name} is launched most: {value_said(rates[0], LAUNCHES)}.",
        drawing=interval_chart("Launches a second by kernel", rows, LAUNCHES),
        note="The line is the 95 % interval of what sampling leaves open. "
        f"Launches were watched for {100 * watched:.0f} % of the time at least.",
        heads=[
            ("Kernel", False), ("Family", False), ("Process", False), ("Launches", True),
            ("95 % interval", True),
        ],
        rows=[
            [
                TableCell(row.name),
                TableCell(plain(row.more["family"]) or ABSENT),
                TableCell(f"{row.more['process']} {row.more['pid']}"),
                TableCell(value_said(rate, LAUNCHES), number=True, unsure=not rate.told),
                TableCell(interval_said(rate, LAUNCHES), number=True),
            ]
            for row, rate in zip(found, rates, strict=True)
        ],
    )  # fmt: skip


def processes_panel(found: Sequence[CallSum], span_s: float) -> Panel:
    """Show who calls the GPU."""
    title = "Processes"
    if not found:
        return Panel("processes", title, "No process called the GPU in this time.")
    return Panel(
        "processes", title, "Who calls the GPU, and how long each waited for it.",
        heads=[
            ("Process", False), ("Application", False), ("Where", False), ("Launches", True),
            ("Waits for the GPU", True), ("Memory, at most", True),
        ],
        rows=[_process_row(row, span_s) for row in found[:_MOST_PROCESSES]],
        unfolded=True,
    )  # fmt: skip


def _process_row(row: CallSum, span_s: float) -> list[TableCell]:
    more = row.more
    where = [
        f"{noun} {more[name][:16]}"
        for name, noun in (("slurm_job", "job"), ("pod", "pod"), ("container", "container"))
        if more[name]
    ]
    waits = more["wait_ns"] / more["span_ns"] if more["span_ns"] else 0.0
    peak = more["peak_bytes"]
    return [
        TableCell(f"{row.name} {more['pid']}"),
        TableCell(plain(more["application"]) or ABSENT),
        TableCell(", ".join(where) or "the host"),
        TableCell(value_said(_rate(row, span_s), LAUNCHES), number=True),
        TableCell(f"{100 * waits:.0f} %", number=True),
        TableCell(ABSENT if peak is None else quantity(peak, "bytes"), number=True),
    ]


def _rate(row: CallSum, span_s: float) -> Number:
    """Give launches a second over the span; none where nothing bounds the sampling's error."""
    value = row.launches / span_s
    if row.variance is None:
        return Number(None, reason="watched too little")
    error = sqrt(row.variance) / span_s
    return Number(
        value, error, max(value - NORMAL * error, 0.0), value + NORMAL * error,
        told=value > NORMAL * error or not error,
    )  # fmt: skip
