"""The picture of one spike: its step times above, the signals that explain it below."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from edge_agent.diagnosis.findings import Diagnosis
from edge_agent.diagnosis.trail import Series, SignalSeries
from edge_agent.frames.signals import unit_of
from edge_agent.local.diagnosis_words import CAUSES, signal_said
from edge_agent.local.rows import clean_name

_INK: Final = "#27313b"
_LONGEST, _MEDIAN, _SIGNAL, _MARK = "#D55E00", "#0072B2", "#009E73", "#CC79A7"
_STYLE: Final[Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "pointillist", "font.size": 9,
    "axes.edgecolor": _INK, "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _INK,
    "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#dfe4e8", "grid.linewidth": 0.7, "legend.frameon": False,
}  # fmt: skip
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def file_name(one: Diagnosis, number: int) -> str:
    """Name the picture of a diagnosis: in order, by cause and subject."""
    subject = _UNNAMEABLE.sub("_", one.subject).strip("_")[:60] or "subject"
    return f"{number:04d}-{one.cause.value}-{subject}.png"


def draw_spike(path: Path, series: Series, one: Diagnosis) -> None:
    """Draw a picture; the file's ending says which kind: `.png` or `.svg`.

    Raises      OSError
    """
    rows = 1 + len(series.signals)
    with plt.rc_context(_STYLE):
        figure, grid = plt.subplots(
            rows, 1, sharex=True, squeeze=False, layout="constrained",
            figsize=(8, 2.3 + 1.15 * len(series.signals)),
            height_ratios=[2.0] + [1.0] * len(series.signals),
        )  # fmt: skip
        steps, *below = [row[0] for row in grid]
        _steps(steps, series, one)
        for axes, signal in zip(below, series.signals, strict=True):
            _signal(axes, series.seconds, signal, one)
        for axes in (steps, *below):
            axes.axvline(0, color=_INK, linewidth=0.9, linestyle=":")
            if series.named_s is not None:
                axes.axvline(series.named_s, color=_MARK, linewidth=0.9)
        (below or [steps])[-1].set_xlabel(
            "seconds from the spike's onset (dotted) and the cause's naming (line)"
        )
        figure.savefig(path, dpi=120, facecolor="white", metadata=_no_date(path))
        plt.close(figure)


def _steps(axes: Axes, series: Series, one: Diagnosis) -> None:
    axes.plot(series.seconds, _gaps(series.longest_ms), "-", color=_LONGEST, label="longest step")
    axes.plot(series.seconds, _gaps(series.p50_ms), "-", color=_MEDIAN, label="median step")
    axes.axhline(one.before.p99_ms, color=_LONGEST, linewidth=0.8, linestyle="--",
                 label="usual p99")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel("step, ms")
    axes.legend(loc="upper left", ncols=3)
    said = f"{one.cause.value}, {100 * one.confidence:.0f} %: {CAUSES[one.cause]}"
    axes.set_title(f"{clean_name(one.subject)}\n{said}", loc="left", fontsize=10, parse_math=False)


def _signal(axes: Axes, seconds: Sequence[float], signal: SignalSeries, one: Diagnosis) -> None:
    axes.plot(seconds, _gaps(signal.values), "-", color=_SIGNAL)
    place = (signal.scope, signal.signal)
    usual = next((e for e in one.evidence if (e.scope, e.signal) == place), None)
    if usual is not None:
        low, high = usual.baseline - usual.spread, usual.baseline + usual.spread
        axes.axhspan(low, high, color=_SIGNAL, alpha=0.15, linewidth=0)
    unit = unit_of(signal.signal)
    name = signal_said(*place)
    axes.set_title(f"{name}{f' ({unit})' if unit else ''}", loc="left", fontsize=9,
                   parse_math=False)  # fmt: skip


def _gaps(values: Sequence[float | None]) -> list[float]:
    """Leave a gap where nothing was measured."""
    return [float("nan") if value is None else value for value in values]


def _no_date(path: Path) -> dict[str, None]:
    return {"Date": None} if path.suffix == ".svg" else {}
