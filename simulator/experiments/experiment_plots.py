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

from .application_figures import draw_attribution, draw_seen
from .attack_figures import draw_faults, draw_guess, draw_lies
from .figure_frame import STYLE, DrawnFigure, Rows
from .release_figures import draw_cost, draw_dropout, draw_error, draw_mix


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
        "error": draw_error,
        "cost": draw_cost,
        "dropout": draw_dropout,
        "mix": draw_mix,
        "seen": draw_seen,
        "attribution": draw_attribution,
        "lies": draw_lies,
        "faults": draw_faults,
        "guess": draw_guess,
    }
)

OF_KIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: "error" if name == "windows" else name
        for name in ("windows", "seen", "attribution", "lies", "faults", "guess")
    }
)
"""Figure of a part that names none."""
