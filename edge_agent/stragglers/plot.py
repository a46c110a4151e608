"""A picture of a job: own work of each rank and step, and who waited for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .judge import Judgement

INK: Final = "#22313f"
_MOST_LABELS: Final = 32
_MOST_COLUMNS: Final = 2_000


def draw(path: Path, judged: Judgement, title: str) -> None:
    """Write a PNG or SVG, by the path's suffix. Raises OSError, and ValueError for other formats.

    Left: each rank's own work in each step, beside the median of its stage (red: longer). Right:
    whom each rank waited for, in the end.
    """
    height = min(14.0, 2.6 + 0.17 * len(judged.ranks))
    figure, (map_, matrix) = plt.subplots(
        1, 2, figsize=(13, height), width_ratios=(2.0, 1.0), layout="constrained"
    )
    figure.suptitle(title, fontsize=12, color=INK)
    try:
        _work(figure, map_, judged)
        _waits(figure, matrix, judged)
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)


def _work(figure: Figure, axis: Axes, judged: Judgement) -> None:
    excess = 100 * judged.excess()[:, :_MOST_COLUMNS]
    reach = max(20.0, float(np.nanpercentile(np.abs(excess), 99)))
    image = axis.imshow(
        excess, aspect="auto", cmap="RdBu_r", vmin=-reach, vmax=reach, interpolation="nearest"
    )
    figure.colorbar(image, ax=axis, label="own work beside the stage's median, %", shrink=0.9)
    _ranks(judged, axis.set_yticks)
    axis.set_ylabel("rank, stage")
    steps = judged.steps[:_MOST_COLUMNS]
    at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 9)).astype(int))
    axis.set_xticks(at, [str(steps[one]) for one in at])
    axis.set_xlabel("step")


def _waits(figure: Figure, axis: Axes, judged: Judgement) -> None:
    steps = max(len(judged.steps), 1)
    image = axis.imshow(
        1e3 * judged.waits.followed / steps, cmap="Oranges", vmin=0, interpolation="nearest"
    )
    figure.colorbar(image, ax=axis, label="waited, ms a step", shrink=0.9)
    _ranks(judged, axis.set_yticks, stage=False)
    _ranks(judged, axis.set_xticks, stage=False, rotation=90)
    axis.set_ylabel("who waited")
    axis.set_xlabel("because of whom")


def _ranks(judged: Judgement, put: Callable[..., Any], stage: bool = True, **style: Any) -> None:
    """Label an axis with ranks, as many as can be read, and the slow ones in any case."""
    every = -(-len(judged.ranks) // _MOST_LABELS)
    slow = {one.rank for one in judged.slow}
    shown = [
        place for place, one in enumerate(judged.ranks) if place % every == 0 or one.rank in slow
    ]
    labels = []
    for place in shown:
        one = judged.ranks[place]
        name = f"{one.rank}  s{one.stage}" if stage else str(one.rank)
        labels.append(f"slow  {name}" if one.rank in slow else name)
    put(shown, labels, fontsize=8, **style)
