"""The last seconds of a host, for `agent top`: bounded, in memory, as records came. Asked for,
those of GPU work become a history in memory, and are added up as those of a day are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from collectors.boot_clock import ClockPoint
from collectors.records.activity import KernelActivity
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import GovernorState, GpuCalls
from collectors.records.gpu_time import GpuTimes, TimedProcess
from diagnosis.detect.findings import Diagnosis, Finding, SpikeBegan, SpikeEnded

from . import local_rows, words
from .history import in_memory
from .spans import added_up, merge
from .sums import growth_rates
from .view import MOST_EVENTS, view_of
from .view_lines import HostView, LevelLine

MOST_SUBJECTS: Final = 64
OVER_NS: Final = 120_000_000_000
"""So long a spike that is over is shown."""
SHOWN_EVIDENCE: Final = 3
MOST_VALUES: Final = 2_000
MOST_ACTIVITY: Final = 2_000
MOST_LINES: Final = 64
FRESH_NS: Final = 10_000_000_000
"""A value older than this is not shown: what is old must not look new."""
SPAN_NS: Final = 10_000_000_000
MOST_WAITING: Final = 5_000
_STALE_SPANS: Final = 2
"""A record of a long governor period is shown until the one after it should have come."""
_MOST_RECORDS: Final = 64
_NS_PER_S: Final = 1_000_000_000


def _shown(finding: Finding, now_ns: int) -> dict[str, Any]:
    view: dict[str, Any] = {
        "subject": local_rows.clean_name(finding.subject),
        "state": "over" if isinstance(finding, SpikeEnded) else "spike",
        "age_s": max(0, now_ns - finding.onset_ns) // 1_000_000_000,
        "cause": "",
        "said": local_rows.clean_name(words.said(finding)),
        "evidence": [],
    }
    standing = finding.last if isinstance(finding, SpikeEnded) else finding
    if isinstance(standing, Diagnosis):
        view |= {
            "cause": standing.cause.value,
            "about": words.CAUSES[standing.cause],
            "who": local_rows.clean_name(words.interferer(standing)),
            "advice": words.ADVICE[standing.cause],
            "confidence": standing.confidence,
            "incident": standing.incident,
            "steps": words.steps_said(standing.before, standing.now),
            "source": standing.source.value,
            "model": standing.model,
            "evidence": [
                local_rows.clean_name(words.evidence_said(e, (words.interferer(standing),)))
                for e in words.most_telling(standing.evidence, SHOWN_EVIDENCE)
            ],
        }
    return view


@dataclass(slots=True)
class _Value:
    at_ns: int
    unit: str
    value: float


class _Windows:
    """The last records of one process in which a window ended, ten seconds of them."""

    def __init__(self) -> None:
        self.records: deque[tuple[int, TimedProcess]] = deque(maxlen=_MOST_RECORDS)

    def add(self, end_ns: int, process: TimedProcess) -> None:
        self.records.append((end_ns - process.span_ns, process))
        span_ns = sum(record.span_ns for _, record in self.records)
        while span_ns - self.records[0][1].span_ns >= SPAN_NS:
            span_ns -= self.records.popleft()[1].span_ns


class Recent:
    """Keeps each metric's last value, ten seconds of GPU work and the last events."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, str, str], _Value] = OrderedDict()
        self._waiting: deque[tuple[int, local_rows.MetricRow | local_rows.PackedRow]] = deque()
        self._events: deque[local_rows.EventRow] = deque(maxlen=MOST_EVENTS)
        self._findings: OrderedDict[str, Finding] = OrderedDict()
        self._activity: deque[local_rows.RecordRow] = deque(maxlen=MOST_ACTIVITY)
        self._calls: deque[tuple[str, GpuCalls]] = deque(maxlen=_MOST_RECORDS)
        self._governor: GovernorState | None = None
        self._times: tuple[str, GpuTimes] | None = None
        self._windows: dict[ProcessKey, _Windows] = {}

    def add(self, rows: Iterable[local_rows.Row]) -> None:
        for row in rows:
            match row:
                case local_rows.MetricRow():
                    self._wait(row.boottime_ns + row.span_ns, row)
                case local_rows.PackedRow():
                    self._wait(int(row.boottime_ns[-1]) + row.span_ns, row)
                case local_rows.RecordRow(_, KernelActivity()):
                    self._activity.append(row)
                case local_rows.RecordRow(source, GpuCalls() as calls):
                    self._take_calls(source, calls)
                case local_rows.RecordRow(_, GovernorState() as state):
                    self._governor = state
                case local_rows.RecordRow(source, GpuTimes() as times):
                    self._take_times(source, times)
                case local_rows.RecordRow(_, SpikeBegan() | Diagnosis() | SpikeEnded() as finding):
                    self._findings[finding.subject] = finding
                    self._findings.move_to_end(finding.subject)
                    if len(self._findings) > MOST_SUBJECTS:
                        self._findings.popitem(last=False)
                case local_rows.EventRow():
                    self._events.append(row)
                case local_rows.RecordRow() | local_rows.ReportRow() | local_rows.ProcessTimeRow():
                    pass  # open windows are shown as they stand; spans are the history's

    def withdraw(self, places: Iterable[tuple[str, str, str]]) -> None:
        """Forget values (source, name, key) that no longer hold, however new they are."""
        self._fold()
        for place in places:
            self._values.pop(place, None)

    def view(self, now: ClockPoint) -> HostView:
        now_ns, times = now.boottime_ns, self._times
        if times is not None and now_ns - _end_ns(times[1]) > SPAN_NS:
            times = None
        kept = in_memory()
        kept.note_clock(now)
        kept.write(self._work(times, now_ns))
        seen = view_of(
            kept.db, most=MOST_LINES, now=times[1] if times else None,
            longest_s=SPAN_NS / _NS_PER_S,
        )  # fmt: skip
        return replace(
            seen,
            unix_ns=now.unix_ns,
            live=True,
            levels=tuple(self._levels(now_ns)),
            governor=self._governor_line(now_ns),
            findings=tuple(
                _shown(finding, now_ns)
                for finding in reversed(self._findings.values())
                if not isinstance(finding, SpikeEnded) or now_ns - finding.ended_ns <= OVER_NS
            ),
            events=tuple(
                {"source": event.source, "name": event.name, "key": event.key,
                 "detail": event.detail, "age_s": _age_s(event.boottime_ns, now_ns)}
                for event in self._events
            ),
        )  # fmt: skip

    def _work(self, times: tuple[str, GpuTimes] | None, now_ns: int) -> Iterable[local_rows.Row]:
        """Give the rows of GPU work: of calls one record, of GPU time one of each process."""
        fresh = [
            calls for _, calls in self._calls
            if now_ns <= _end_ns(calls) + max(SPAN_NS, _STALE_SPANS * calls.span_ns)
        ]  # fmt: skip
        if fresh:
            yield local_rows.RecordRow(self._calls[-1][0], merge(fresh))
        for windows in self._windows.values() if times else ():
            if windows.records:
                whole = added_up([process for _, process in windows.records])
                yield local_rows.ProcessTimeRow(
                    times[0] if times else "", windows.records[0][0], whole
                )
        oldest_ns = now_ns - SPAN_NS
        for row in self._activity:
            if isinstance(row.record, KernelActivity) and row.record.boottime_ns >= oldest_ns:
                yield row

    def _take_calls(self, source: str, calls: GpuCalls) -> None:
        """Keep records that end in the last ten seconds, or the last one while it is fresh."""
        self._calls.append((source, calls))
        oldest_ns = _end_ns(calls) - SPAN_NS
        while len(self._calls) > 1 and _end_ns(self._calls[0][1]) <= oldest_ns:
            self._calls.popleft()

    def _take_times(self, source: str, times: GpuTimes) -> None:
        """Keep ten seconds of each process; those that are not named have ended."""
        self._times, before, self._windows = (source, times), self._windows, {}
        for process in times.processes[:MOST_LINES]:
            kept = self._windows[process.process] = before.get(process.process) or _Windows()
            if process.span_ns:
                kept.add(_end_ns(times), process)

    def _levels(self, now_ns: int) -> Iterable[LevelLine]:
        self._fold()
        for (source, name, key), last in self._values.items():
            if last.at_ns >= now_ns - FRESH_NS:
                age_s = max(0, now_ns - last.at_ns) / _NS_PER_S
                value = last.value
                yield LevelLine(source, name, key, last.unit, 1, value, value, value, value, age_s)

    def _wait(self, end_ns: int, row: local_rows.MetricRow | local_rows.PackedRow) -> None:
        self._waiting.append((end_ns, row))
        while self._waiting[0][0] < end_ns - FRESH_NS:
            self._waiting.popleft()
        if len(self._waiting) >= MOST_WAITING:
            self._fold()

    def _fold(self) -> None:
        """Bring the last values up to date; of counters and of growth the rate over the record."""
        while self._waiting:
            end_ns, row = self._waiting.popleft()
            if isinstance(row, local_rows.MetricRow):
                self._put((row.source, row.name, row.key), _Value(end_ns, row.unit, row.value))
                continue
            span_ns = row.span_ns or end_ns - int(row.boottime_ns[0])
            if span_ns <= 0:
                continue
            rates = growth_rates(row.values, span_ns, counted=not row.span_ns)
            for cell, rate in zip(row.cells, rates, strict=True):
                value = _Value(end_ns, f"{cell.unit}/s", rate)
                self._put((row.source, cell.name, cell.key), value)

    def _put(self, place: tuple[str, str, str], value: _Value) -> None:
        self._values[place] = value
        self._values.move_to_end(place)
        if len(self._values) > MOST_VALUES:
            self._values.popitem(last=False)

    def _governor_line(self, now_ns: int) -> dict[str, Any] | None:
        state = self._governor
        if state is None or now_ns > state.boottime_ns + _STALE_SPANS * state.span_ns:
            return None
        return {
            "loader": state.loader,
            "period_s": state.span_ns / _NS_PER_S,
            "budget": state.budget,
            "duty": state.duty,
            "steady": [group.value for group in state.steady],
            "in_turns": [group.value for group in state.in_turns],
            "dropped": {
                group.value: local_rows.clean_name(why) for group, why in state.dropped.items()
            },
            "predicted": state.predicted,
            "measured": state.measured,
            "worst_pid": state.worst.pid if state.worst else None,
            "files": state.files,
            "lost": {local_rows.clean_name(what): count for what, count in state.lost.items()},
            "unnamed": {
                why.value: count / max(state.launches, 1) for why, count in state.unnamed.items()
            },
        }


def _end_ns(record: GpuCalls | GpuTimes) -> int:
    return record.boottime_ns + record.span_ns


def _age_s(at_ns: int, now_ns: int) -> int:
    return max(0, now_ns - at_ns) // _NS_PER_S
