"""What left this host, for its owner, from the ledger and the local history: each report, what was
put in, and the noise's size. Noise, masks and keys are kept nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Final

from edge_agent.ledger.ledger_records import LedgerView
from edge_agent.ledger.left_reports import LeftReport, LeftView
from edge_agent.windows.window_accumulator import WindowPreview
from privacy.budget import WEEK_S, Entry, spent_at
from privacy.plan import epsilon_of_share
from wire import labels
from wire.catalogue import UNMEASURED, Bound, Catalogue, Section
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.report import report_length
from wire.task import SectionKind, SectionSpec, Task, series_name

from .local_rows import EventRow

MILLION: Final = 1_000_000
UNMEASURED_EVENT: Final = "unmeasured"
"""In the history: what no source measures of a series, written when that changes and each hour."""


@dataclass(frozen=True, slots=True)
class SentCell:
    """One number that was put in; `noise` is the host's own standard deviation, in `unit`."""

    cell: str
    value: float
    unit: str
    noise: float


@dataclass(frozen=True, slots=True)
class SentSection:
    """One section: the most that a coordinate can be, noise of this host and of a smallest release.
    cells, unmeasured   what was put in but zeros, why nothing was; None: not kept, measured
    """

    name: str
    about: str
    unit: str
    coordinates: int
    most: float
    noise: float
    release_noise: float
    cells: tuple[SentCell, ...] | None
    unmeasured: str | None = None


@dataclass(frozen=True, slots=True)
class PutIn:
    """What the history has of a report: (place, base units) but zeros, why sections have none."""

    cells: Sequence[Sequence[int]]
    unmeasured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SentBudget:
    """What the week that ended with a window cost: its budget's share, rounded up, and epsilon."""

    share: float
    epsilon: float
    epsilon_most: float
    delta: float


@dataclass(frozen=True, slots=True)
class SentReport:
    """A report that this host sealed; left, task, budget: None where they are no longer kept."""

    host_id: bytes
    series: str
    window_start: int
    window_end: int
    left: LeftReport | None
    task: Task | None
    budget: SentBudget | None

    @property
    def report_id(self) -> bytes:
        """The report's random id; empty where it is not kept."""
        return b"" if self.left is None else self.left.report_id


def sent_reports(ledger: LedgerView, left: LeftView) -> list[SentReport]:
    """Put entries and rows together, by the end of their windows; a row keeps its host id."""
    tasks = {}  # as this agent verified them when it took them; not those of times beyond years
    for task_id, signed in left.tasks.items():
        with suppress(ReportRejected):
            tasks[task_id] = Task.decode_body(Signed.decode(signed, labels.TASK).body)
    # Both by series key, or by name where an earlier agent sealed the report.
    rows = {(row.host_id, row.series, row.window): row for row in left.reports}
    found = []
    for row in rows.values():
        task = tasks.get(row.task_id)
        budget = None if task is None else _budget(ledger, row, task)
        span = row.window, row.window_end
        name = series_name(row.series)
        found.append(SentReport(row.host_id, name, *span, row, task, budget))
    told = {(_spender(ledger, host), series, start) for host, series, start in rows}
    for host in ledger.hosts:
        for entry in host.entries:
            if (host.host_id, entry.series, entry.start) not in told:
                span = entry.start, entry.end
                name = series_name(entry.series)
                found.append(SentReport(host.host_id, name, *span, None, None, None))
    return sorted(found, key=lambda report: (report.window_end, report.series))


def _spender(ledger: LedgerView, host: bytes) -> bytes:
    """Give under which id the ledger has what a host spent: of a machine's own, that of today."""
    hosts = [view.host_id for view in ledger.hosts]
    return hosts[0] if len(hosts) == 1 else host


def _budget(ledger: LedgerView, row: LeftReport, task: Task) -> SentBudget | None:
    end_s = row.window_end
    if end_s - WEEK_S < ledger.kept_from_s:
        return None
    entries: Iterable[Entry] = (
        entry
        for host in ledger.hosts
        if host.host_id == _spender(ledger, row.host_id)
        for entry in host.entries
        if entry.end <= end_s
    )
    cost = spent_at(entries, end_s - WEEK_S)
    share = float(-(-cost * MILLION // 1)) / MILLION  # up, so that no less is shown than was spent
    epsilon = epsilon_of_share(task.mu_1e9, min(share, 1.0), task.delta_1e12)
    return SentBudget(share, epsilon, task.epsilon_millionths / MILLION, task.delta_1e12 / 10**12)


def sections_of(task: Task, catalogue: Catalogue, put_in: PutIn | None) -> list[SentSection]:
    """Describe a task's sections and what was put in; None: that is not kept."""
    cells = None if put_in is None else put_in.cells
    why = {} if put_in is None else put_in.unmeasured
    sections, at = [], 0
    for spec in task.sections:
        known = catalogue.known(spec)
        own = [(place - at, value) for place, value in cells or () if 0 <= place - at < spec.length]
        unit, scale = ("base units", 1.0) if known is None else _unit(known)
        noise = _noise(spec) * scale
        sections.append(
            SentSection(
                spec.name,
                "no longer in the catalogue" if known is None else known.about,
                unit,
                spec.length,
                1.0 if spec.kind is SectionKind.INDICATORS else spec.coordinate_cap * scale,
                noise,
                noise * sqrt(task.n_min),
                None if cells is None or known is None else tuple(_cells(spec, known, own)),
                why.get(spec.name),
            )
        )
        at += spec.length
    return sections


def _noise(spec: SectionSpec) -> float:
    """Give one host's standard deviation in base units: a set indicator is worth cap_steps."""
    per_step = 1 / spec.cap_steps if spec.kind is SectionKind.INDICATORS else spec.q
    return spec.sigma_1024 / 1024 * per_step


def _cells(spec: SectionSpec, known: Section, own: Sequence[tuple[int, int]]) -> Iterable[SentCell]:
    leaves = {leaf.name: (leaf.unit, leaf.full_scale / MILLION) for leaf in known.coordinates}
    leaves |= {UNMEASURED: ("hosts", 1 / spec.unmeasured)} if known.counts_unmeasured else {}
    for place, value in sorted(own, key=lambda cell: -cell[1]):
        cell = known.cells[place]
        unit, scale = leaves.get(cell.rpartition("/")[2], _unit(known))
        yield SentCell(cell, value * scale, unit, _noise(spec) * scale)


def _unit(known: Section) -> tuple[str, float]:
    """Give the unit that people read, and how much of it a base unit is."""
    if known.coordinates:
        return "% of full scale", 100 / MILLION
    if known.bound is Bound.PER_GPU_MS:
        return "GPU-s", 1 / 1000
    return known.unit, 1.0


Rows = Callable[[str, str], Iterable[Mapping[str, Any]]]
"""The history's rows of a kind and a name."""


def put_into(rows: Rows, report: SentReport) -> PutIn | None:
    """Find in the history what was put into a report; None where it is not there."""
    if report.left is None:
        return None
    wanted = report.series, report.window_start, report.left.task_id.hex()
    for row in rows("report", report.series):
        if (row["name"], row["window_start_s"], row["task_id"]) == wanted:
            events = rows("event", UNMEASURED_EVENT)
            return PutIn(list(row["cells"]), _unmeasured(events, report, report.left.series))
    return None


def unmeasured_event(
    boottime_ns: int, source: str, task: Task, window_start_s: int, sections: Mapping[str, str]
) -> EventRow:
    """Write down, by section, why no source measured it from a window on."""
    said = {"series_key": task.series_key, "window_start": window_start_s}
    detail = json.dumps(said | {"sections": dict(sections)})
    return EventRow(UNMEASURED_EVENT, task.series, detail, boottime_ns, source)


def _unmeasured(
    events: Iterable[Mapping[str, Any]], report: SentReport, key: str
) -> dict[str, str]:
    """Give what the last event up to a report's window says; nothing without one."""
    said: dict[str, str] = {}
    for event in events:
        if event["key"] == report.series:
            detail = json.loads(event["detail"])
            earlier = detail["window_start"] <= report.window_start
            if earlier and detail.get("series_key", key) == key:
                said = detail["sections"]
    return said


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
            sections.append(_open_section(spec, catalogue, values))
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


def _open_section(spec: SectionSpec, catalogue: Catalogue, values: list[int]) -> dict[str, Any]:
    section = catalogue.section_of(spec)
    order = sorted(range(len(values)), key=lambda place: -values[place])
    return {
        "name": spec.name,
        "unit": section.unit,
        "noise": _noise(spec),
        "cells": [
            {"cell": section.cells[place], "value": values[place]}
            for place in order[:SHOWN_CELLS]
            if values[place]
        ],
    }
