"""Carries a participant's effects out, in their order: ledger first, then the outbox."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from structlog.typing import FilteringBoundLogger

from edge_agent.clock import Clock
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import (
    LONG_WINDOW_S,
    ClockSetBack,
    LedgerFull,
    SpoolFull,
    WindowSpent,
)
from edge_agent.ledger.left_reports import Fate, Gone, left_report
from edge_agent.ledger.machine_lock import MachineLock
from edge_agent.protocol import protocol_events as events
from edge_agent.protocol.participant import Participant
from edge_agent.windows.window_accumulator import Windows
from transport.interface import TransportUnavailable
from wire.fields import TaskId
from wire.task import Task

from .outbox import Outbox


@dataclass(slots=True)
class AgentTally:
    """Names and numbers, nothing measured.

    spool_dropped   what the spool let go or did not take: `expired` records; for want of room a
                    `short_window`, then a `long_window`, at last an `epoch`
    """

    published: int = 0
    sealed: int = 0
    epochs: int = 0
    expired: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    spool_dropped: Counter[str] = field(default_factory=Counter)


_PROBE_RECORDS: Final = 100
_PAGE: Final = 1000


_WITHHELD: Final[dict[type[Exception], events.Withheld]] = {
    SpoolFull: events.Withheld.SPOOL_FULL,
    LedgerFull: events.Withheld.DISK_FULL,
    ClockSetBack: events.Withheld.CLOCK_SET_BACK,
    WindowSpent: events.Withheld.WINDOW_SPENT,
}


class Effects:
    """Tells the participant of events, and does what it answers."""

    def __init__(
        self,
        participant: Participant,
        ledger: Ledger,
        outbox: Outbox,
        windows: Windows,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        fault_point: Callable[[str], None],
        log_name: str = "",
        machine: MachineLock | None = None,
    ) -> None:
        """`log_name`: the log that records go to, as its owner knows it.
        machine     taken with the first task; None: what is spent is no machine's budget
        """
        self._participant = participant
        self._ledger = ledger
        self._outbox = outbox
        self._windows = windows
        self._clock = clock
        self._log = log
        self._fault_point = fault_point
        self._log_name = log_name
        self._machine = machine
        self._owed: deque[Callable[[], None]] = deque()
        self.tally = AgentTally()
        self.down = False

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        return self._participant.tasks

    def tell(self, event: events.Event) -> None:
        """Tell the participant and carry out its effects. Raises LedgerRefused: stop."""
        for effect in self._participant.handle(event):
            self.carry_out(effect)

    def send(self, now_ms: int) -> None:
        """Send what is due; a transport that is away is told once."""
        if self.down and not len(self._outbox):
            # What was queued may all have expired: try with what the spool holds.
            page = self._ledger.spooled(_PROBE_RECORDS)
            self._outbox.add_spooled(page, now_ms)
            if not page:
                self._back(now_ms)
        try:
            sent = self._outbox.send_due(now_ms)
        except TransportUnavailable as error:
            if not self.down:
                self.down = True
                self._log.warning("transport away", error=str(error), waiting=len(self._outbox))
            return
        if dropped := self._outbox.take_too_large():
            self.tally.refused[events.Withheld.RECORD_TOO_LARGE] += len(dropped)
            self._log.error("records longer than the log takes", dropped=len(dropped))
            self._forget(dropped, Fate.TOO_LONG)
        if not sent:
            return
        self.tally.published += len(sent)
        self._forget(sent, Fate.SENT)
        if self.down:
            self._back(now_ms)

    def learn_longest(self, report_bytes: int | None) -> None:
        """Take how long a report the log takes: nothing is spent on a longer one."""
        self._participant.longest_report = report_bytes

    def queue_spool(self, now_ms: int) -> None:
        """Queue everything that waits in the ledger's spool."""
        last = 0
        while page := self._ledger.spooled(_PAGE, last):
            self._outbox.add_spooled(page, now_ms)
            last = page[-1].spool_id

    def _back(self, now_ms: int) -> None:
        self.down = False
        self._log.info("transport back")
        self.queue_spool(now_ms)

    def _forget(self, spool_ids: tuple[int, ...], fate: Fate) -> None:
        """Drop records that the log holds durably, or will never take."""
        self._fault_point("runtime:before-forget")
        gone = Gone(fate, self._clock.unix_ms() // 1000, self._log_name)
        self._note(lambda: self._ledger.forget(spool_ids, gone))
        self._fault_point("runtime:forgotten")

    def restart_windows(self, now_s: int) -> None:
        """Gather the present of every task, whatever the windows were at."""
        self._windows.restart(self._participant.tasks, now_s)

    def carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.CommitEpochs():
                self._commit_epochs(effect)
            case events.CommitSealed():
                self._commit_sealed(effect)
            case events.Publish():
                if not self.down:  # the spool is queued when the log is back
                    self._outbox.add(effect.spool_ids, effect.records, self._clock.unix_ms())
            case events.RememberRoster():
                self._note(lambda: self._ledger.remember_roster(effect.known))
            case events.TaskAccepted():
                self._accept(effect)
            case events.SignedTimeSeen():
                self._note(lambda: self._ledger.note_signed_time(effect.signed_time_s))
            case events.Refuse():
                self._count_refusal(effect)
            case _:
                assert_never(effect)

    def _note(self, write: Callable[[], None]) -> None:
        """Write now, or before anything else is written once a full disk takes it."""
        self._owed.append(write)
        try:
            self._write_owed()
        except LedgerFull as error:
            self._log.warning("not noted yet", code=error.code, error=str(error))

    def _write_owed(self) -> None:
        """Write what a full disk held up, in its order. Raises LedgerFull."""
        while self._owed:
            self._owed[0]()
            self._owed.popleft()

    def drop_expired(self, now_s: int) -> None:
        """Write what is owed, and drop sealed records that nobody accepts; a full disk waits."""
        try:
            self._write_owed()
            records = self._ledger.drop_expired(now_s)
        except LedgerFull as error:
            self._log.warning("not dropped yet", code=error.code, error=str(error))
            return
        self.tally.expired += records
        if records:
            self.tally.spool_dropped["expired"] += records

    def _commit_epochs(self, effect: events.CommitEpochs) -> None:
        self._fault_point("runtime:epoch-sealed")
        if self._commit(
            effect,
            lambda: self._ledger.commit_epochs(effect.openings, effect.records, effect.now_s),
        ):
            self.tally.epochs += len(effect.records)

    def _commit_sealed(self, effect: events.CommitSealed) -> None:
        self._fault_point("runtime:report-sealed")
        sealed = zip(effect.entries, effect.records, strict=True)
        left = [left_report(entry, record, effect.now_s) for entry, record in sealed]
        if self._commit(
            effect,
            lambda: self._ledger.commit_sealed(
                effect.entries, effect.records, effect.now_s, effect.keep_from_s, left
            ),
        ):
            self.tally.sealed += len(effect.records)

    def _commit(
        self,
        effect: events.CommitEpochs | events.CommitSealed,
        commit: Callable[[], tuple[int, ...]],
    ) -> bool:
        """Commit, or tell the participant that nothing was spent; other refusals end the agent."""
        try:
            self._write_owed()
            spool_ids = commit()
        except (SpoolFull, LedgerFull, ClockSetBack, WindowSpent) as error:
            if isinstance(error, SpoolFull):
                self.tally.spool_dropped[_dropped(effect)] += len(effect.records)
            self._log.warning("not committed", code=error.code, error=str(error))
            self.tell(events.CommitFailed(effect.token, _WITHHELD[type(error)]))
            return False
        self._fault_point("runtime:committed")
        self.tell(events.LedgerCommitted(effect.token, spool_ids))
        return True

    def _accept(self, effect: events.TaskAccepted) -> None:
        if self._machine is not None:
            self._machine.take()
        signed = {effect.known.task_id: effect.signed}
        self._note(lambda: self._ledger.remember_series([effect.known], signed))
        now_s = self._clock.unix_ms() // 1000
        self._windows.open_task(effect.task_id, effect.task, now_s)
        self._log.info(
            "task accepted",
            series=effect.task.series,
            version=effect.task.version,
            window_s=effect.task.window_s,
            scheme=effect.task.scheme.value,
        )

    def _count_refusal(self, effect: events.Refuse) -> None:
        first = effect.reason.value not in self.tally.refused
        self.tally.refused[effect.reason.value] += max(1, effect.hosts)
        if first:
            self._log.warning("refused", reason=effect.reason.value, detail=effect.detail)


def _dropped(effect: events.CommitEpochs | events.CommitSealed) -> str:
    if isinstance(effect, events.CommitEpochs):
        return "epoch"
    spans_s = (spent.entry.end - spent.entry.start for spent in effect.entries)
    return "short_window" if min(spans_s) < LONG_WINDOW_S else "long_window"
