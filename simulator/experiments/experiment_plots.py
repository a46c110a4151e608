"""Figures of an experiment's rows, each with one sentence that says what it shows.

A figure is made from the rows of one part; which one, the part says, or its kind does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from matplotlib import pyplot as plt

from .figures import attribution_figure as attribution
from .figures import cost, dropout, error, mix
from .figures import faults_figure as faults
from .figures import guess_figure as guess
from .figures import lies_figure as lies
from .figures import seen_figure as seen
from .figures.figure_frame import STYLE, DrawnFigure, Rows


@dataclass(frozen=True, slots=True)
class PlotFolder:
    """A drawn figure as files: SVG text and PNG bytes."""

    svg: str
    png: bytes
    sentence: str


def draw(figure: str, rows: Rows) -> PlotFolder | None:
    """Draw one figure by name; None where no row has anything to show."""
    with plt.rc_context(STYLE):
        made = FIGURES[figure](rows)
        if made is None:
            return None
        svg, png = io.StringIO(), io.BytesIO()
        made.figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        made.figure.savefig(png, format="png", dpi=130, facecolor="white")
        plt.close(made.figure)
    text = svg.getvalue()
    return PlotFolder(text[text.index("<svg") :], png.getvalue(), made.sentence)


FIGURES: Final[Mapping[str, Callable[[Rows], DrawnFigure | None]]] = MappingProxyType(
    {
        "error": error.draw,
        "cost": cost.draw,
        "dropout": dropout.draw,
        "mix": mix.draw,
        "seen": seen.draw,
        "attribution": attribution.draw,
        "lies": lies.draw,
        "faults": faults.draw,
        "guess": guess.draw,
    }
)

OF_KIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: "error" if name == "windows" else name
        for name in ("windows", "seen", "attribution", "lies", "faults", "guess")
    }
)
"""Figure of a part that names none."""
