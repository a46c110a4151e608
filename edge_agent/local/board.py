"""The latest of everything on one board, for `agent top`: in memory, bounded, never on disk."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collectors.records.activity import EVERYTHING_MILLIONTHS
from diagnosis.detect.findings import Diagnosis, Finding, SpikeEnded

from .calls_board import CallsBoard
from .diagnosis_words import (
    ADVICE,
    CAUSES,
    evidence_said,
    interferer,
    most_telling,
    said,
    steps_said,
)
from .gpu_time_board import GpuTimeBoard
from .local_rows import (
    ActivityRow,
    CallsRow,
    EventRow,
    FindingRow,
    GovernorRow,
    GpuTimesRow,
    MetricRow,
    PackedRow,
    ProcessTimeRow,
    ReportRow,
    Row,
    clean_name,
)

MOST_SUBJECTS: Final = 64
OVER_NS: Final = 120_000_000_000
"""So long a spike that is over is shown."""
SHOWN_EVIDENCE: Final = 3


class FindingsBoard:
    """The latest finding of each subject."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, Finding] = OrderedDict()

    def add(self, finding: Finding) -> None:
        """Take a finding."""
        self._latest[finding.subject] = finding
        self._latest.move_to_end(finding.subject)
        if len(self._latest) > MOST_SUBJECTS:
            self._latest.popitem(last=False)

    def view(self, now_ns: int) -> list[dict[str, Any]]:
        """Give what is to be shown as JSON, the newest first."""
        return [
            _shown(finding, now_ns)
            for finding in reversed(self._latest.values())
            if not _is_old(finding, now_ns)
        ]


def _is_old(finding: Finding, now_ns: int) -> bool:
    return isinstance(finding, SpikeEnded) and now_ns - finding.ended_ns > OVER_NS


def _shown(finding: Finding, now_ns: int) -> dict[str, Any]:
    view: dict[str, Any] = {
        "subject": clean_name(finding.subject),
        "state": "over" if isinstance(finding, SpikeEnded) else "spike",
        "age_s": max(0, now_ns - finding.onset_ns) // 1_000_000_000,
        "cause": "",
        "said": clean_name(said(finding)),
        "evidence": [],
    }
    standing = finding.last if isinstance(finding, SpikeEnded) else finding
    if isinstance(standing, Diagnosis):
        view |= {
            "cause": standing.cause.value,
            "about": CAUSES[standing.cause],
            "who": clean_name(interferer(standing)),
            "advice": ADVICE[standing.cause],
            "confidence": standing.confidence,
            "incident": standing.incident,
            "steps": steps_said(standing.before, standing.now),
            "source": standing.source.value,
            "model": standing.model,
            "evidence": [
                clean_name(evidence_said(e, (interferer(standing),)))
                for e in most_telling(standing.evidence, SHOWN_EVIDENCE)
            ],
        }
    return view


MOST_VALUES: Final = 2_000
MOST_KERNELS: Final = 2_000
MOST_EVENTS: Final = 50
SHOWN_KERNELS: Final = 20
FRESH_NS: Final = 10_000_000_000
"""A value older than this is not shown: what is old must not look new."""
KERNEL_SPAN_NS: Final = 10_000_000_000
_BUCKET_NS: Final = 1_000_000_000
MOST_WAITING: Final = 5_000


@dataclass(slots=True)
class _Value:
    at_ns: int
    unit: str
    value: float


@dataclass(slots=True)
class _Kernel:
    gpu_ns: float = 0.0
    launches: float = 0.0


class Board:
    """Keeps each metric's last value, the kernels of the last ten seconds and the last events.

    Nobody looks most of the time: metrics wait as they came until somebody does, or are too old.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, str, str], _Value] = OrderedDict()
        self._buckets: dict[int, dict[tuple[str, str, str], _Kernel]] = {}
        self._events: list[EventRow] = []
        self._calls = CallsBoard()
        self._gpu_time = GpuTimeBoard()
        self._findings = FindingsBoard()
        self._waiting: deque[tuple[int, MetricRow | PackedRow]] = deque()

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows as they come."""
        for row in rows:
            match row:
                case MetricRow():
                    self._wait(row.boottime_ns + row.span_ns, row)
                case PackedRow():
                    self._wait(int(row.boottime_ns[-1]) + row.span_ns, row)
                case ActivityRow():
                    self._activity(row)
                case FindingRow():
                    self._findings.add(row.finding)
                case EventRow():
                    self._events = [*self._events, row][-MOST_EVENTS:]
                case CallsRow() | GovernorRow():
                    self._calls.add(row)
                case GpuTimesRow():
                    self._gpu_time.add(row.times)
                case ReportRow() | ProcessTimeRow():
                    pass  # open windows are shown as they stand; spans are the history's

    def withdraw(self, places: Iterable[tuple[str, str, str]]) -> None:
        """Forget values (source, name, key) that no longer hold, however new they are."""
        self._fold()
        for place in places:
            self._values.pop(place, None)

    def view(self, now_ns: int) -> dict[str, Any]:
        """Give what is fresh, as a JSON document."""
        self._fold()
        oldest_ns = now_ns - FRESH_NS
        values = [
            {"source": source, "name": name, "key": key, "unit": value.unit, "value": value.value}
            for (source, name, key), value in self._values.items()
            if value.at_ns >= oldest_ns
        ]
        events = [
            {"source": e.source, "name": e.name, "key": e.key, "detail": e.detail,
             "age_s": max(0, (now_ns - e.boottime_ns) // 1_000_000_000)}
            for e in self._events
        ]  # fmt: skip
        return {
            "values": values,
            "kernels": self._kernels(now_ns),
            "events": events,
            "calls": self._calls.view(now_ns),
            "gpu_time": self._gpu_time.view(now_ns),
            "diagnosis": self._findings.view(now_ns),
        }

    def _wait(self, end_ns: int, row: MetricRow | PackedRow) -> None:
        self._waiting.append((end_ns, row))
        while self._waiting[0][0] < end_ns - FRESH_NS:
            self._waiting.popleft()
        if len(self._waiting) >= MOST_WAITING:
            self._fold()

    def _fold(self) -> None:
        """Bring the last values up to date."""
        while self._waiting:
            end_ns, row = self._waiting.popleft()
            if isinstance(row, PackedRow):
                self._packed(row)
            else:
                self._put(row.source, row.name, row.key, _Value(end_ns, row.unit, row.value))

    def _put(self, source: str, name: str, key: str, value: _Value) -> None:
        place = (source, name, key)
        self._values[place] = value
        self._values.move_to_end(place)
        if len(self._values) > MOST_VALUES:
            self._values.popitem(last=False)

    def _packed(self, row: PackedRow) -> None:
        """Show a table's growth, and counters by their rate over the record."""
        last_ns = int(row.boottime_ns[-1]) + row.span_ns
        span_ns = row.span_ns or last_ns - int(row.boottime_ns[0])
        if span_ns <= 0:
            return
        grown = row.values[-1] if row.span_ns else row.values[-1] - row.values[0]
        rates = (np.maximum(grown, 0) * (1e9 / span_ns)).tolist()
        for cell, rate in zip(row.cells, rates, strict=True):
            self._put(row.source, cell.name, cell.key, _Value(last_ns, f"{cell.unit}/s", rate))

    def _activity(self, row: ActivityRow) -> None:
        activity = row.activity
        bucket = self._buckets.setdefault(activity.boottime_ns // _BUCKET_NS, {})
        place = (activity.kernel, activity.family, activity.application)
        if place in bucket or len(bucket) < MOST_KERNELS:
            kernel = bucket.setdefault(place, _Kernel())
            scale = EVERYTHING_MILLIONTHS / activity.sampling_rate_millionths
            kernel.gpu_ns += scale * (activity.gpu_time_ns or 0)
            kernel.launches += scale * activity.count
        oldest = max(self._buckets) - 2 * KERNEL_SPAN_NS // _BUCKET_NS
        for at in [at for at in self._buckets if at < oldest]:
            del self._buckets[at]

    def _kernels(self, now_ns: int) -> list[dict[str, Any]]:
        first = (now_ns - KERNEL_SPAN_NS) // _BUCKET_NS
        total: dict[tuple[str, str, str], _Kernel] = {}
        for at, bucket in self._buckets.items():
            if first <= at <= now_ns // _BUCKET_NS:
                for place, part in bucket.items():
                    kernel = total.setdefault(place, _Kernel())
                    kernel.gpu_ns += part.gpu_ns
                    kernel.launches += part.launches
        busiest = sorted(total.items(), key=lambda item: (-item[1].gpu_ns, -item[1].launches))
        span_s = KERNEL_SPAN_NS / 1e9
        return [
            {"kernel": kernel, "family": family, "application": application,
             "gpu_ms_per_s": sums.gpu_ns / 1e6 / span_s, "launches_per_s": sums.launches / span_s}
            for (kernel, family, application), sums in busiest[:SHOWN_KERNELS]
        ]  # fmt: skip
