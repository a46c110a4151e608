"""Findings one after the other, as text or JSON lines, each spike with its picture."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from diagnosis.detect.findings import Diagnosis, Finding
from diagnosis.detect.trail import Series

from .clocks import BoottimeReader
from .picture_layout import as_lines, as_object

MOST_OPEN: Final = 256
WIDTH: Final = 100
"""Columns where nothing says how wide the terminal is."""
_Spike = tuple[str, str, int]


class Teller:
    """Prints findings as they come, and draws each spike into a folder.

    show      takes one line; as_json: a JSON document a line
    plots     where pictures go; None: none is drawn
    verbose   raw names of signals and every one of them
    width     columns of the terminal
    """

    def __init__(
        self, show: Callable[[str], None], *, as_json: bool = False, plots: Path | None = None,
        verbose: bool = False, width: int = WIDTH,
    ) -> None:  # fmt: skip
        self._show = show
        self._as_json = as_json
        self._plots = plots
        self._verbose = verbose
        self._width = width
        self._standing: OrderedDict[_Spike, Diagnosis] = OrderedDict()
        self._told: dict[_Spike, Diagnosis] = {}
        self.drawn = 0
        self.told = 0
        self.diagnosed = 0
        """Spikes that got a diagnosis: each may have a picture."""

    def tell(self, finding: Finding | Series, clock: BoottimeReader) -> None:
        """Print one finding; a diagnosis that says the same as the one before it is passed over."""
        if isinstance(finding, Series):
            self._draw(finding, clock)
            return
        before: Diagnosis | None = None
        if isinstance(finding, Diagnosis):
            before = self._before(finding, clock)
            if before is not None and _same(before, finding):
                return
        self.told += 1
        if self._as_json:
            self._show(json.dumps(as_object(finding, clock)))
            return
        for line in as_lines(finding, clock, before, width=self._width, verbose=self._verbose):
            self._show(line)

    def _before(self, one: Diagnosis, clock: BoottimeReader) -> Diagnosis | None:
        """Give what was told of the same spike last, and keep this one."""
        place = (clock.name, one.subject, one.onset_ns)
        self.diagnosed += place not in self._standing
        self._standing[place] = one
        self._standing.move_to_end(place)
        while len(self._standing) > MOST_OPEN:
            gone, _ = self._standing.popitem(last=False)
            self._told.pop(gone, None)
        before = self._told.get(place)
        if before is None or not _same(before, one):
            self._told[place] = one
        return before

    def _draw(self, series: Series, clock: BoottimeReader) -> None:
        one = self._standing.get((clock.name, series.subject, series.onset_ns))
        if self._plots is None or one is None:
            return
        from .spike_plot import draw_spike, file_name

        self.drawn += 1
        draw_spike(self._plots / file_name(one, clock), series, one, clock)


def _same(before: Diagnosis, now: Diagnosis) -> bool:
    return (before.cause, before.incident) == (now.cause, now.incident)
