"""The Leader as a state machine: admits reports and epochs, and closes batches.

A window goes open -> closed -> released or suppressed, never back. Offsets are committed up to the
first report of the oldest window that is not settled: a restart reads again what it still needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import assert_never

from aggregator.party.config import Quotas
from aggregator.protocol import interfaces
from aggregator.protocol.directory import Directory, KnownTask
from aggregator.protocol.epochs import AdmittedEpoch, AdmittedEpochs, Mark, Seal
from aggregator.protocol.interfaces import (
    HOST_ID_BYTES,
    BatchKey,
    Stopwatch,
)
from aggregator.statistics.range_checks import SumRules
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.interface import Record, TopicPartition
from wire.batch import ENTRY, Batch
from wire.envelope import OVERHEAD_BYTES, Kind, unwrap
from wire.epoch import EPOCH_BYTES
from wire.fields import TaskId
from wire.rejection import Reason, ReportRejected

from . import leader_events as events
from .admission import Heading
from .chains import Chains
from .held_windows import ClosedBatch, OpenWindow
from .intake import Intake, ReportReader
from .leader_events import LeaderEffect
from .left_out import LeftOut
from .window_closing import CloseRule, LogWatch, Schedule, begin_until_s

_MAX_EPOCH = max(EPOCH_BYTES.values()) + OVERHEAD_BYTES

_PRUNE_EVERY_S = 60.0
_CLOSED_AT_ONCE = 200
"""Windows of a chain that close in one step: after an outage of days there are many."""


class Leader:
    def __init__(
        self,
        directory: Directory,
        signing_key: SigningKey,
        hpke_keys: Callable[[bytes], HpkeKeyPair | None],
        *,
        ledger_counters: dict[bytes, Mark] | None = None,
        resumed: bool = False,
        raw_epoch: Callable[[bytes], bytes | None] | None = None,
        sum_rules: SumRules | None = None,
        quotas: Quotas | None = None,
        leave_out: float = 0.0,
        reader: Callable[[Leader], ReportReader] | None = None,
        stopwatch: Stopwatch = interfaces.no_stopwatch,
    ) -> None:
        """Start empty; `resume_*` bring back what the durable state holds, before any event.

        reader      makes what reads the reports; None: the Leader's own loop does
        resumed     a Leader has run before on the durable state
        raw_epoch   host_id || epoch_id -> an epoch from the durable state
        sum_rules   what is never released; None: by the tasks alone
        leave_out   share of a window's hosts that chance leaves out
        """
        self.directory, self._signing_key, self._lap = directory, signing_key, stopwatch
        self.watch = LogWatch(resumed=resumed)
        self.schedule = Schedule(directory)
        self._rule = CloseRule(directory, self.watch)
        self.book = AdmittedEpochs(directory, Seal.LEADER, hpke_keys, ledger_counters, raw_epoch)
        self.open_windows: dict[BatchKey, OpenWindow] = {}
        self._next_offset: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._pruned_s = 0.0
        self.rejected: Counter[str] = Counter()
        quotas = quotas or Quotas()
        self._memory_quota_bytes = quotas.window_bytes
        self.intake = Intake(directory, self.book, self, self.rejected, stopwatch, quotas)
        self.admitted = 0
        self.reader = ReportReader(self.intake) if reader is None else reader(self)
        rules, sum_of = sum_rules or SumRules(), self.reader.sum_of
        self.left_out = LeftOut(leave_out)
        self.chains = Chains(
            directory, signing_key, rules, self.left_out, self.rejected, sum_of, stopwatch
        )

    @property
    def released(self) -> int:
        return self.chains.released

    @property
    def suppressed(self) -> Counter[str]:
        return self.chains.suppressed

    @property
    def unsettled(self) -> int:
        return len(self.open_windows) + len(self.chains.closed)

    def handle(self, event: events.LeaderEvent) -> list[LeaderEffect]:
        """Take one event and say what to do, in order.

        Raises      ReportRejected for a task or roster that is refused
        """
        match event:
            case events.ReportsArrived():
                self._lap("other")
                self._note_records(event.records, event.now_s)
                self.reader.take(event.records, event.now_s)
                return []
            case events.Tick():
                return self._on_tick(event)
            case events.EpochsArrived():
                return self._on_epochs(event)
            case events.LogChanged():
                self._forget_offsets(event.topic)
                return []
            case interfaces.TaskSeen():
                known = self.directory.add_task(
                    event.signed_bytes, event.now_s, at_start=event.at_start
                )
                self.reader.learn(event)
                return [events.StoreTask(known.task_id, known.accepted_s)]
            case interfaces.RosterSeen():
                self.directory.add_roster(event.signed_bytes)
                self.reader.learn(event)
                return []
            case events.HelperAnswer():
                return self.chains.on_helper(event)
            case _:
                assert_never(event)

    def note_appended(self, appended_s: Sequence[float], now_s: float) -> None:
        """Take when records were appended, by the log's clock, in the order in which they came."""
        self.watch.note_appended(appended_s, now_s, self._rule.shortest_s(now_s))

    def _note_records(self, records: Sequence[Record], now_s: float) -> None:
        self.note_appended([record.appended_s for record in records], now_s)
        for record in records:
            self._next_offset[record.topic, record.partition] = record.offset + 1

    # The windows that reports enter: `intake.ReportWindows`

    def is_settled(self, key: BatchKey) -> bool:
        return key in self.chains.settled

    def is_closed(self, key: BatchKey) -> bool:
        return key in self.chains.closed

    def find_window(self, key: BatchKey) -> OpenWindow | None:
        closed = self.chains.closed.get(key)
        return self.open_windows.get(key) if closed is None else closed.window

    def begin_window(self, key: BatchKey, known: KnownTask) -> OpenWindow:
        window = self.find_window(key)
        if window is None:
            window = OpenWindow(known.d, known.task.scheme)
            self.open_windows[key] = window
        return window

    def reserve_memory(self, heading: Heading, received_s: float) -> None:
        """Refuse a window whole that cannot be finished, in memory or in time.

        Half of every window would be worth nothing: one below n_min is not released. So under more
        load than fits, windows that have begun go on, and the next is refused, which costs a
        fraction of taking it: so a Leader catches up. One window alone may have more memory.
        """
        window, known = heading.window, heading.known
        hosts = heading.roster.hosts(known.task.series)[heading.key.cohort]
        wanted = hosts * window.row_bytes
        if window.expected is None:
            if received_s > begin_until_s(known, heading.key.window, hosts):
                window.refused = True
                raise ReportRejected(
                    Reason.OVERLOAD, "a window with time to be read", "one that comes too late"
                )
            taken = sum(other.held_bytes for other in self._unsettled_windows())
            if taken and taken + wanted > self._memory_quota_bytes:
                window.refused = True
                room = max(0, self._memory_quota_bytes - taken)
                raise ReportRejected(Reason.OVERLOAD, f"a window of at most {room} bytes", wanted)
        window.reserved_bytes = wanted

    def _unsettled_windows(self) -> list[OpenWindow]:
        return [
            *self.open_windows.values(),
            *(closed.window for closed in self.chains.closed.values()),
        ]

    def note_admitted(self, heading: Heading) -> None:
        """Count reports; those that come late may be the sign of an outage."""
        if heading.late_s is None:
            self.admitted += len(heading.admitted) // ENTRY.itemsize
            return
        for at in range(0, len(heading.admitted), ENTRY.itemsize):
            host_id = bytes(heading.admitted[at : at + HOST_ID_BYTES])
            self.count_admitted(host_id, len(heading.roster), heading.late_s)

    def count_admitted(self, host_id: bytes, fleet: int, late_s: float | None) -> None:
        """Count a report of a host; `fleet` and `late_s` as `LogWatch.came_late` takes them."""
        self.admitted += 1
        if late_s is not None:
            self.watch.came_late(host_id, fleet, late_s, self._rule.shortest_s(late_s))

    # Epochs

    def _on_epochs(self, event: events.EpochsArrived) -> list[LeaderEffect]:
        kept: list[AdmittedEpoch] = []
        self._note_records(event.records, event.now_s)
        # A host's epochs lie in several partitions; by the log's clock they come in their order.
        for record in sorted(event.records, key=lambda record: record.appended_s):
            try:
                kind, core = unwrap(record.value, _MAX_EPOCH)
                if kind is not Kind.EPOCH:
                    raise ReportRejected(Reason.ENVELOPE, "an epoch", kind.name)
                admitted = self.book.admit(core, event.now_s)
            except ReportRejected as refusal:
                self.rejected[refusal.reason.value] += 1
                self.intake.letters.note(record, refusal.reason, event.now_s)
                continue
            if admitted is not None:
                if admitted.twin:
                    self.rejected[Reason.EPOCH_TWIN.value] += 1
                kept.append(admitted)
                self.reader.epoch(admitted)
        return [events.KeepEpochs(kept)] if kept else []

    # Time

    def _on_tick(self, event: events.Tick) -> list[LeaderEffect]:
        now_s = event.now_s
        self.watch.tick(now_s, event.lag)
        effects: list[LeaderEffect] = []
        for keys in self.schedule.over(self.open_windows, now_s):
            effects += self._close_in_order(keys, now_s)
        effects += self.chains.advance_all(now_s)
        self._forget(now_s)
        return effects + self._offsets()

    def _close_in_order(self, keys: Iterable[BatchKey], now_s: float) -> list[LeaderEffect]:
        """Close the windows of a chain up to the first that still waits for reports.

        One that no task names, and that lacks hosts, holds none up: whoever may write can begin it.
        It ends with the next that closes, but with none that was refused for want of room: that one
        says nothing of whether the log has more of those before it.
        """
        effects: list[LeaderEffect] = []
        passed: list[BatchKey] = []
        for key in islice(keys, _CLOSED_AT_ONCE):
            known, window = self.directory.tasks[key.task_id], self.open_windows.get(key)
            before = self.chains.chain((known.task.series, key.cohort)).last_hosts
            closes = self._rule.closes(known, key, window, before, now_s)
            if closes and not (passed and window is not None and window.refused_whole):
                for closed in (*passed, key):
                    effects += self._close(closed, self.open_windows.get(closed), now_s)
                    self.schedule.ended(closed)
                passed.clear()
            elif closes:
                passed.append(key)
            elif key.window in self.schedule.named(known) or (
                window is not None and window.n >= known.task.n_min
            ):
                break
            else:
                passed.append(key)
        return effects

    def _close(self, key: BatchKey, window: OpenWindow | None, now_s: float) -> list[LeaderEffect]:
        """Make the set of reports final; from here on the window takes nothing more."""
        if window is None:
            return self.chains.suppress(key, 0, Reason.N_MIN, now_s)
        known = self.directory.tasks[key.task_id]
        self.reader.closed(key)
        del self.open_windows[key]
        roster = self.directory.roster_at(key.window)
        try:
            if window.n < known.task.n_min or roster is None:
                raise ReportRejected(Reason.N_MIN, f"{known.task.n_min} rostered hosts", window.n)
            roster.check_fits(known.task, key.cohort)
        except ReportRejected as refusal:
            overloaded = refusal.reason is Reason.N_MIN and window.lost_to_overload
            reason = Reason.OVERLOAD if overloaded else refusal.reason
            return self.chains.suppress(key, window.n, reason, now_s)
        reported = frozenset(window.hosts)
        window.leave_out(self.left_out.draw(known.task, reported))
        entries = window.batch_entries()
        batch = Batch(TaskId(key.task_id), key.cohort, key.window, roster.version, entries)
        message = batch.unsigned()
        signed = message + self._signing_key.sign(message)
        self._lap("freeze")
        window.expected = {}
        closed = ClosedBatch(key, known, roster, batch, signed, window, now_s)
        self.chains.queue(closed)
        self.chains.chain(closed.chain).last_hosts = (key.window, reported)
        return [events.StoreFrozen(key, known.task.series, signed, now_s, dict(window.rejections))]

    def _forget(self, now_s: float) -> None:
        if 0 <= now_s - self._pruned_s < _PRUNE_EVERY_S:
            return
        self._pruned_s = now_s
        self.book.prune(now_s, self.directory.longest_retention_s())
        self.intake.drop_parked(lambda parked: self._is_past(parked.key, now_s))
        used = {key.task_id for key in (*self.open_windows, *self.chains.closed)}
        if self.directory.drop_past_tasks(now_s, used):
            self.intake.tasks_changed()
            self.schedule.forget()

    def _is_past(self, key: BatchKey, now_s: float) -> bool:
        known = self.directory.tasks.get(key.task_id)
        if known is None or key in self.chains.settled:
            return True
        return known.over_s(key.window) <= now_s

    def _forget_offsets(self, topic: str) -> None:
        """What windows have of a log that is gone they keep; a crash would lose it."""
        windows = (window.first_seen for window in self._unsettled_windows())
        for known in (self._next_offset, self._committed, *windows):
            for place in [place for place in known if place[0] == topic]:
                del known[place]

    def _offsets(self) -> list[LeaderEffect]:
        """Commit as far as no unsettled window needs the log again."""
        offsets = dict(self._next_offset)
        for window in self._unsettled_windows():
            for place, first in window.first_seen.items():
                offsets[place] = min(offsets.get(place, first), first)
        moved = {tp: at for tp, at in offsets.items() if at > self._committed.get(tp, -1)}
        self._committed.update(moved)
        return [events.CommitOffsets(moved)] if moved else []
