"""Findings one after the other, as text or JSON lines, each spike with its picture."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from edge_agent.diagnosis.findings import Diagnosis, Finding, SpikeEnded, Warned
from edge_agent.diagnosis.trail import Series
from edge_agent.local.diagnosis_words import evidence_said, said
from edge_agent.local.rows import clean_name

MOST_OPEN: Final = 256
Clock = Callable[[int], str]
"""From CLOCK_BOOTTIME to what a person reads."""


def unix_clock(offset_ns: int) -> Clock:
    """Read times as dates; offset_ns: Unix time less CLOCK_BOOTTIME."""

    def read(boottime_ns: int) -> str:
        return f"{datetime.fromtimestamp((boottime_ns + offset_ns) / 1e9, UTC):%Y-%m-%d %H:%M:%SZ}"

    return read


def recording_clock(start_ns: int) -> Clock:
    """Read times as seconds since a recording began."""

    def read(boottime_ns: int) -> str:
        return f"{(boottime_ns - start_ns) / 1e9:8.1f} s"

    return read


class Teller:
    """Prints findings as they come, and draws each spike into a folder.

    show    takes one line; as_json: a JSON document a line
    plots   where pictures go; None: none is drawn
    """

    def __init__(self, show: Callable[[str], None], *, as_json: bool, plots: Path | None) -> None:
        self._show = show
        self._as_json = as_json
        self._plots = plots
        self._standing: OrderedDict[tuple[str, int], Diagnosis] = OrderedDict()
        self._told: dict[tuple[str, int], tuple[str, bool]] = {}
        self.drawn = 0
        self.told = 0

    def tell(self, finding: Finding | Series, clock: Clock) -> None:
        """Print one finding; a diagnosis that says the same as the one before it is passed over."""
        if isinstance(finding, Series):
            self._draw(finding)
            return
        if isinstance(finding, Diagnosis) and not self._is_news(finding):
            return
        self.told += 1
        at_ns = finding.ended_ns if isinstance(finding, SpikeEnded) else finding.at_ns
        if self._as_json:
            body = {"time": clock(at_ns).strip(), "kind": type(finding).__name__,
                    **dataclasses.asdict(finding)}  # fmt: skip
            self._show(json.dumps(body))
            return
        self._show(f"{clock(at_ns)}  {clean_name(finding.subject)}  {clean_name(said(finding))}")
        if isinstance(finding, Diagnosis | Warned):
            for one in finding.evidence[1 if isinstance(finding, Diagnosis) else 2 : 4]:
                self._show(f"{'':>{len(clock(at_ns))}}    {clean_name(evidence_said(one))}")

    def _is_news(self, one: Diagnosis) -> bool:
        place = (one.subject, one.onset_ns)
        self._standing[place] = one
        self._standing.move_to_end(place)
        while len(self._standing) > MOST_OPEN:
            gone, _ = self._standing.popitem(last=False)
            self._told.pop(gone, None)
        now = (one.cause.value, one.incident)
        before, self._told[place] = self._told.get(place), now
        return before != now

    def _draw(self, series: Series) -> None:
        one = self._standing.get((series.subject, series.onset_ns))
        if self._plots is None or one is None:
            return
        from .plot import draw_spike, file_name

        self.drawn += 1
        draw_spike(self._plots / file_name(one, self.drawn), series, one)
