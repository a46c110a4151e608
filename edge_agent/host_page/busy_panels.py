"""How busy the host is: GPUs over time, CPUs and memory, GPU time by kernel family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Final

from edge_agent.local.history_sums import FamilyBin, KernelTime, LevelBin
from edge_agent.local.quantity import quantity
from pages.heat_map import HeatTable, heat_map
from pages.interval_chart import IntervalRow, interval_chart
from pages.layout import Panel, TableCell
from pages.number import Number, Unit
from pages.scale import length_said, moment_said
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import counted, interval_said, plain, value_said

PERCENT: Final = Unit("percent", 1.0, " %", 0, "from least to most")
_NS: Final = 1_000_000_000
_MILLION: Final = 1_000_000

_MOST_LINES: Final = 6
_MOST_KERNELS: Final = 20


def gpus_panel(bins: Sequence[LevelBin], width_s: float) -> Panel:
    """Show how busy each GPU was over time."""
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
    """Show CPU, memory and the mean of all GPUs over time, in percent."""
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


def families_panel(bins: Sequence[FamilyBin], gpus: int, width_s: float) -> Panel:
    """Show the share of GPU time by kernel family over time."""
    title = "GPU time by kernel family"
    totals: dict[str, float] = {}
    for found in bins:
        totals[found.family] = totals.get(found.family, 0.0) + found.time_ns
    leading = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name]]
    if not leading:
        return Panel("families", title, "No kernel was timed in this time.")
    # Of the time of all GPUs; more than one kernel may run at once.
    whole_ns = width_s * _NS * max(gpus, 1)
    moments = sorted({found.at_ns for found in bins})
    by = {(found.family, found.at_ns): found.time_ns for found in bins}
    lines = [
        TrendLine(
            plain(name),
            [
                TrendPoint(at / _NS, width_s, Number(100 * by.get((name, at), 0.0) / whole_ns))
                for at in moments
            ],
            tone,
        )
        for tone, name in enumerate(leading[:_MOST_LINES])
    ]
    said = [f"{plain(name)} ({quantity(totals[name] / 1e6, 'ms')})" for name in leading[:3]]
    return Panel(
        "families", title, f"Most GPU time went to {', '.join(said)}.",
        drawing=trend_chart(title, lines, PERCENT),
        note=f"Percent of the time of {counted(max(gpus, 1), 'GPU')} in spans of "
        f"{length_said(width_s)}, UTC.",
        heads=[("Family", False), ("GPU time", True)],
        rows=[
            [TableCell(plain(name)), TableCell(quantity(totals[name] / 1e6, "ms"), number=True)]
            for name in leading
        ],
    )  # fmt: skip


def kernels_panel(found: Sequence[KernelTime]) -> Panel:
    """Show the kernels that took most GPU time, with what sampling leaves open."""
    title = "Kernels"
    if not found:
        return Panel("kernels", title, "No kernel was timed in this time.")
    shown = found[:_MOST_KERNELS]
    # One unit for all, by the largest.
    factor, name = (1e-9, "s") if found[0].time.value_ns >= _NS else (1e-6, "ms")
    unit = Unit("GPU time", factor, f" {name}", 1)
    numbers = [_time(kernel) for kernel in shown]
    rows = [IntervalRow(k.name, number) for k, number in zip(shown, numbers, strict=True)]
    more = len(found) - len(shown)
    return Panel(
        "kernels", title, "Those that took most GPU time.",
        drawing=interval_chart("GPU time by kernel", rows, unit),
        note="The line is the 95 % interval of what sampling leaves open, where it is known.",
        heads=[
            ("Kernel", False), ("Family", False), ("GPU time", True), ("95 % interval", True),
            ("Launches", True),
        ],
        rows=[
            [
                TableCell(kernel.name),
                TableCell(plain(kernel.family)),
                TableCell(value_said(number, unit), number=True, unsure=not number.told),
                TableCell(interval_said(number, unit), number=True),
                TableCell(f"{kernel.launches:,.0f}", number=True),
            ]
            for kernel, number in zip(shown, numbers, strict=True)
        ],
        more=f"{more:,} more: pointillist agent history --kind activity" if more > 0 else "",
    )  # fmt: skip


def _time(kernel: KernelTime) -> Number:
    """Give a kernel's time with its interval, none where there is none."""
    value, half = kernel.time.value_ns, kernel.time.error_ns
    if half is None or kernel.time.variance is None:
        return Number(value)
    error = sqrt(kernel.time.variance)
    return Number(value, error, max(value - half, 0.0), value + half, told=value > half)


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
