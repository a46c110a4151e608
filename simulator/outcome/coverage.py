"""How often the 95 % intervals hold the truth, over many windows and cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from aggregator.ratios import Coverage, coverage
from wire.task import SectionKind

from .truth import TruthCell

TOTAL: Final = "all sections"


@dataclass(frozen=True, slots=True)
class SectionCoverage:
    """Coverage of one section's intervals, with exact binomial bounds (99 %).

    values      every released cell
    filled      of those, the cells in which something truly happened; None where nothing did
    shares      intervals of shares that were not suppressed; None where there is none
    """

    section: str
    values: Coverage
    filled: Coverage | None
    shares: Coverage | None


@dataclass(slots=True)
class CoverageTally:
    """Counts intervals that hold the truth; noise is independent from cell to cell.

    Indicators are counted apart from the total: a host with more than m set reports m of them, so
    their cells are low by design where hosts run many things (docs/statistics.md).
    """

    _hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    _trials: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, cells: Iterable[TruthCell]) -> None:
        """Count one window's cells; those of a window without a release count nothing."""
        for cell in cells:
            if cell.released is None or cell.low is None or cell.high is None:
                continue
            held = cell.low <= cell.truth <= cell.high
            names = [cell.section]
            if cell.kind != SectionKind.INDICATORS.value:
                names.append(TOTAL)
            for name in names:
                self._count(name, "values", held)
                if cell.truth:
                    self._count(name, "filled", held)
                if cell.share_low is None or cell.share_high is None or cell.true_share is None:
                    continue
                inside = cell.share_low <= cell.true_share <= cell.share_high
                self._count(name, "shares", inside)

    def _count(self, name: str, what: str, held: bool) -> None:
        self._trials[name, what] += 1
        self._hits[name, what] += held

    def result(self) -> tuple[SectionCoverage, ...]:
        """Give each section's coverage, and the total first.

        Raises  ValueError when nothing was released
        """
        names = list(dict.fromkeys(name for name, _ in self._trials))
        if not names:
            raise ValueError("expected at least one released window, got none")
        names.sort(key=lambda name: name != TOTAL)
        return tuple(
            SectionCoverage(
                name,
                coverage(self._hits[name, "values"], self._trials[name, "values"]),
                self._of(name, "filled"),
                self._of(name, "shares"),
            )
            for name in names
        )

    def _of(self, name: str, what: str) -> Coverage | None:
        trials = self._trials[name, what]
        return coverage(self._hits[name, what], trials) if trials else None
