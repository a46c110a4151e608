"""The reports in the making and the noise they will carry, for this host's own eyes.

The noise itself is drawn in the step that masks and seals, and is never kept: what is shown is its
standard deviation, beside the value that it will hide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from edge_agent.windows.task_windows import WindowPreview
from wire.catalogue import Catalogue
from wire.report import report_length
from wire.task import SectionKind, SectionSpec

SHOWN_CELLS: Final = 6
SHOWN_REPORTS: Final = 16


def report_views(
    windows: Iterable[WindowPreview], catalogue: Catalogue, now_ms: int
) -> list[dict[str, Any]]:
    """Describe each open window: largest cells of every section, noise in the same unit."""
    views = []
    for window in list(windows)[:SHOWN_REPORTS]:
        task, end_ms = window.task, (window.start_s + window.task.window_s) * 1000
        sections, at = [], 0
        for spec in task.sections:
            values = window.row[at : at + spec.length].tolist()
            at += spec.length
            sections.append(_section(spec, catalogue, values))
        views.append(
            {
                "series": task.series,
                "version": task.version,
                "scheme": task.scheme.value,
                "window_s": task.window_s,
                "ends_in_s": max(0, end_ms - now_ms) / 1000,
                "bytes": report_length(task.d, task.scheme),
                "coordinates": task.d,
                "sections": sections,
            }
        )
    return views


def _section(spec: SectionSpec, catalogue: Catalogue, values: list[int]) -> dict[str, Any]:
    section = catalogue.section(spec.name)
    indicator = spec.kind is SectionKind.INDICATORS
    # One set indicator is worth cap_steps steps; elsewhere a step is q base units.
    per_step = 1 / spec.cap_steps if indicator else spec.q
    order = sorted(range(len(values)), key=lambda place: -values[place])
    return {
        "name": spec.name,
        "unit": section.unit,
        "noise": spec.sigma_1024 / 1024 * per_step,
        "cells": [
            {"cell": section.cells[place], "value": values[place]}
            for place in order[:SHOWN_CELLS]
            if values[place]
        ],
    }
