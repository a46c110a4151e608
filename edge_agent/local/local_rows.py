"""Records of every source as rows of the local tables; nothing here leaves the host.
One of another class is kept where it is a `Reading`: one number with a name and a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from collectors.records import activity
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import GovernorState, GpuCalls, ProbeGroup
from collectors.records.gpu_time import GpuTimes, TimedProcess, TimingState
from diagnosis.detect.findings import Diagnosis, Finding, SpikeBegan, SpikeEnded
from transport.process.printable import printable
from wire.catalogue import Catalogue
from wire.task import SectionKind

from .words import said, timing_said

LONGEST_NAME: Final = 200
"""Characters of a name or key that are kept: a command line or a mangled kernel can be longer."""
MOST_TABLE_CELLS: Final = 4096
"""Non-zero cells of one table that become rows; the rest is counted as dropped."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One number: `key` says of what (a device, a cgroup), "" where there is one only."""

    boottime_ns: int
    span_ns: int
    source: str
    name: str
    key: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class MetricCell:
    """Which metric: its name, of what, and its unit."""

    name: str
    key: str
    unit: str


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Many metrics at many times, read back as metrics: int64[n] ascending, int64[n, cells].
    span_ns      what each value covers; 0 for counters since the source began
    """

    source: str
    cells: tuple[MetricCell, ...]
    boottime_ns: NDArray[np.int64]
    values: NDArray[np.int64]
    span_ns: int = 0


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record as it came, names too: `clean_name` whoever shows them. The history has no rows of
    findings, which are events there, nor of the governor, whose numbers are metrics.
    """

    source: str
    record: activity.KernelActivity | GpuCalls | GovernorState | GpuTimes | Finding


@dataclass(frozen=True, slots=True)
class EventRow(activity.HostEvent):
    """Something that happened: a fault, a source that came or went, a restart."""

    source: str


@dataclass(frozen=True, slots=True)
class ReportRow:
    """What a window of a task held, for the owner: (place, base units) of all but zeros."""

    boottime_ns: int
    source: str
    series: str
    window_start_s: int
    task_id: str
    cells: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ProcessTimeRow:
    """GPU time of one process over its own span, some ten seconds: for the history."""

    source: str
    boottime_ns: int
    process: TimedProcess


Row = MetricRow | PackedRow | EventRow | RecordRow | ProcessTimeRow | ReportRow


@runtime_checkable
class Reading(Protocol):
    """A record with one number of its own, of a class that nothing here knows."""

    name: str
    key: str
    unit: str
    value: float
    boottime_ns: int


NOT_SHOWN: Final = frozenset({activity.StepMarks, activity.RhythmMarks})
"""Diagnosis reads them, and shows what it finds."""


_TIMED: Final = frozenset({TimingState.MEASURED, TimingState.STARTING})


class Flattener:
    """Turns records into rows; counts what it left out, by reason, in `dropped`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._units = {section.name: section.unit for section in catalogue.sections}
        indicators = (s.name for s in catalogue.sections if s.kind is SectionKind.INDICATORS)
        self._events = frozenset(indicators)
        self._without: Mapping[ProbeGroup, str] = {}
        self._timing: dict[ProcessKey, TimingState] = {}
        self.dropped: dict[str, int] = {}

    def rows(self, source: str, records: Iterable[object]) -> Iterator[Row]:
        for record in records:
            if type(record) not in NOT_SHOWN:
                yield from self._rows(source, record)

    def _rows(self, source: str, record: object) -> Iterable[Row]:
        match record:
            case activity.KernelActivity():
                shown = printable(record.kernel)
                named = record if shown is record.kernel else replace(record, kernel=shown)
                return (RecordRow(source, named),)
            case activity.Observation():
                return (self._observed(source, record),)
            case activity.HostTicks():
                return _ticks(source, record)
            case activity.HostTable():
                return self._table(source, record)
            case activity.GpuCoverage():
                at_ns, span_ns, key = record.boottime_ns, record.span_ns, f"gpu{record.gpu}"
                return (MetricRow(at_ns, span_ns, record.source, "watched", key, "ns", span_ns),)
            case activity.HostEvent():
                key, detail = clean_name(record.key), clean_name(record.detail)
                name = clean_name(record.name)
                return (EventRow(name, key, detail, record.boottime_ns, source),)
            case SpikeBegan() | Diagnosis() | SpikeEnded():
                return _found(source, record)
            case GpuCalls():
                return (RecordRow(source, record),)
            case GovernorState():
                return self._governor(source, record)
            case GpuTimes():
                return self._gpu_times(source, record)
            case Reading():
                return (_reading(source, record),)
            case _:
                self._drop("unknown_record")
                return ()

    def _observed(self, source: str, seen: activity.Observation) -> Row:
        if seen.section in self._events:
            return EventRow(seen.section, clean_name(seen.cell), "", seen.boottime_ns, source)
        unit = self._units.get(seen.section, "")
        key = clean_name(seen.cell)
        return MetricRow(seen.boottime_ns, 0, source, seen.section, key, unit, seen.value)

    def _table(self, source: str, table: activity.HostTable) -> Iterator[PackedRow]:
        """Keep the cells that are not zero: in a table of growth a missing cell is a zero."""
        rows, columns = np.nonzero(table.values)
        self._drop("table_cells", max(0, len(rows) - MOST_TABLE_CELLS))
        rows, columns = rows[:MOST_TABLE_CELLS], columns[:MOST_TABLE_CELLS]
        if not len(rows):
            return
        names, keys = table.columns, table.rows
        cells = tuple(
            _table_cell(table.name, names[column], keys[row])
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        )
        at = np.array([table.boottime_ns], dtype=np.int64)
        kept = table.values[rows, columns].reshape(1, -1)
        yield PackedRow(source, cells, at, kept, table.span_ns)

    def _governor(self, source: str, state: GovernorState) -> Iterator[Row]:
        """Give the state, its numbers, and an event for each group that is dropped or back."""
        yield RecordRow(source, state)
        at_ns, span_ns = state.boottime_ns, state.span_ns
        numbers = [("budget_share", "", state.budget), ("predicted_share", "", state.predicted)]
        if state.measured is not None:
            numbers.append(("measured_share", "", state.measured))
        numbers.append(("duty", "", state.duty))
        # A group's share is the probability that a call of it is seen.
        for share, groups in (
            (1.0, state.steady),
            (state.duty, state.in_turns),
            (0.0, state.dropped),
        ):
            numbers += [("group_share", group.value, share) for group in groups]
        numbers += [("lost", clean_name(what), float(count)) for what, count in state.lost.items()]
        numbers.append(("launches", "", float(state.launches)))
        numbers += [("unnamed", why.value, float(count)) for why, count in state.unnamed.items()]
        for name, key, value in numbers:
            yield MetricRow(at_ns, span_ns, source, f"probes.{name}", key, "", value)
        for group, reason in state.dropped.items():
            if group not in self._without:
                yield EventRow("probes_dropped", group.value, clean_name(reason), at_ns, source)
        for group in self._without.keys() - state.dropped.keys():
            yield EventRow("probes_back", group.value, "", at_ns, source)
        self._without = dict(state.dropped)

    def _gpu_times(self, source: str, times: GpuTimes) -> Iterator[Row]:
        """Give the record, and an event for each process that can no longer be timed or is."""
        yield RecordRow(source, times)
        at_ns = times.boottime_ns + times.span_ns
        before, self._timing = self._timing, {p.process: p.state for p in times.processes}
        for process in times.processes:
            was = before.get(process.process, TimingState.STARTING)
            if process.state is not was and not {process.state, was} <= _TIMED:
                name = "gpu_timed" if process.state in _TIMED else "gpu_not_timed"
                key = clean_name(f"{process.name}[{process.process.pid}]")
                yield EventRow(name, key, timing_said(process.state, process.error), at_ns, source)

    def _drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


def _found(source: str, finding: Finding) -> Iterator[Row]:
    """Give a finding to the live view; a diagnosis is repeated, its spike's end has the last."""
    yield RecordRow(source, finding)
    if not isinstance(finding, Diagnosis):
        words = clean_name(said(finding))
        at_ns, name = (
            (finding.ended_ns, "spike_over")
            if isinstance(finding, SpikeEnded)
            else (finding.at_ns, "spike")
        )
        yield EventRow(name, clean_name(finding.subject), words, at_ns, source)


def _ticks(source: str, ticks: activity.HostTicks) -> Iterator[PackedRow]:
    if len(ticks.boottime_ns):
        signed = ticks.totals.view(np.int64)
        yield PackedRow(source, _tick_cells(ticks.metrics), ticks.boottime_ns, signed)


@lru_cache(maxsize=16)
def _tick_cells(metrics: tuple[str, ...]) -> tuple[MetricCell, ...]:
    return tuple(MetricCell(clean_name(name), "", unit_of(name)) for name in metrics)


@lru_cache(maxsize=MOST_TABLE_CELLS)
def _table_cell(table: str, column: str, key: str) -> MetricCell:
    return MetricCell(f"{table}.{column}", clean_name(key), unit_of(column))


def _reading(source: str, record: Reading) -> MetricRow:
    name, unit = clean_name(record.name), record.unit or unit_of(record.name)
    value = float(record.value)
    return MetricRow(record.boottime_ns, 0, source, name, clean_name(record.key), unit, value)


_UNITS: Final[Mapping[str, str]] = {
    "ns": "ns", "us": "us", "ms": "ms", "s": "s", "bytes": "bytes", "percent": "percent",
    "mw": "mW", "mj": "mJ", "mhz": "MHz", "celsius": "celsius", "lanes": "lanes",
    "millionths": "millionths", "kib": "KiB", "mib": "MiB",
}  # fmt: skip


@lru_cache(maxsize=4096)
def unit_of(name: str) -> str:
    """Read the unit off the end of a name, as this project's names have it; "" for a count."""
    if name.endswith("_bytes_per_s"):
        return "bytes/s"
    return _UNITS.get(name.rsplit("_", 1)[-1], "") if "_" in name else ""


def clean_name(text: str) -> str:
    """Bound a name, and keep control characters of a hostile process name off terminals."""
    cleaned = printable(text)
    return cleaned if len(cleaned) <= LONGEST_NAME else f"{cleaned[: LONGEST_NAME - 1]}…"
