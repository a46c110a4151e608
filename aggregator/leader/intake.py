"""Reports of the log on their way into windows, which the Leader or a pass of Spark holds."""

from __future__ import annotations

import base64
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.party.config import DeadLetterQuota, Quotas
from aggregator.party.health import HealthMetric
from aggregator.protocol.directory import Directory, KnownTask
from aggregator.protocol.epochs import AdmittedEpoch
from aggregator.protocol.interfaces import BatchKey, RosterSeen, Stopwatch, TaskSeen, no_stopwatch
from transport.interface import Record
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected
from wire.report import EPOCH_AT, HEAD_BYTES, REPORT_ID_AT, TASK_AT, Report
from wire.topics import EPOCHS, REPORTS

from .admission import (
    PARKED_BYTES,
    PARKED_PER_HOST,
    Admission,
    EpochLookup,
    Heading,
    Parked,
    check_host,
    dedupe_record,
)
from .held_windows import ClosedBatch, OpenWindow, Sum

MINUTE_S: Final = 60.0
LONGEST_RECORD_BYTES: Final = 16 << 10
"""Of a refused message that a letter may hold."""


class DeadLetters:
    """Gathers letters until the runtime takes them.

    A minute's letters and bytes are bounded; what finds no room is counted alone. The message
    itself stays on its topic until that forgets it.
    """

    def __init__(self, quota: DeadLetterQuota | None) -> None:
        self._quota = quota
        self._waiting: deque[bytes] = deque()
        self._minute_s = 0.0
        self._letters = self._bytes = 0
        self.written = 0
        self.dropped = 0

    def note(
        self, record: Record, reason: Reason, now_s: float, host_id: bytes | None = None
    ) -> None:
        """Write of a refused message; host_id: who sent it, where that was authenticated."""
        quota = self._quota
        if quota is None:
            return
        if not 0 <= now_s - self._minute_s < MINUTE_S:
            self._minute_s, self._letters, self._bytes = now_s, 0, 0
        if self._letters >= quota.per_minute:
            self.dropped += 1
            return
        letter = _letter(record, reason, now_s, host_id, with_record=quota.records)
        if self._bytes + len(letter) > quota.bytes_per_minute:
            self.dropped += 1
            return
        self._letters += 1
        self._bytes += len(letter)
        self._waiting.append(letter)
        while len(self._waiting) > quota.per_minute:  # the log is away
            self._waiting.popleft()
            self.dropped += 1

    def counts(self) -> dict[str, int]:
        return {"written": self.written, "dropped": self.dropped}

    def take(self) -> list[bytes]:
        taken = list(self._waiting)
        self._waiting.clear()
        self.written += len(taken)
        return taken


def _letter(
    record: Record, reason: Reason, now_s: float, host_id: bytes | None, *, with_record: bool
) -> bytes:
    content: dict[str, object] = {
        "reason": reason.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_s": int(record.appended_s),
        "refused_s": int(now_s),
        "bytes": len(record.value),
    }
    if host_id is not None:
        content["host_id"] = host_id.hex()
    if with_record and len(record.value) <= LONGEST_RECORD_BYTES:
        content["record"] = base64.b64encode(record.value).decode()
    return json.dumps(content, sort_keys=True).encode()


LEADER_GROUP: Final = "leader"
"""Of whoever reads reports: the Leader itself, or Spark."""

PARKED_SHARES: Final = 2
"""Places for reports without an epoch that an operator may fill: so many times its part."""

_Shared = tuple[int, int, bytes]
"""Partition and length of a report, and its bytes from the task to the window: of scheme `masked`
these decide whether it decodes, and all but its host of what is checked before its epoch."""


@dataclass(slots=True)
class _Poll:
    """Reports that were received at one moment, and what is known of the one at hand.

    shared   what they have in common, by what names it
    begun    all of that
    key      the window that the report names, once that is known
    sender   its host, once its box has opened
    """

    received_s: float
    shared: dict[_Shared, Heading] = field(default_factory=dict)
    begun: list[Heading] = field(default_factory=list)
    key: BatchKey | None = None
    sender: bytes | None = None


class ReportWindows(Protocol):
    """The windows that reports enter."""

    def is_settled(self, key: BatchKey) -> bool: ...

    def is_closed(self, key: BatchKey) -> bool:
        """Whether a batch names what a window takes."""

    def find_window(self, key: BatchKey) -> OpenWindow | None: ...

    def begin_window(self, key: BatchKey, known: KnownTask) -> OpenWindow:
        """The window of a key, begun when it is new."""

    def reserve_memory(self, heading: Heading, received_s: float) -> None:
        """Reserve memory for a window whose first authentic report has come.

        Raises      ReportRejected: overload
        """

    def note_admitted(self, heading: Heading) -> None:
        """Take note of reports that are in their window now: of none, too."""


class Intake(Admission):
    """Checks reports in log order and puts what passes into windows."""

    def __init__(
        self,
        directory: Directory,
        book: EpochLookup,
        windows: ReportWindows,
        rejected: Counter[str],
        stopwatch: Stopwatch = no_stopwatch,
        quotas: Quotas | None = None,
    ) -> None:
        super().__init__(directory, book, stopwatch)
        self._quotas = quotas or Quotas()
        self.letters = DeadLetters(self._quotas.dead_letters)
        self._parked_of: Counter[str] = Counter()
        self._windows, self._rejected = windows, rejected
        self.parked: dict[bytes, list[Parked]] = {}
        self.parked_bytes = 0

    def take(self, records: Iterable[Record], received_s: float) -> None:
        """Admit, park or refuse reports that were received at one moment, in log order.

        What the reports of a window have in common is checked with the first that names it.
        """
        poll = _Poll(received_s)
        for record in records:
            poll.key = poll.sender = None
            try:
                self._take(record, poll)
            except ReportRejected as refusal:
                self._count(refusal.reason, poll.key)
                if refusal.reason is not Reason.QUOTA:
                    self.letters.note(record, refusal.reason, received_s, poll.sender)
        for heading in poll.begun:
            self._windows.note_admitted(heading)

    def _take(self, record: Record, poll: _Poll) -> None:
        at = self.core_place(record.value)
        head = record.value[at : at + HEAD_BYTES]
        host_id = head[:EPOCH_AT]
        heading = self._heading_of(record, at, head, poll)
        window = heading.window
        self._lap("decode")
        if window.refused or host_id in window.hosts:
            self._charge(host_id, heading)
        epoch = self.epoch_of(host_id, head[EPOCH_AT:TASK_AT], heading)
        if epoch is None:
            self._park(head, heading, record, poll.received_s)
            return
        self._lap("authenticate")
        box = memoryview(record.value)[at + HEAD_BYTES :]
        vector = self.open(head, box, heading, epoch, record.partition)
        poll.sender = host_id
        if not window.hosts:
            self._windows.reserve_memory(heading, poll.received_s)
        entry = head[:TASK_AT] + head[REPORT_ID_AT:] + vector[:8]
        window.add(host_id, dedupe_record(head, box), entry, record.partition, vector)
        heading.admitted += entry
        heading.offsets.append(record.offset)
        self._lap("dedupe")

    def _heading_of(self, record: Record, at: int, head: bytes, poll: _Poll) -> Heading:
        """What the report shares with others of its window, by all checks of that and of its host.

        at      where the report's bytes begin
        head    those before its box
        """
        name = record.partition, len(record.value), head[TASK_AT:REPORT_ID_AT]
        heading = poll.shared.get(name)
        if heading is not None:
            poll.key = heading.key
            check_host(head[:EPOCH_AT], heading.key.cohort, heading.roster, heading.known)
            return heading
        report = Report.decode(record.value[at:])
        known = self._directory.tasks.get(report.task_id)
        if known is None:
            raise ReportRejected(Reason.TASK_UNKNOWN, "a known task", report.task_id.hex())
        poll.key = BatchKey(known.task_id, report.header.cohort, report.header.window)
        heading = self._begin(report, known, poll.key, record, poll.received_s)
        poll.begun.append(heading)
        if report.scheme is Scheme.MASKED:  # of `local` the tag is checked, too
            poll.shared[name] = heading
        return heading

    def _begin(
        self, report: Report, known: KnownTask, key: BatchKey, record: Record, received_s: float
    ) -> Heading:
        known.require_unexpired(key.window, received_s)
        if report.scheme is not known.task.scheme:
            raise ReportRejected(Reason.SCHEME, known.task.scheme.value, report.scheme.value)
        roster = self.roster_of(report, known)
        self.check_window(report, known, received_s, closed=self._windows.is_closed(key))
        late = received_s > known.window_end(key.window) + known.task.lateness_s
        if self._windows.is_settled(key):
            reason = Reason.WINDOW_LATE if late else Reason.WINDOW_RELEASED
            raise ReportRejected(reason, "an unsettled window", "a settled one")
        window = self._windows.begin_window(key, known)
        window.see((record.topic, record.partition), record.offset)
        return Heading(known, roster, key, window, received_s if late else None)

    def _charge(self, host_id: bytes, heading: Heading) -> None:
        """Refuse what needs no look: of a refused window, or more than an operator's quota.

        It is asked where the window is refused, or has a report of the host already: that counts
        against the quota, and nobody else can use up a host's first.
        """
        window, roster = heading.window, heading.roster
        if window.refused:
            raise ReportRejected(Reason.OVERLOAD, "a window that was begun", "a refused one")
        operator = roster.entries[host_id].operator
        excess = window.excess[operator] = window.excess.get(operator, 0) + 1
        most = self._quotas.excess(operator, roster.operator_hosts(operator))
        if excess > most:
            raise ReportRejected(Reason.QUOTA, f"at most {most} of {operator} sent again", excess)

    def _count(self, reason: Reason, key: BatchKey | None) -> None:
        self._rejected[reason.value] += 1
        window = None if key is None else self._windows.find_window(key)
        if window is not None:
            window.reject(reason.value)

    def _park(self, head: bytes, heading: Heading, record: Record, received_s: float) -> None:
        if heading.window.closed:
            raise ReportRejected(Reason.WINDOW_LATE, "a report in time", "a closed batch")
        waiting = self.parked.setdefault(head[:EPOCH_AT], [])
        size = len(record.value)
        if len(waiting) >= PARKED_PER_HOST or self.parked_bytes + size > PARKED_BYTES:
            raise ReportRejected(
                Reason.EPOCH_PARKED_FULL, f"at most {PARKED_PER_HOST} waiting", len(waiting) + 1
            )
        roster = heading.roster
        operator = roster.entries[head[:EPOCH_AT]].operator
        share = PARKED_SHARES * roster.operator_hosts(operator) / len(roster)
        if self._parked_of[operator] + size > share * PARKED_BYTES:
            most = int(share * PARKED_BYTES)
            raise ReportRejected(Reason.QUOTA, f"at most {most} bytes of {operator} waiting", size)
        waiting.append(Parked(record, received_s, heading.key, head[:TASK_AT], operator))
        self._hold(waiting[-1], 1)

    def _hold(self, parked: Parked, sign: int) -> None:
        size = sign * len(parked.record.value)
        self.parked_bytes += size
        self._parked_of[parked.operator] += size

    def unpark(self, host_id: bytes) -> None:
        for parked in self.parked.pop(host_id, []):
            self._hold(parked, -1)
            self.take((parked.record,), parked.received_s)

    def drop_parked(self, gone: Callable[[Parked], bool]) -> None:
        for host, waiting in list(self.parked.items()):
            kept = [parked for parked in waiting if not gone(parked)]
            for parked in waiting:
                if gone(parked):
                    self._hold(parked, -1)
                    self._count(Reason.EPOCH_UNKNOWN, parked.key)
                    self.letters.note(parked.record, Reason.EPOCH_UNKNOWN, parked.received_s)
            if kept:
                self.parked[host] = kept
            else:
                del self.parked[host]

    def forget_parked(self) -> None:
        self.parked.clear()
        self._parked_of.clear()
        self.parked_bytes = 0


class ReportReader:
    """Puts hosts into the Leader's windows, and adds up the vectors of those that count.

    The Leader's own loop reads; a subclass has another process do it.

    topics      that the Leader's own loop reads
    measures    what it says beside in the Leader's status
    """

    topics: Sequence[str] = (EPOCHS, REPORTS)
    measures: Sequence[HealthMetric] = ()

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def take(self, records: Sequence[Record], now_s: float) -> None:
        self._intake.take(records, now_s)

    def turn(self, now_s: float) -> None:
        """Take what another process has said since, and tell it what is new."""

    def learn(self, signed: TaskSeen | RosterSeen) -> None:  # noqa: ARG002
        self._intake.tasks_changed()

    def epoch(self, admitted: AdmittedEpoch) -> None:
        self._intake.unpark(admitted.known.host_id)

    def restored(self) -> None:
        """Take over what came back from the durable state."""

    def closed(self, key: BatchKey) -> None:
        """Take that a window's set of reports is final."""
        self._intake.drop_parked(lambda parked: parked.key == key)

    def ended(self, key: BatchKey, until_s: int) -> None:
        """Take that a window has ended, durably; reports of it may come until then."""

    def sum_of(self, closed: ClosedBatch, accepted: NDArray[np.bool_]) -> Sum | None:
        """Give the sum of the accepted hosts' vectors; None: asked for, and there later."""
        return closed.window.sum_of(closed.batch.entries["host_id"][accepted].tolist())

    def lag(self, own: int | None, now_s: float) -> int | None:  # noqa: ARG002
        """Records left to read, with those of the loop's own topics; None: the log is away."""
        return own

    def status(self, now_s: float) -> Mapping[str, object]:  # noqa: ARG002
        return {}

    def close(self) -> None:
        """Let go of another process."""
