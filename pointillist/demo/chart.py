"""The demo's picture: the fleet's mix with error bars beside the truth, and how the error shrinks."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from .screen import readable
from .tally import CellView

INK, RELEASED, TRUTH = "#22313f", "#1f77b4", "#2ca02c"
ROWS = 14


def draw(
    path: Path,
    title: str,
    mean: list[CellView],
    by_window: list[list[CellView]],
    events: dict[str, list[CellView]],
) -> None:
    """Write one PNG: mean mix with 95 % bars, the largest families over the windows, and the event tables."""
    figure, axes = plt.subplots(2, 2, figsize=(13, 9.5), width_ratios=(1.15, 1))
    figure.suptitle(title, fontsize=13, color=INK)
    _mix(axes[0][0], mean)
    _over_time(axes[0][1], mean, by_window)
    for axis, (name, views) in zip(axes[1], events.items(), strict=False):
        _events(axis, name, views)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _ranked(views: list[CellView], rows: int) -> list[CellView]:
    return sorted(views, key=lambda view: view.truth or view.released, reverse=True)[:rows]


def _mix(axis: Axes, mean: list[CellView]) -> None:
    views = _ranked(mean, ROWS)[::-1]
    places = range(len(views))
    axis.barh(
        places,
        [0 if view.below_noise else 100 * view.released for view in views],
        xerr=[196 * view.standard_error for view in views],
        color=RELEASED,
        alpha=0.75,
        ecolor=INK,
        label="released, 95 % interval",
    )
    known = [(place, view.truth) for place, view in zip(places, views, strict=True)]
    axis.plot(
        [100 * truth for _, truth in known if truth is not None],
        [place for place, truth in known if truth is not None],
        "D",
        color=TRUTH,
        markersize=5,
        label="truth (known in a demo)",
    )
    axis.set_yticks(list(places), [_label(view) for view in views], fontsize=9)
    axis.set_xlabel("share of GPU wall time, % (mean of all windows)")
    axis.set_title("Kernel mix of the fleet")
    axis.legend(loc="lower right", fontsize=8)


def _label(view: CellView) -> str:
    return readable(view.cell) + (" (below noise)" if view.below_noise else "")


def _over_time(axis: Axes, mean: list[CellView], by_window: list[list[CellView]]) -> None:
    windows = range(1, len(by_window) + 1)
    for leader in _ranked(mean, 4):
        series = [next(v for v in views if v.cell == leader.cell) for views in by_window]
        line = axis.errorbar(
            windows,
            [100 * view.released for view in series],
            yerr=[196 * view.standard_error for view in series],
            fmt="o-",
            markersize=3,
            linewidth=1,
            elinewidth=0.6,
            label=readable(leader.cell),
        )
        truths = [view.truth for view in series]
        if all(truth is not None for truth in truths):
            axis.plot(
                windows,
                [100 * (truth or 0.0) for truth in truths],
                "--",
                color=line[0].get_color(),
                alpha=0.7,
            )
    axis.set_xlabel("window (dashed: truth)")
    axis.set_ylabel("share, %")
    axis.set_title("Window by window, 95 % intervals")
    axis.legend(fontsize=8)


def _events(axis: Axes, name: str, views: list[CellView]) -> None:
    shown = _ranked(views, 10)[::-1]
    places = range(len(shown))
    axis.barh(
        places,
        [0 if view.below_noise else 100 * view.released for view in shown],
        xerr=[196 * view.standard_error for view in shown],
        color="#d68910",
        alpha=0.75,
        ecolor=INK,
    )
    axis.plot([100 * (view.truth or 0.0) for view in shown], places, "D", color=TRUTH, markersize=5)
    axis.set_yticks(list(places), [_label(view) for view in shown], fontsize=9)
    axis.set_xlabel("share of hosts, %")
    axis.set_title(name.replace("_", " ") + " (rates raised so that one demo window shows them)")
