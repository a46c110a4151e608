"""The order in which the Leader checks a report; each refusal is one reason.

length, version, task, rostered host and cohort, window and d, retention, epoch (else parked),
dedupe look-up, box, dedupe insert.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from aggregator.protocol.directory import Directory, KnownTask, VerifiedRoster
from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import BatchKey, Stopwatch
from privacy.masks import BoxError, open_box_into
from transport.interface import Record
from wire.envelope import OVERHEAD_BYTES, Kind, core_place
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected
from wire.report import EPOCH_AT, GCM_TAG_BYTES, M_AT, REPORT_ID_AT, TAG_AT, Report, report_length

from .held_windows import OpenWindow

CLOCK_SKEW_S: Final = 60
"""A window may end this long after the Leader's clock: hosts' clocks are not the Leader's."""

PARKED_PER_HOST: Final = 8
PARKED_BYTES: Final = 256 << 20
"""Reports that wait for their epoch: 65,000 of d = 1,000, less than one window of 100,000 hosts."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A report whose epoch has not come, with the receipt time that counts.

    name        host_id || epoch_id
    operator    whose quota it fills; empty where that is no longer asked
    """

    record: Record
    received_s: float
    key: BatchKey
    name: bytes
    operator: str = ""


@dataclass(slots=True)
class Heading:
    """What reports of one window have in common, and passed every check of it at one moment.

    window      the window they enter
    late_s      when they were received, if that was after the window's lateness; else None
    admitted    72 B of a batch entry for each that was admitted since
    offsets     where these lie in their partition
    """

    known: KnownTask
    roster: VerifiedRoster
    key: BatchKey
    window: OpenWindow
    late_s: float | None
    admitted: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)


class EpochLookup(Protocol):
    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        """The epoch of this id, dead ones included; None when it has not come."""


class Admission:
    """The checks of one report; they know nothing of windows beyond their times."""

    def __init__(self, directory: Directory, book: EpochLookup, stopwatch: Stopwatch) -> None:
        self._directory, self._book, self._lap = directory, book, stopwatch
        self._max_len = 0
        self._rosters: dict[int, VerifiedRoster | None] = {}
        self.tasks_changed()

    def tasks_changed(self) -> None:
        """Take a new task or roster of the directory into account."""
        lengths = [
            report_length(known.d, known.task.scheme) for known in self._directory.tasks.values()
        ]
        self._max_len = max(lengths, default=0) + OVERHEAD_BYTES
        self._rosters.clear()

    def core_place(self, value: bytes) -> int:
        kind, at = core_place(value, self._max_len)
        if kind is not Kind.REPORT:
            raise ReportRejected(Reason.ENVELOPE, "a report", kind.name)
        return at

    def roster_of(self, report: Report, known: KnownTask) -> VerifiedRoster:
        window = report.header.window
        if window not in self._rosters:
            if len(self._rosters) > 10_000:  # windows are chosen by hosts: keep the cache small
                self._rosters.clear()
            self._rosters[window] = self._directory.roster_at(window)
        return check_host(report.host_id, report.header.cohort, self._rosters[window], known)

    def check_window(
        self, report: Report, known: KnownTask, received_s: float, *, closed: bool
    ) -> None:
        """A window of the task, the task's d, over by the Leader's own receipt clock and retained.

        Whether it is in time is known by whether its window is still open. A closed one was over
        when it closed: a clock that was set back since keeps none of its reports out.
        """
        task, header = known.task, report.header
        known.require_window(header.window)
        if header.d != known.d:
            raise ReportRejected(Reason.DIMENSION, f"d = {known.d}", header.d)
        end = known.window_end(header.window)
        if end > received_s + CLOCK_SKEW_S and not closed:
            raise ReportRejected(Reason.WINDOW_OPEN, f"a window over by {int(received_s)}", end)
        if received_s > end + task.retention_s:
            raise ReportRejected(Reason.WINDOW_LATE, f"receipt after {end} in time", received_s)

    def epoch_of(self, host_id: bytes, epoch_id: bytes, heading: Heading) -> KnownEpoch | None:
        epoch = self._book.find(host_id, epoch_id)
        if epoch is None or (epoch.key is None and not epoch.dead):
            return None
        if epoch.dead:
            raise ReportRejected(Reason.EPOCH_TWIN, "an epoch without a twin", "a dead one")
        known = heading.known
        if not epoch.covers(known.window_end(heading.key.window), known.task.lateness_s):
            raise ReportRejected(Reason.EPOCH_INTERVAL, "an epoch of the window", "another")
        return epoch

    def open(
        self, head: bytes, box: memoryview, heading: Heading, epoch: KnownEpoch, partition: int
    ) -> memoryview:
        """Dedupe look-up, then the box: whoever could seal it is the host.

        head        the report's bytes before its box
        Returns     the masked vector, where its window takes it from
        Raises      ReportRejected: duplicate, second_report, box, check_words
        """
        known, window = heading.known, heading.window
        host_id, report_id = head[:EPOCH_AT], head[REPORT_ID_AT:TAG_AT]
        before = window.hosts.get(host_id)
        if before is not None:
            same = before == dedupe_record(head, box)
            raise ReportRejected(
                Reason.DUPLICATE if same else Reason.SECOND_REPORT, "one report", "another"
            )
        if window.expected is not None and window.expected.get(host_id) != report_id:
            raise ReportRejected(Reason.WINDOW_LATE, "a report of the closed batch", "another")
        self._lap("dedupe")
        vector = window.row_for(partition)
        try:
            open_box_into(epoch.box_key(known.task_id), report_id, head[M_AT:], box, vector)
        except BoxError as error:
            raise ReportRejected(Reason.BOX, "a box of this epoch and header", "another") from error
        if known.task.scheme is Scheme.LOCAL and vector[:16] != _ONES:
            raise ReportRejected(Reason.CHECK_WORDS, "check words of 1", "others")
        self._lap("authenticate")
        return vector


def check_host(
    host_id: bytes, cohort: int, roster: VerifiedRoster | None, known: KnownTask
) -> VerifiedRoster:
    """The roster, if it has the host in the cohort that its report names.

    Raises      ReportRejected: host_unknown, cohort
    """
    of_host = None if roster is None else roster.cohort(host_id, known.task.series)
    if roster is not None and of_host == cohort:
        return roster
    if roster is None or host_id not in roster.entries:
        raise ReportRejected(Reason.HOST_UNKNOWN, "a rostered host", host_id.hex())
    raise ReportRejected(Reason.COHORT, f"cohort {of_host}", cohort)


def dedupe_record(head: bytes, box: memoryview) -> bytes:
    return head + box[-GCM_TAG_BYTES:]


_ONES: Final = b"\1\0\0\0\0\0\0\0" * 2
