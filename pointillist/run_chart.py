"""A run's picture: the fleet's mix with error bars beside the truth, and the demo's events."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

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
    """Write one PNG: mean mix with 95 % bars, the largest families over time, and the events."""
    rows = 2 if events else 1
    size = (13, 4.8 * rows)
    figure, axes = plt.subplots(rows, 2, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle(title, fontsize=13, color=INK)
    figure.supxlabel(f"{PLUS_MINUS}; so are the error bars", fontsize=9, color=INK)
    _mix(axes[0][0], mean)
    _over_time(axes[0][1], mean, by_window)
    for axis, (name, struck) in zip(axes[-1], events.items(), strict=False):
        _events(axis, name, struck)
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


def _over_time(axis: Axes, mean: list[CellView], by_window: list[list[CellView]]) -> None:
    windows = range(1, len(by_window) + 1)
    for leader in [view for view in families(mean) if view.told][:4]:
        series = [next(v for v in views if v.cell == leader.cell) for views in by_window]
        line = axis.errorbar(
            windows,
            [100 * view.share if view.told else np.nan for view in series],
            yerr=[100 * view.half for view in series],
            fmt="o-",
            markersize=3,
            linewidth=1,
            elinewidth=0.6,
            label=readable(leader.cell),
        )
        axis.plot(
            windows,
            [np.nan if view.told else 100 * view.most for view in series],
            "v",
            color=line[0].get_color(),
            markersize=4,
            alpha=0.6,
        )
        axis.plot(
            windows,
            [100 * view.truth for view in series],
            "--",
            color=line[0].get_color(),
            alpha=0.7,
        )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("window (dashed: truth;\ntriangle: not told from zero, less than this)")
    axis.set_ylabel("share, %")
    axis.set_title("Largest families, window by window, 95 % intervals", fontsize=11)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.12 * (high - low))  # room for the legend above the lines
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper center", ncols=4)


def _events(axis: Axes, name: str, struck: Struck) -> None:
    _bars(axis, ranked(struck.views)[:SHOWN], "#d68910", struck.hosts)
    axis.set_xlabel(f"hosts, of {struck.hosts:,} in the release")
    axis.set_title(TITLES.get(name, name.replace("_", " ")), fontsize=11)
