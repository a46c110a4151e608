"""Pictures of an evaluation: who is taken for whom, what tells the unknown, what matters."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from simulator.experiments.figures.frame import COLOURS, INK, STYLE

from .figures import worded

Tables = Mapping[str, Any]
BLUES: Final = "Blues"


def pictures(tables: Tables) -> dict[str, tuple[str, bytes]]:
    """Draw what there is something to draw of.

    Returns     SVG text and PNG bytes by name
    """
    drawn = {
        "confusion": _confusion(tables),
        "open-set": _open_set(tables),
        "ablation": _ablation(tables),
        "methods": _methods(tables),
    }
    return {name: _files(figure) for name, figure in drawn.items() if figure is not None}


def _files(figure: Figure) -> tuple[str, bytes]:
    svg, png = io.StringIO(), io.BytesIO()
    with plt.rc_context(STYLE):
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        figure.savefig(png, format="png", dpi=120, facecolor="white")
    plt.close(figure)
    text = svg.getvalue()
    return text[text.index("<svg") :], png.getvalue()


def _panel(width: float, height: float) -> tuple[Figure, Any]:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    return figure, axes


def _confusion(tables: Tables) -> Figure | None:
    counts = np.array(tables["confusion"]["diagnoses"])
    names = [*(worded(one) for one in tables["confusion"]["causes"]), "nothing"]
    rows, columns = counts.sum(axis=1) > 0, (counts.sum(axis=0) > 0) | (counts.sum(axis=1) > 0)
    if not rows.any():
        return None
    shown = counts[np.ix_(rows, columns)]
    shares = shown / np.maximum(1, shown.sum(axis=1, keepdims=True))
    figure, axes = _panel(1.9 + 0.55 * shown.shape[1], 1.6 + 0.42 * shown.shape[0])
    axes.imshow(shares, cmap=BLUES, vmin=0, vmax=1, aspect="auto")
    for (i, j), count in np.ndenumerate(shown):
        if count:
            colour = "white" if shares[i, j] > 0.6 else INK
            axes.text(j, i, str(count), ha="center", va="center", color=colour, fontsize=9)
    truths = ["no fault" if name == "nothing" else name for name in names]
    told = [name for name, there in zip(truths, rows, strict=True) if there]
    axes.set_yticks(range(shown.shape[0]), told)
    said = [name for name, there in zip(names, columns, strict=True) if there]
    axes.set_xticks(range(shown.shape[1]), said, rotation=35, ha="right")
    axes.set_xlabel("answer")
    axes.set_ylabel("truth")
    axes.grid(visible=False)
    return figure


def _open_set(tables: Tables) -> Figure | None:
    scores = [(one["unlike"], one["unknown"]) for one in tables["open_set"]]
    unknown = sum(is_unknown for _, is_unknown in scores)
    if not unknown or unknown == len(scores):
        return None
    ordered = sorted(scores, reverse=True)
    hits = np.cumsum([is_unknown for _, is_unknown in ordered]) / unknown
    alarms = np.cumsum([not is_unknown for _, is_unknown in ordered]) / (len(scores) - unknown)
    figure, axes = _panel(4.2, 3.6)
    axes.plot([0, *alarms], [0, *hits], color=COLOURS[0], drawstyle="default")
    axes.plot([0, 1], [0, 1], color=COLOURS[-1], linewidth=0.8, linestyle=":")
    axes.set_xlabel("known faults called unknown")
    axes.set_ylabel("unknown faults called unknown")
    return figure


def _ablation(tables: Tables) -> Figure | None:
    groups = [one for one in tables["ablation"]["groups"] if one["without"] is not None]
    if not groups:
        return None
    groups.sort(key=lambda one: -one["without"])
    places = np.arange(len(groups))
    figure, axes = _panel(5.6, 1.4 + 0.32 * len(groups))
    alone = [one["alone"] or 0.0 for one in groups]
    axes.barh(places + 0.2, [one["without"] for one in groups], 0.36, color=COLOURS[0])
    axes.barh(places - 0.2, alone, 0.36, color=COLOURS[4])
    axes.set_yticks(places, [worded(one["group"]) for one in groups])
    axes.set_xlabel("macro-F1 on held-out runs")
    axes.legend(["without the group", "the group alone"])
    return figure


def _methods(tables: Tables) -> Figure | None:
    told: Sequence[Mapping[str, Any]] = [
        one for one in tables["methods"] if one.get("macro_f1") is not None
    ]
    if not told:
        return None
    ordered = sorted(told, key=lambda one: float(one["macro_f1"]))
    places = np.arange(len(ordered))
    values = np.array([one["macro_f1"] for one in ordered], float)
    bounds = np.array([
        [value if end is None else end for end in one["macro_f1_interval"]]
        for value, one in zip(values, ordered, strict=True)
    ])  # fmt: skip
    figure, axes = _panel(5.6, 1.2 + 0.3 * len(ordered))
    errors = np.maximum(0, np.abs(bounds - values[:, None]).T)
    axes.barh(places, values, 0.6, color=COLOURS[0], xerr=errors, ecolor=INK)
    axes.set_yticks(places, [one["method"] for one in ordered])
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("macro-F1 on held-out runs, 95 % interval by run")
    return figure
