"""A run's picture: the fleet's mix with error bars beside the truth, and the demo's events."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulator.cell_view import CellView, ranked

from .run_terminal import PLUS_MINUS, SHOWN, Struck, families, readable

INK, RELEASED, TRUTH = "#22313f", "#1f77b4", "#2ca02c"
TITLES = {
    "incidents": "Incidents: a week of them, played into one window",
    "hardware_faults": "Hardware faults: eight weeks of them, in one window",
}


def draw(
    path: Path,
    title: str,
    mean: list[CellView],
    by_window: list[list[CellView]],
    events: dict[str, Struck],
) -> None:
    """Write one PNG: mean mix with 95 % bars, the largest families over time, and the events.

    What has nothing to show has no place in it: its neighbour takes the row.
    """
    struck = {name: found for name, found in events.items() if ranked(found.views)}
    course = len(by_window) > 1 and bool(_leaders(mean))
    rows: list[list[str]] = [["mix", "course"] if course else ["mix", "mix"]]
    if struck:
        rows.append([*struck] if len(struck) > 1 else [*struck] * 2)
    figure, axes = plt.subplot_mosaic(
        cast("Any", rows), figsize=(13, 4.8 * len(rows)), layout="constrained"
    )
    figure.suptitle(title, fontsize=13, color=INK)
    figure.supxlabel(f"{PLUS_MINUS}; so are the error bars", fontsize=9, color=INK)
    _mix(axes["mix"], mean)
    if course:
        _over_time(axes["course"], mean, by_window)
    for name, found in struck.items():
        _events(axes[name], name, found)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    plt.close(figure)
    path.write_bytes(picture.getvalue())  # a full disk is then an OSError that says so


def _mix(axis: Axes, mean: list[CellView]) -> None:
    rest = [view for view in mean if view.cell == "idle"]
    _bars(axis, families(mean), RELEASED, 100)
    axis.set_xlabel("share of GPU wall time, % (mean of all windows)")
    idle = "".join(f"  (idle {100 * v.share:.2f} ± {100 * v.half:.2f} %)" for v in rest)
    axis.set_title("Kernel mix of the fleet" + idle, fontsize=11)
    axis.legend(loc="lower right", fontsize=8)


def _bars(axis: Axes, views: list[CellView], colour: str, scale: float) -> None:
    """Bars with 95 % intervals; a cell not told from zero gets a grey band that it is within.

    scale   what a share is multiplied by: 100 for percent, or the hosts
    """
    places = {view.cell: place for place, view in enumerate(reversed(views))}
    told = [view for view in views if view.told]
    others = [view for view in views if not view.told]
    axis.barh(
        [places[view.cell] for view in told],
        [scale * view.share for view in told],
        xerr=[scale * view.half for view in told],
        color=colour,
        alpha=0.75,
        ecolor=INK,
        capsize=2,
        label="released, 95 % interval",
    )
    axis.barh(
        [places[view.cell] for view in others],
        [scale * view.most for view in others],
        color="#f2f2f2",
        hatch="////",
        edgecolor="#d0d0d0",
        linewidth=0,
        label="not told from zero: less than this, 95 % interval" if others else None,
    )
    axis.plot(
        [scale * view.truth for view in views],
        [places[view.cell] for view in views],
        "D",
        color=TRUTH,
        markersize=5,
        label="truth (known of simulated hosts)",
    )
    axis.set_yticks(list(places.values()), [readable(cell) for cell in places], fontsize=9)
    axis.set_xlim(left=0)


def _leaders(mean: list[CellView]) -> list[CellView]:
    """Give the largest families that are told from zero."""
    return [view for view in families(mean) if view.told][:_LINES]


_LINES = 4
_MOST_BARS = 40
"""Windows up to which each has a bar and a mark of its own; more of them are drawn as a band."""


def _over_time(axis: Axes, mean: list[CellView], by_window: list[list[CellView]]) -> None:
    windows = np.arange(1, len(by_window) + 1)
    many = len(windows) > _MOST_BARS
    for number, leader in enumerate(_leaders(mean)):
        series = [next(v for v in views if v.cell == leader.cell) for views in by_window]
        colour = f"C{number}"
        _course(axis, windows, series, (readable(leader.cell), colour), many=many)
        truth = [100 * view.truth for view in series]
        axis.plot(windows, truth, "--", color=colour, alpha=0.7, zorder=3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    below = "band: 95 % interval" if many else "triangle: not told from zero, less than this"
    axis.set_xlabel(f"window (dashed: truth;\n{below})")
    axis.set_ylabel("share, %")
    axis.set_title("Largest families, window by window, 95 % intervals", fontsize=11)
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0.0), high + 0.12 * (high - low))  # room for the legend above the lines
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper center", ncols=4)


def _course(
    axis: Axes,
    windows: NDArray[np.int_],
    series: list[CellView],
    look: tuple[str, str],
    *,
    many: bool,
) -> None:
    """Draw one family: a bar a window, or where they would run into each other a band.

    look    its name and its colour
    """
    name, colour = look
    shares = np.array([100 * view.share if view.told else np.nan for view in series])
    halves = np.array([100 * view.half for view in series])
    if many:
        all_shares = np.array([100 * view.share for view in series])
        low, high = np.maximum(all_shares - halves, 0.0), np.maximum(all_shares + halves, 0.0)
        axis.fill_between(windows, low, high, color=colour, alpha=0.25, linewidth=0, label=name)
        return
    axis.errorbar(
        windows, shares, yerr=halves, fmt="o-", markersize=3, linewidth=1, elinewidth=0.6,
        color=colour, label=name,
    )  # fmt: skip
    most = [np.nan if view.told else 100 * view.most for view in series]
    axis.plot(windows, most, "v", color=colour, markersize=4, alpha=0.6)


def _events(axis: Axes, name: str, struck: Struck) -> None:
    _bars(axis, ranked(struck.views)[:SHOWN], "#d68910", struck.hosts)
    axis.set_xlabel(f"hosts, of {struck.hosts:,} in the release")
    axis.set_title(TITLES.get(name, name.replace("_", " ")), fontsize=11)
