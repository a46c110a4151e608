"""How often released intervals hold the truth, by series and section, nothing left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aggregator.statistics.ratios import Coverage, coverage

from .truth import TruthCell

TOTAL: Final = "all sections"


@dataclass(frozen=True, slots=True)
class SectionCoverage:
    """Coverage of one section's intervals, with exact binomial bounds (99 %).

    series      that released it; "" for all sections together
    values      every released cell
    filled      of those, the cells in which something truly happened; None where nothing did
    shares      intervals of shares that were not suppressed; None where there is none
    """

    series: str
    section: str
    values: Coverage
    filled: Coverage | None
    shares: Coverage | None


_Key = tuple[str, str]


@dataclass(slots=True)
class CoverageTally:
    """Counts intervals that hold the truth; noise is independent from cell to cell."""

    _hits: Counter[tuple[_Key, str]] = field(default_factory=Counter)
    _trials: Counter[tuple[_Key, str]] = field(default_factory=Counter)

    def add(self, cells: Iterable[TruthCell]) -> None:
        for cell in cells:
            if cell.released is None or cell.low is None or cell.high is None:
                continue
            held = cell.low <= cell.truth <= cell.high
            for key in ((cell.series, cell.section), ("", TOTAL)):
                self._count(key, "values", held)
                if cell.truth:
                    self._count(key, "filled", held)
                if cell.share_low is None or cell.share_high is None or cell.true_share is None:
                    continue
                inside = cell.share_low <= cell.true_share <= cell.share_high
                self._count(key, "shares", inside)

    def _count(self, key: _Key, what: str, held: bool) -> None:
        self._trials[key, what] += 1
        self._hits[key, what] += held

    def result(self) -> tuple[SectionCoverage, ...]:
        """Give the total, then each section, the worst first. Raises ValueError without any."""
        keys = list(dict.fromkeys(key for key, _ in self._trials))
        if not keys:
            raise ValueError("expected at least one released window, got none")
        found = [
            SectionCoverage(
                *key,
                coverage(self._hits[key, "values"], self._trials[key, "values"]),
                self._of(key, "filled"),
                self._of(key, "shares"),
            )
            for key in keys
        ]
        return tuple(sorted(found, key=lambda one: (one.section != TOTAL, one.values.rate)))

    def _of(self, key: _Key, what: str) -> Coverage | None:
        trials = self._trials[key, what]
        return coverage(self._hits[key, what], trials) if trials else None


def coverage_rows(found: Sequence[SectionCoverage]) -> list[dict[str, Any]]:
    return [
        {
            "series": one.series,
            "section": one.section,
            "held": one.values.hits,
            "intervals": one.values.trials,
            "percent": round(100 * one.values.rate, 2),
            "low": round(100 * one.values.low, 2),
            "high": round(100 * one.values.high, 2),
        }
        for one in found
        if one.section != TOTAL
    ]


def percents(rows: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{row['series']} {row['section'].replace('_', ' ')} {row['percent']:.1f} % "
        f"of {row['intervals']:,}"
        for row in rows
    )
