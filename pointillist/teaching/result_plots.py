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

from simulator.experiments.figure_frame import COLOURS, INK, STYLE

from .figures import MACRO_F1_GOAL, auroc, worded

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
        # White also in the SVG: its ink is dark, and readers of the dark site see it too.
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
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
    counts[-1, -1] = tables["calm"]["silent"]
    names = [*tables["confusion"]["causes"], "nothing"]
    rows, columns = counts.sum(axis=1) > 0, (counts.sum(axis=0) > 0) | (counts.sum(axis=1) > 0)
    if not rows[:-1].any():
        return None
    shown = counts[np.ix_(rows, columns)]
    shares = shown / np.maximum(1, shown.sum(axis=1, keepdims=True))
    figure, axes = _panel(3.2 + 0.55 * shown.shape[1], 2.4 + 0.42 * shown.shape[0])
    axes.pcolormesh(shares[::-1], cmap=BLUES, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    for (i, j), count in np.ndenumerate(shown[::-1]):
        if count:
            colour = "white" if shares[::-1][i, j] > _DARK else INK
            axes.text(j + 0.5, i + 0.5, str(count), ha="center", va="center", color=colour)
    faults = int(counts[:-1].sum())
    told = [
        f"{'no fault' if name == 'nothing' else name} ({total})"
        for name, there, total in zip(names, rows, counts.sum(axis=1), strict=True)
        if there
    ]
    axes.set_yticks(np.arange(len(told)) + 0.5, told[::-1])
    said = [name for name, there in zip(names, columns, strict=True) if there]
    axes.set_xticks(np.arange(len(said)) + 0.5, said, rotation=35, ha="right")
    axes.set_xlabel("answer")
    axes.set_ylabel("truth (how many)")
    axes.set_title(
        f"{faults} held-out faults with impact, {tables['calm']['runs']} runs without a fault;\n"
        "no fault: alarms anywhere, and runs that passed in silence",
        fontsize=9.5, loc="right",
    )  # fmt: skip
    axes.grid(visible=False)
    return figure


_DARK: Final = 0.6
"""Share from which a cell is so blue that its count is written in white."""


def _open_set(tables: Tables) -> Figure | None:
    scores = [(row["unlike"], row["unknown"]) for row in tables["open_set"]]
    strange = np.array([value for value, is_unknown in scores if is_unknown])
    known = np.array([value for value, is_unknown in scores if not is_unknown])
    if not strange.size or not known.size:
        return None
    limits = np.unique([value for value, _ in scores])[::-1]
    hits = [0.0, *(float(np.mean(strange >= limit)) for limit in limits)]
    alarms = [0.0, *(float(np.mean(known >= limit)) for limit in limits)]
    figure, axes = _panel(4.4, 4.0)
    axes.plot(alarms, hits, color=COLOURS[0], marker="o", clip_on=False, label="by likeness")
    axes.plot([0, 1], [0, 1], color=COLOURS[-1], linewidth=0.8, linestyle=":", label="by chance")
    axes.set_xlabel(f"share of {known.size} known faults called unknown")
    axes.set_ylabel(f"share of {strange.size} unknown faults called so")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_title(f"Unknown told from known: area {auroc(strange, known):.2f}", fontsize=10)
    axes.legend(loc="lower right")
    return figure


def _ablation(tables: Tables) -> Figure | None:
    groups = [group for group in tables["ablation"]["groups"] if group["without"] is not None]
    if not groups:
        return None
    groups.sort(key=lambda group: -group["without"])
    places = np.arange(len(groups))
    figure, axes = _panel(6.4, 2.2 + 0.32 * len(groups))
    alone = [group["alone"] or 0.0 for group in groups]
    axes.barh(
        places + 0.2, [group["without"] for group in groups], 0.36, color=COLOURS[0],
        label="without the group",
    )  # fmt: skip
    axes.barh(places - 0.2, alone, 0.36, color=COLOURS[4], label="the group alone")
    whole = _whole(tables)
    if whole is not None:
        axes.axvline(whole, color=INK, linewidth=1, linestyle="--", label=f"all: {whole:.2f}")
    axes.set_yticks(places, [worded(group["group"]) for group in groups])
    axes.set_xlim(0, 1)
    axes.set_xlabel("macro-F1")
    axes.set_title(f"Groups of signals, on {_faults(tables)} held-out faults", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _whole(tables: Tables) -> float | None:
    """Macro-F1 of what was ablated, with everything."""
    kind = tables["ablation"]["kind"]
    name = tables["shipped"] if kind == "shipped" else kind
    return next((o.get("macro_f1") for o in tables["methods"] if o["method"] == name), None)


def _faults(tables: Tables) -> int:
    return int(np.array(tables["confusion"]["diagnoses"])[:-1].sum())


def _methods(tables: Tables) -> Figure | None:
    told: Sequence[Mapping[str, Any]] = [
        method for method in tables["methods"] if method.get("macro_f1") is not None
    ]
    if not told:
        return None
    ordered = sorted(told, key=lambda method: float(method["macro_f1"]))
    places = np.arange(len(ordered))
    values = np.array([method["macro_f1"] for method in ordered], float)
    bounds = np.array([
        [value if end is None else end for end in method["macro_f1_interval"]]
        for value, method in zip(values, ordered, strict=True)
    ])  # fmt: skip
    figure, axes = _panel(6.8, 2.0 + 0.3 * len(ordered))
    errors = np.maximum(0, np.abs(bounds - values[:, None]).T)
    colours = [COLOURS[2] if o["method"] == tables["shipped"] else COLOURS[5] for o in ordered]
    axes.barh(places, values, 0.6, color=colours, xerr=errors, ecolor=INK, capsize=2)
    axes.axvline(MACRO_F1_GOAL, color=COLOURS[1], linewidth=1.2, linestyle="--")
    axes.annotate(
        f"goal {MACRO_F1_GOAL:g}", (MACRO_F1_GOAL, 1), xycoords=("data", "axes fraction"),
        xytext=(0, 3), textcoords="offset points", color=COLOURS[1], ha="center", fontsize=9,
    )  # fmt: skip
    axes.set_yticks(places, [f"{method['method']}  {method['macro_f1']:.2f}" for method in ordered])
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("macro-F1, 95 % interval by run; green: what speaks")
    axes.set_title(f"Methods on {_faults(tables)} held-out faults", fontsize=10, pad=18)
    return figure
