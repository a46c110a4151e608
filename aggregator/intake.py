"""Reports of the log on their way into windows: checked one after the other, or parked.

Who holds the windows, one Leader or a worker of some partitions, is behind `ReportWindows`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from transport.port import Record
from wire.rejection import Reason, ReportRejected
from wire.report import Report

from .admission import PARKED_BYTES, PARKED_PER_HOST, Admissible, Admission, EpochLookup, Parked
from .directory import Directory, KnownTask
from .events import Stopwatch, no_stopwatch
from .helper_state import BatchKey
from .window_sums import OpenWindow


class ReportWindows(Protocol):
    """The windows that reports enter."""

    def is_settled(self, key: BatchKey) -> bool:
        """Whether a window is over for good."""
        ...

    def find_window(self, key: BatchKey, partition: int) -> OpenWindow | None:
        """The window that reports of a partition enter, if anything is known of it."""
        ...

    def begin_window(self, key: BatchKey, partition: int, known: KnownTask) -> OpenWindow:
        """The same, begun when it is new."""
        ...

    def note_admitted(self, passed: Admissible, record: Record, late_s: float | None) -> None:
        """Take note of a report that is in its window now.

        late_s      when it was received, if that was after its window's lateness; else None
        """
        ...


class Intake:
    """Checks reports in log order and puts what passes into windows."""

    def __init__(
        self,
        directory: Directory,
        book: EpochLookup,
        windows: ReportWindows,
        rejected: Counter[str],
        stopwatch: Stopwatch = no_stopwatch,
    ) -> None:
        """Start with nothing parked; `rejected` is counted up, by reason."""
        self._admission = Admission(directory, book, stopwatch)
        self._windows, self._rejected, self._lap = windows, rejected, stopwatch
        self.parked: dict[bytes, list[Parked]] = {}
        self.parked_bytes = 0

    def tasks_changed(self) -> None:
        """Take a new task or roster of the directory into account."""
        self._admission.tasks_changed()

    def take(self, record: Record, received_s: float) -> None:
        """Admit, park or refuse one report."""
        key: BatchKey | None = None
        try:
            report = self._admission.decode(record.value)
            self._lap("decode")
            known = self._admission.task_of(report)
            key = BatchKey(known.task_id, report.header.cohort, report.header.window)
            self._admission.check_task(report, known, received_s)
            roster = self._admission.roster_of(report, known)
            self._admission.check_window(report, known, received_s)
            late = received_s > known.window_end(key.window) + known.task.lateness_s
            if self._windows.is_settled(key):
                reason = Reason.WINDOW_LATE if late else Reason.WINDOW_RELEASED
                raise ReportRejected(reason, "an unsettled window", "a settled one")
            window = self._windows.begin_window(key, record.partition, known)
            window.see((record.topic, record.partition), record.offset)
            epoch = self._admission.epoch_of(report, known)
            if epoch is None:
                if window.closed:
                    raise ReportRejected(Reason.WINDOW_LATE, "a report in time", "a frozen batch")
                self._park(report, record, received_s, key)
                return
            passed = Admissible(report, known, roster, epoch, key)
            self._lap("authenticate")
            self._admission.insert(passed, window, record.partition)
            self._windows.note_admitted(passed, record, received_s if late else None)
        except ReportRejected as refusal:
            self._count(refusal.reason, key, record.partition)

    def _count(self, reason: Reason, key: BatchKey | None, partition: int) -> None:
        self._rejected[reason.value] += 1
        window = None if key is None else self._windows.find_window(key, partition)
        if window is not None:
            window.reject(reason.value)

    def _park(self, report: Report, record: Record, received_s: float, key: BatchKey) -> None:
        """Keep a report until its epoch comes; a host that fills its places loses the rest."""
        waiting = self.parked.setdefault(report.host_id, [])
        size = len(record.value)
        if len(waiting) >= PARKED_PER_HOST or self.parked_bytes + size > PARKED_BYTES:
            raise ReportRejected(
                Reason.EPOCH_PARKED_FULL, f"at most {PARKED_PER_HOST} waiting", len(waiting) + 1
            )
        waiting.append(Parked(record, received_s, key, report.epoch_id))
        self.parked_bytes += size

    def unpark(self, host_id: bytes) -> None:
        """Take the reports of a host again, of whose epochs one has come."""
        for parked in self.parked.pop(host_id, []):
            self.parked_bytes -= len(parked.record.value)
            self.take(parked.record, parked.received_s)

    def drop_parked(self, gone: Callable[[Parked], bool]) -> None:
        """Refuse the reports whose epoch came too late."""
        for host, waiting in list(self.parked.items()):
            kept = [parked for parked in waiting if not gone(parked)]
            for parked in waiting:
                if gone(parked):
                    self.parked_bytes -= len(parked.record.value)
                    self._count(Reason.EPOCH_UNKNOWN, parked.key, parked.record.partition)
            if kept:
                self.parked[host] = kept
            else:
                del self.parked[host]

    def forget_parked(self) -> None:
        """Let go of what is parked: the log brings it again."""
        self.parked.clear()
        self.parked_bytes = 0
