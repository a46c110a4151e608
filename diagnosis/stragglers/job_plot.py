"""A picture of a job: own work of each rank and step, and who waited for whom."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from .judge import JobJudgement
from .peers import Times, missing_median

INK: Final = "#22313f"
SLOW: Final = "#b2182b"
UNSEEN: Final = "#d9d9d9"
_MOST_LABELS: Final = 32
_MOST_COLUMNS: Final = 2_000
_STEPS_NAMED: Final = 9
_LONG_GAP: Final = 5
"""Times the usual distance between recorded steps."""
_TITLE_COLUMNS: Final = 140
_LEAST_REACH_PERCENT: Final = 20.0


def draw(path: Path, judged: JobJudgement, title: str) -> None:
    """Write a PNG or SVG, by the path's suffix. Raises OSError, and ValueError for other formats.

    Left: own work in each step beside the peers' (red: longer, grey: unseen). Right: who waited.
    """
    # Below four inches the labels of the colour bars are longer than the bars.
    height = min(14.0, max(4.2, 2.6 + 0.17 * len(judged.ranks)))
    figure, (map_, matrix) = plt.subplots(
        1, 2, figsize=(13, height), width_ratios=(2.0, 1.0), layout="constrained"
    )
    figure.suptitle(textwrap.shorten(title, _TITLE_COLUMNS), fontsize=12, color=INK)
    try:
        _work(figure, map_, judged)
        _waits(figure, matrix, judged)
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)


def _work(figure: Figure, axis: Axes, judged: JobJudgement) -> None:
    steps_a_column = -(-len(judged.steps) // _MOST_COLUMNS)
    excess = _columns(100 * judged.excess(), steps_a_column)
    seen = np.abs(excess[~np.isnan(excess)])
    reach = max(_LEAST_REACH_PERCENT, float(np.percentile(seen, 99)) if len(seen) else 0.0)
    image = axis.imshow(
        excess, aspect="auto", cmap="RdBu_r", vmin=-reach, vmax=reach, interpolation="nearest"
    )
    axis.set_facecolor(UNSEEN)
    figure.colorbar(image, ax=axis, label="own work above the peers', %", aspect=30)
    stages = [result.stage for result in judged.ranks]
    several = len(set(stages)) > 1
    if stages == sorted(stages):
        for place in np.flatnonzero(np.diff(stages)):
            axis.axhline(place + 0.5, color=INK, linewidth=0.6)
    _name_ranks(judged, axis.yaxis, with_stage=several)
    axis.set_ylabel("rank and its pipeline stage" if several else "rank")
    axis.set_title("Who works longer, step by step", fontsize=10, color=INK)
    _name_steps(axis, judged.steps, steps_a_column)


def _columns(values: Times, steps: int) -> Times:
    if steps == 1:
        return values
    missing = np.full((len(values), -values.shape[1] % steps), np.nan)
    blocks = np.hstack([values, missing]).reshape(len(values), -1, steps)
    return missing_median(blocks, axis=2)


def _name_steps(axis: Axes, steps: NDArray[np.int64], steps_a_column: int) -> None:
    """Name round steps; where a trace holds but some, name what follows its longer gaps."""
    first, last = int(steps[0]), int(steps[-1])
    apart = np.diff(steps)
    begins = np.r_[0, 1 + np.flatnonzero(apart > _LONG_GAP * np.median(apart))]
    said = "step"
    if last - first + 1 == len(steps):
        marks = MaxNLocator(_STEPS_NAMED, integer=True, steps=[1, 2, 5, 10]).tick_values(
            first, last
        )
        named = [int(mark) - first for mark in marks if first <= mark <= last]
    else:
        said = f"step ({len(steps):,} of {first:,} to {last:,} were recorded)"
        named = np.linspace(0, len(steps) - 1, min(len(steps), _STEPS_NAMED)).astype(int).tolist()
        if 1 < len(begins) < _STEPS_NAMED:
            said = said[:-1] + "; lines: longer gaps)"
            end = len(steps) - 1
            named = [*begins.tolist(), *([end] if end - begins[-1] > end / 10 else [])]
            for place in begins[1:]:
                axis.axvline(place / steps_a_column - 0.5, color=INK, linewidth=0.6)
    places = np.array(named) / steps_a_column
    axis.set_xticks(places, [f"{steps[at]:,}" for at in named], fontsize=8)
    axis.set_xlabel(said + (f", medians of {steps_a_column}" if steps_a_column > 1 else ""))


def _waits(figure: Figure, axis: Axes, judged: JobJudgement) -> None:
    waited_s = judged.waits.followed / max(len(judged.steps), 1)
    most_s = float(waited_s.max(initial=0.0))
    scale, unit = (1.0, "s") if most_s >= 1 else (1e3, "ms")
    style: dict[str, Any] = {"cmap": "Oranges", "aspect": "auto", "interpolation": "nearest"}
    image = axis.imshow(scale * waited_s, vmin=0, vmax=scale * most_s or 1.0, **style)
    figure.colorbar(image, ax=axis, label=f"waited, {unit} a step", aspect=30)
    _name_ranks(judged, axis.yaxis)
    _name_ranks(judged, axis.xaxis, rotation=90 if len(judged.ranks) > 8 else 0)
    axis.set_ylabel("who waited")
    axis.set_xlabel("because of whom")
    known = judged.waits.calls > 0
    title = "Who waited because of whom" if known else "No calls were seen: waits are not known"
    axis.set_title(title, fontsize=10, color=INK)


def _name_ranks(judged: JobJudgement, axis: Axis, with_stage: bool = False, **style: Any) -> None:
    """Name ranks along an axis, as many as can be read, and the slow ones red in any case."""
    every = -(-len(judged.ranks) // _MOST_LABELS)
    slow = {result.rank for result in judged.slow}
    slow_at = [place for place, result in enumerate(judged.ranks) if result.rank in slow]
    free = [
        place
        for place in range(0, len(judged.ranks), every)
        if all(abs(place - other) >= every for other in slow_at)
    ]
    shown = sorted([*free, *slow_at])
    named = [judged.ranks[place] for place in shown]
    labels = [
        f"{result.rank}  stage {result.stage}" if with_stage else str(result.rank)
        for result in named
    ]
    axis.set_ticks(shown, labels, fontsize=8, **style)
    for result, label in zip(named, axis.get_ticklabels(), strict=True):
        if result.rank in slow:
            label.set(color=SLOW, fontweight="bold")
