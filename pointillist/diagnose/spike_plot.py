"""The picture of one spike: its step times above, the signals that explain it below."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from diagnosis.detect.findings import Diagnosis
from diagnosis.detect.journal import Series, SignalSeries
from diagnosis.frames.signals import unit_of
from edge_agent.local.local_rows import clean_name
from edge_agent.local.words import diagnosis_said, quantity, title

from .finding_layout import BoottimeReader

_INK: Final = "#27313b"
_LONGEST, _MEDIAN, _SIGNAL, _MARK, _OVER = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"
_STYLE: Final[Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "pointillist", "font.size": 9,
    "axes.edgecolor": _INK, "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _INK,
    "ytick.color": _INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#dfe4e8", "grid.linewidth": 0.7, "legend.edgecolor": "#b8c2cb",
}  # fmt: skip
_UNNAMEABLE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_TITLE_COLUMNS: Final = 88
_HEADROOM: Final = 1.12


def file_name(diagnosis: Diagnosis, clock: BoottimeReader) -> str:
    """Name the picture of a diagnosis: by recording, onset, cause and subject.

    Runs that draw into one folder so leave each other's pictures alone.
    """
    parts = [clock.name, clock.stamp(diagnosis.onset_ns), diagnosis.cause.value, diagnosis.subject]
    named = [_UNNAMEABLE.sub("_", part).strip("_")[:60] for part in parts if part]
    return f"{'-'.join(part or 'subject' for part in named)}.png"


def draw_spike(path: Path, series: Series, diagnosis: Diagnosis, clock: BoottimeReader) -> None:
    """Draw a picture; the file's ending says which kind: `.png` or `.svg`. Raises OSError."""
    rows = 1 + len(series.signals)
    with plt.rc_context(_STYLE):
        figure, grid = plt.subplots(
            rows, 1, sharex=True, squeeze=False, layout="constrained",
            figsize=(8, 3.3 + 1.15 * len(series.signals)),
            height_ratios=[2.0] + [1.0] * len(series.signals),
        )  # fmt: skip
        steps, *below = [row[0] for row in grid]
        _steps(steps, series, diagnosis)
        for axes, signal in zip(below, series.signals, strict=True):
            _signal(axes, series.seconds, signal, diagnosis)
        for number, axes in enumerate((steps, *below)):
            _moments(axes, series, named=number == 0)
        (below or [steps])[-1].set_xlabel("seconds since the first slow step")
        figure.suptitle(
            _headline(diagnosis, clock), x=0.01, ha="left", fontsize=10, parse_math=False
        )
        _legend(figure, steps, below)
        undated = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=120, facecolor="white", metadata=undated)
        plt.close(figure)


def _headline(diagnosis: Diagnosis, clock: BoottimeReader) -> str:
    cause = textwrap.fill(clean_name(diagnosis_said(diagnosis)), _TITLE_COLUMNS)
    subject = textwrap.shorten(clean_name(diagnosis.subject), _TITLE_COLUMNS, placeholder=" …")
    when = f"first slow step at {clock.text(diagnosis.onset_ns)}"
    if clock.name:
        dated = f", recorded {clock.recorded}" if clock.recorded else ""
        when += f" of {clock.name}{dated}"
    return "\n".join((cause, subject, clean_name(f"{when}; {diagnosis.model}")))


def _steps(axes: Axes, series: Series, diagnosis: Diagnosis) -> None:
    axes.plot(series.seconds, _gaps(series.longest_ms), "-", color=_LONGEST, label="longest step")
    axes.plot(series.seconds, _gaps(series.p50_ms), "-", color=_MEDIAN, label="median step")
    axes.axhline(diagnosis.before.p99_ms, color=_LONGEST, linewidth=0.9, linestyle="--",
                 label="usual p99 of steps")  # fmt: skip
    _from_zero(axes, [*_gaps(series.longest_ms), diagnosis.before.p99_ms], "ms")
    axes.set_title("steps of each second", loc="left", fontsize=9)


def _signal(
    axes: Axes, seconds: Sequence[float], signal: SignalSeries, diagnosis: Diagnosis
) -> None:
    axes.plot(seconds, _gaps(signal.values), "-", color=_SIGNAL, label="signal")
    place = (signal.scope, signal.signal)
    usual = next((e for e in diagnosis.evidence if (e.scope, e.signal) == place), None)
    shown = _gaps(signal.values)
    if usual is not None:
        low, high = max(0.0, usual.baseline - usual.spread), usual.baseline + usual.spread
        axes.axhspan(low, high, color=_SIGNAL, alpha=0.22, linewidth=0, label="usual range")
        shown.append(high)
    _from_zero(axes, shown, unit_of(signal.signal) or "")
    axes.set_title(title(*place), loc="left", fontsize=9, parse_math=False)


def _moments(axes: Axes, series: Series, *, named: bool) -> None:
    """Mark when it began, was named and was over; `named` puts them into the legend."""
    marks = [(0.0, ":", _INK, "first slow step")]
    if series.named_s is not None:
        marks.append((series.named_s, "-", _MARK, "cause named"))
    if series.ended_s is not None:
        marks.append((series.ended_s, "-.", _OVER, "told to be over"))
    for at_s, style, colour, what in marks:
        axes.axvline(at_s, color=colour, linewidth=1.1, linestyle=style,
                     label=what if named else None)  # fmt: skip


def _legend(figure: Figure, steps: Axes, below: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for axes in (steps, *below):
        found, labels = axes.get_legend_handles_labels()
        handles |= {
            text: handle for text, handle in zip(labels, found, strict=True) if text not in handles
        }
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=True
    )


def _from_zero(axes: Axes, values: Sequence[float], unit: str) -> None:
    """Let an axis begin at 0, with ticks that a person reads."""
    known = [value for value in values if value == value]  # noqa: PLR0124 (NaN)
    axes.set_ylim(0, (max(known, default=0.0) or 1.0) * _HEADROOM)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, unit)))


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
