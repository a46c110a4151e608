"""What all figures share: colours, names of axes, rows by axis, and how numbers are written.

Colours tell apart on paper, on a dark screen and for the colour-blind (Okabe and Ito 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from aggregator.statistics.ratios import normal_quantile

Row = Mapping[str, Any]
Rows = Sequence[Row]

INK: Final = "#27313b"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b7680")
SIZE: Final = (5.6, 3.5)
Z95: Final = normal_quantile()

STYLE: Final = Path(__file__).with_name("report.mplstyle")

AXIS_NAMES: Final[Mapping[str, str]] = {
    "epsilon": "epsilon a host and week",
    "window": "window, s",
    "cohort": "hosts in the cohort",
    "dropout": "hosts that are silent in a window",
    "d": "coordinates of a report",
    "sampling_rate": "share of windows that a host measures",
    "load": "busy GPUs, of all",
    "applications": "applications",
    "lying": "hosts that lie",
    "candidates": "tables trained on",
    "job_gpus": "GPUs of a job",
    "unknown": "GPU time of programs outside the training set",
}
SHARES: Final = {"dropout", "sampling_rate", "load", "lying", "unknown"}
_SHORT: Final = {"cohort": "hosts", "job_gpus": "GPUs", "candidates": "tables"}
DAY_NOTE: Final = "mean of a day"


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    figure: Figure
    sentence: str


def swept(rows: Rows) -> list[str]:
    """Name the axes that take more than one value, in the order of the file."""
    names = [key.removeprefix("axis_") for key in rows[0] if key.startswith("axis_")]
    return [name for name in names if len({row[f"axis_{name}"] for row in rows}) > 1]


def told(axis: str, value: float) -> str:
    return f"{100 * value:g} %" if axis in SHARES else f"{value:,g}"


def points(value: float) -> str:
    if value >= 10:
        return f"{value:,.0f} points"
    return f"{value:.2g} points"


def new_figure(columns: int = 1, height: float = SIZE[1]) -> tuple[Figure, list[Axes]]:
    width = SIZE[0] * (1 if columns == 1 else 0.82 * columns)
    figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    return figure, [axes] if columns == 1 else list(axes)


def by_second_axis(rows: Rows, axes: Sequence[str]) -> list[tuple[str, list[Row]]]:
    """Split rows by the second axis, each sorted along the first; one group without a second."""
    x = f"axis_{axes[0]}"
    if len(axes) < 2:
        return [("", sorted(rows, key=lambda row: row[x]))]
    hue = f"axis_{axes[1]}"
    found = []
    for value in sorted({row[hue] for row in rows}):
        own = sorted((row for row in rows if row[hue] == value), key=lambda row: row[x])
        found.append((f"{told(axes[1], value)} {_SHORT.get(axes[1], axes[1])}", own))
    return found


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows along an axis, in a group for each value of a second one, and their empty figure."""

    rows: Rows
    axis: str
    groups: Sequence[tuple[str, list[Row]]]
    figure: Figure
    plot: Axes

    def finish(self, label: str, *, log: bool) -> None:
        self.plot.set_ylabel(label)
        label_axis(self.plot, self.axis, self.rows, log=log)
        self.plot.legend()


def sweep_of(rows: Rows, column: str) -> Sweep | None:
    """Begin a figure of the rows that have a column; None where nothing was swept."""
    measured = [row for row in rows if row.get(column) is not None]
    axes = swept(measured) if measured else []
    if not axes:
        return None
    figure, (plot,) = new_figure()
    return Sweep(measured, axes[0], by_second_axis(measured, axes), figure, plot)


def mean_at(rows: Rows, axis: str, column: str) -> tuple[list[float], list[float]]:
    """Average a column over the seeds of each value of an axis; rows without it are left out."""
    by: dict[float, list[float]] = {}
    for row in rows:
        if row.get(column) is not None:
            by.setdefault(row[f"axis_{axis}"], []).append(float(row[column]))
    return list(by), [sum(values) / len(values) for values in by.values()]


def decimal(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def label_axis(axes: Axes, x: str, rows: Rows, *, log: bool) -> None:
    axes.set_xlabel(AXIS_NAMES.get(x, x))
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
    values = sorted({row[f"axis_{x}"] for row in rows})
    if log or len(values) <= 8:
        axes.set_xticks(values, [told(x, value) for value in values])
    elif x in SHARES:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
