"""How busy the host is: GPUs over time, CPUs and memory, GPU time, and the calls of the GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from edge_agent.local.sums import LevelBin
from edge_agent.local.view_lines import FamilyStep, HostView, KernelLine, ProcessLine, RateEstimate
from edge_agent.local.words import quantity
from pages.heat_map import HeatTable, heat_map
from pages.interval_chart import IntervalRow, interval_chart
from pages.layout import Panel, TableCell
from pages.svg import length_said, moment_said
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import ABSENT, Number, Unit, counted, interval_said, plain, value_said

PERCENT: Final = Unit("percent", 1.0, " %", 0, "from least to most")
_NS: Final = 1_000_000_000
_MILLION: Final = 1_000_000

_MOST_LINES: Final = 6
_MOST_KERNELS: Final = 20
_SHOWN: Final = 16
_MOST_PROCESSES: Final = 40
LAUNCHES: Final = Unit("launches a second", 1.0, "/s", 1)


def gpus_panel(bins: Sequence[LevelBin], width_s: float) -> Panel:
    if not bins:
        words = "No GPU was measured in this time."
        return Panel("gpus", "Utilisation of each GPU", words)
    names = _short_names(dict.fromkeys(found.key for found in bins))
    moments = sorted({found.at_ns for found in bins})
    cells = {
        (names[found.key], str(found.at_ns)): Number(
            found.mean, None, found.least, found.most, told=True
        )
        for found in bins
    }
    texts = {str(at): moment_said(at // _NS)[11:16] for at in moments}
    table = HeatTable(list(names.values()), [str(at) for at in moments], cells, texts)
    busiest = max(names, key=lambda key: _mean(bins, key))
    return Panel(
        "gpus", "Utilisation of each GPU",
        f"{counted(len(names), 'GPU')}. The busiest is {names[busiest]}: "
        f"{_mean(bins, busiest):.0f} % on average. The stronger, the busier.",
        drawing=heat_map("Utilisation by GPU and time", table, PERCENT),
        note=f"Means of {length_said(width_s)}, UTC, with the least and the most in them, by NVML.",
        heads=[("GPU", False), ("Mean", True), ("Least", True), ("Most", True)],
        rows=[_level_row(name, [b for b in bins if b.key == key]) for key, name in names.items()],
    )  # fmt: skip


def host_panel(
    cpu: Sequence[LevelBin], memory: Sequence[LevelBin], gpus: Sequence[LevelBin], width_s: float
) -> Panel:
    measured = {
        "CPU, user": _of_key(cpu, "user"),
        "CPU, system": _of_key(cpu, "system"),
        "memory in use": _of_key(memory, "used"),
    }
    lines = {name: _shares(bins, 100 / _MILLION) for name, bins in measured.items()}
    lines["GPUs, mean"] = _averaged(gpus)
    shown = [
        TrendLine(name, [_point(b, width_s) for b in bins], tone)
        for tone, (name, bins) in enumerate(lines.items())
        if bins
    ]
    if not shown:
        return Panel("host", "CPU and memory", "Nothing was kept of this time.")
    newest = [f"{line.name} {line.points[-1].number.value:.0f} %" for line in shown]
    return Panel(
        "host", "CPU and memory",
        f"Now: {'; '.join(newest)}.",
        drawing=trend_chart("Shares of what the host has", shown, PERCENT),
        note=f"Means of {length_said(width_s)}, UTC; the band goes from the least to the most "
        "in them.",
        heads=[("Of", False), ("Mean", True), ("Least", True), ("Most", True)],
        rows=[_level_row(name, bins) for name, bins in lines.items() if bins],
    )  # fmt: skip


def families_panel(steps: Sequence[FamilyStep], gpus: int) -> Panel:
    title = "GPU time by kernel family"
    totals: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, share in step.family_shares.items():
            totals[name] += share * step.span_ns * max(gpus, 1) / 1e6
    leading = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name]]
    if not leading:
        return Panel("families", title, "No kernel was timed in this time.")
    width_s = max(step.span_ns for step in steps) / _NS
    lines = [
        TrendLine(
            plain(name),
            [
                TrendPoint(
                    step.unix_ns / _NS, step.span_ns / _NS,
                    Number(100 * step.family_shares.get(name, 0.0)),
                )
                for step in steps
            ],
            tone,
        )
        for tone, name in enumerate(leading[:_MOST_LINES])
    ]  # fmt: skip
    said = [f"{plain(name)} ({quantity(totals[name], 'ms')})" for name in leading[:3]]
    return Panel(
        "families", title, f"Most GPU time went to {', '.join(said)}.",
        drawing=trend_chart(title, lines, PERCENT),
        note=f"Percent of the time of {counted(max(gpus, 1), 'GPU')} in spans of "
        f"{length_said(width_s)}, UTC.",
        heads=[("Family", False), ("GPU time", True)],
        rows=[
            [TableCell(plain(name)), TableCell(quantity(totals[name], "ms"), number=True)]
            for name in leading
        ],
    )  # fmt: skip


def kernels_panel(view: HostView) -> Panel:
    title = "Kernels"
    timed = [(line, line.gpu_ms) for line in view.kernels if line.gpu_ms and line.gpu_ms.value > 0]
    if not timed:
        return Panel("kernels", title, "No kernel was timed in this time.")
    # One unit for all, by the largest.
    factor, name = (1e-3, "s") if timed[0][1].value * timed[0][0].seconds >= 1e3 else (1.0, "ms")
    unit = Unit("GPU time", factor, f" {name}", 1)
    shown = [(line, _number(ms, line.seconds)) for line, ms in timed[:_MOST_KERNELS]]
    rows = [IntervalRow(f"{line.kernel}{_whose(line)}", number) for line, number in shown]
    more = len(timed) - len(shown) + view.left_out.get("timed_kernels", 0)
    return Panel(
        "kernels", title, "Those that took most GPU time.",
        drawing=interval_chart("GPU time by kernel", rows, unit),
        note="The line is the 95 % interval of what sampling leaves open, where it is known.",
        heads=[
            ("Kernel", False), ("Family", False), ("Process", False), ("GPU", True),
            ("GPU time", True), ("95 % interval", True), ("Launches", True),
        ],
        rows=[
            [
                TableCell(line.kernel),
                TableCell(plain(line.family)),
                TableCell(f"{line.process} {line.pid}" if line.pid else ABSENT),
                TableCell(str(line.gpu), number=True),
                TableCell(value_said(number, unit), number=True, unsure=not number.told),
                TableCell(interval_said(number, unit), number=True),
                TableCell(f"{line.launches.value * line.seconds:,.0f}", number=True),
            ]
            for line, number in shown
        ],
        more=f"{more:,} more: pointillist agent history --kind gpu_time --all" if more > 0 else "",
    )  # fmt: skip


def launches_panel(view: HostView) -> Panel:
    title = "Launches by kernel"
    called = [line for line in view.kernels if line.gpu_ms is None]
    if not called:
        return Panel("launches", title, "No GPU call was seen in this time.")
    rates = [_number(line.launches) for line in called]
    rows = [
        IntervalRow(f"{line.kernel}{_whose(line)}", rate)
        for line, rate in zip(called[:_SHOWN], rates, strict=False)
    ]
    watched = min(line.launches.share for line in called)
    return Panel(
        "launches", title,
        f"{called[0].kernel} is launched most: {value_said(rates[0], LAUNCHES)}.",
        drawing=interval_chart("Launches a second by kernel", rows, LAUNCHES),
        note="The line is the 95 % interval of what sampling leaves open. Rates are of the time "
        "in which the process called the GPU; launches were watched for "
        f"{100 * watched:.0f} % of it at least.",
        heads=[
            ("Kernel", False), ("Family", False), ("Process", False), ("Launches", True),
            ("95 % interval", True),
        ],
        rows=[
            [
                TableCell(line.kernel),
                TableCell(plain(line.family) or ABSENT),
                TableCell(f"{line.process} {line.pid}"),
                TableCell(value_said(rate, LAUNCHES), number=True, unsure=not rate.told),
                TableCell(interval_said(rate, LAUNCHES), number=True),
            ]
            for line, rate in zip(called, rates, strict=True)
        ],
    )  # fmt: skip


def processes_panel(view: HostView) -> Panel:
    title = "Processes"
    found = [line for line in view.processes if line.launches is not None]
    if not found:
        return Panel("processes", title, "No process called the GPU in this time.")
    return Panel(
        "processes", title, "Who calls the GPU, and how long each waited for it.",
        heads=[
            ("Process", False), ("Application", False), ("Where", False), ("Launches", True),
            ("95 % interval", True), ("Waits for the GPU", True), ("Memory, at most", True),
        ],
        rows=[_process_row(line) for line in found[:_MOST_PROCESSES]],
        unfolded=True,
    )  # fmt: skip


def _process_row(line: ProcessLine) -> list[TableCell]:
    places = (("job", line.slurm_job), ("pod", line.pod), ("container", line.container))
    where = [f"{noun} {name[:16]}" for noun, name in places if name]
    rate = _number(line.launches) if line.launches else Number(None)
    waits = ABSENT if line.wait_share is None else f"{100 * line.wait_share:.0f} %"
    peak = ABSENT if line.memory is None else quantity(line.memory["peak_bytes"], "bytes")
    return [
        TableCell(f"{line.name} {line.pid}"),
        TableCell(plain(line.application) or ABSENT),
        TableCell(", ".join(where) or "the host"),
        TableCell(value_said(rate, LAUNCHES), number=True),
        TableCell(interval_said(rate, LAUNCHES), number=True),
        TableCell(waits, number=True),
        TableCell(peak, number=True),
    ]


def _number(of: RateEstimate, times: float = 1.0) -> Number:
    """Give an estimate so many times; where not all was seen and nothing bounds it, why not."""
    if of.low is None or of.high is None:
        unseen = Number(None, reason="watched too little")
        return unseen if of.share < 1 else Number(of.value * times)
    return Number(
        of.value * times, None, of.low * times, of.high * times, told=of.low > 0 or not of.error
    )


def _whose(line: KernelLine) -> str:
    return f" · {line.process}" if line.process else ""


def _short_names(keys: Iterable[str]) -> dict[str, str]:
    """Name devices by the beginning of their ids where that tells them apart."""
    found = list(keys)
    short = {key: key.removeprefix("GPU-")[:8] or "GPU" for key in found}
    return short if len(set(short.values())) == len(found) else {key: key for key in found}


def _of_key(bins: Sequence[LevelBin], key: str) -> list[LevelBin]:
    return [found for found in bins if found.key == key]


def _shares(bins: Sequence[LevelBin], factor: float) -> list[LevelBin]:
    return [
        LevelBin(b.at_ns, b.key, b.mean * factor, b.least * factor, b.most * factor) for b in bins
    ]


def _averaged(bins: Sequence[LevelBin]) -> list[LevelBin]:
    """Give the mean over all keys, with the least and the most of them."""
    at: dict[int, list[LevelBin]] = {}
    for found in bins:
        at.setdefault(found.at_ns, []).append(found)
    return [
        LevelBin(
            moment, "", sum(b.mean for b in found) / len(found),
            min(b.least for b in found), max(b.most for b in found),
        )
        for moment, found in sorted(at.items())
    ]  # fmt: skip


def _point(found: LevelBin, width_s: float) -> TrendPoint:
    number = Number(found.mean, None, found.least, found.most)
    return TrendPoint(found.at_ns / _NS, width_s, number)


def _mean(bins: Sequence[LevelBin], key: str) -> float:
    means = [found.mean for found in bins if found.key == key]
    return sum(means) / len(means)


def _level_row(name: str, bins: Sequence[LevelBin]) -> list[TableCell]:
    mean = sum(found.mean for found in bins) / len(bins)
    numbers = mean, min(b.least for b in bins), max(b.most for b in bins)
    return [TableCell(name), *(TableCell(f"{value:.0f} %", number=True) for value in numbers)]
