"""A run's picture: the fleet's mix with error bars beside the truth, and the demo's events."""

from __future__ import annotations

import io
from math import hypot
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simulator.cell_view import CellView, judged, ranked

from .stage import PLUS_MINUS, SHOWN, Struck, families, readable

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
    """Bars with 95 % intervals; a cell that is not significant gets a grey band that it is within.

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
        label="not significant: less than this, 95 % interval" if others else None,
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
    return [view for view in families(mean) if view.told][:_LINES]


_LINES = 4
_MOST_BARS = 40
"""Windows up to which each has a bar of its own; of more, several have one, of their mean."""
_POINTS = 20


def grouped(by_window: list[list[CellView]]) -> list[list[CellView]]:
    """Give windows, or where they are many the means of several consecutive ones.

    Their noise is independent, so that the error of a mean falls with the root of their number.
    """
    if len(by_window) <= _MOST_BARS:
        return by_window
    each = -(-len(by_window) // _POINTS)
    return [_mean(by_window[at : at + each]) for at in range(0, len(by_window), each)]


def _mean(windows: list[list[CellView]]) -> list[CellView]:
    found: dict[str, list[CellView]] = {}
    for view in (view for views in windows for view in views):
        found.setdefault(view.cell, []).append(view)
    return judged(
        [
            CellView(
                cell,
                fmean(view.share for view in views),
                hypot(*(view.standard_error for view in views)) / len(views),
                fmean(view.truth for view in views),
            )
            for cell, views in found.items()
        ]
    )


def _over_time(axis: Axes, mean: list[CellView], by_window: list[list[CellView]]) -> None:
    points = grouped(by_window)
    each = -(-len(by_window) // len(points))
    places = np.minimum(np.arange(len(points)) * each + (each + 1) / 2, len(by_window))
    for number, leader in enumerate(_leaders(mean)):
        series = [next(v for v in views if v.cell == leader.cell) for views in points]
        colour = f"C{number}"
        _course(axis, places, series, (readable(leader.cell), colour))
        axis.plot(places, [100 * v.truth for v in series], "--", color=colour, alpha=0.7, zorder=3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("window (dashed: truth;\ntriangle: not significant, less than this)")
    axis.set_ylabel("share, %")
    about = "window by window" if each == 1 else f"means of {each} windows"
    axis.set_title(f"Largest families, {about}, 95 % intervals", fontsize=11)
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, 0.0), high + 0.12 * (high - low))  # room for the legend above the lines
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper center", ncols=4)


def _course(
    axis: Axes, places: NDArray[np.float64], series: list[CellView], look: tuple[str, str]
) -> None:
    """Draw one family: a bar a point.

    look    its name and its colour
    """
    name, colour = look
    shares = np.array([100 * view.share if view.told else np.nan for view in series])
    axis.errorbar(
        places, shares, yerr=[100 * view.half for view in series], fmt="o-", markersize=3,
        linewidth=1, elinewidth=0.6, color=colour, label=name,
    )  # fmt: skip
    most = [np.nan if view.told else 100 * view.most for view in series]
    axis.plot(places, most, "v", color=colour, markersize=4, alpha=0.6)


def _events(axis: Axes, name: str, struck: Struck) -> None:
    _bars(axis, ranked(struck.views)[:SHOWN], "#d68910", struck.hosts)
    axis.set_xlabel(f"hosts, of {struck.hosts:,} in the release")
    axis.set_title(TITLES.get(name, name.replace("_", " ")), fontsize=11)
