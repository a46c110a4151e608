"""The live loop of an agent: sources, windows, participant, ledger, transport.

Everything that decides is in the participant; the shell owns clocks, files and sockets, carries
effects out in their order, and stops at once when the ledger can no longer be trusted.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Final

import structlog

from transport.port import Consumer, Record, Transport, TransportUnavailable
from wire.envelope import Kind, unwrap
from wire.keys import KeyAnnouncement
from wire.rejection import ReportRejected
from wire.topics import KEYS, ROSTERS, TASKS, TOPICS

from .clock import Clock, SystemClock
from .ledger import Ledger
from .ledger_errors import ClockSetBack, LedgerFull, SpoolFull, WindowSpent
from .observer import AgentStatus, Observer, Unobserved
from .outbox import BEAT_MS, Outbox
from .participant import Participant
from .protocol_events import (
    CommitEpochs,
    CommitFailed,
    CommitSealed,
    Committed,
    DrainSpool,
    Effect,
    EpochDue,
    EraseKeys,
    Event,
    Forget,
    KeysAnnounced,
    Publish,
    Published,
    Refuse,
    RememberSeries,
    RosterReceived,
    SignedTimeSeen,
    TaskAccepted,
    TaskReceived,
    TransportDown,
    TransportUp,
    WindowClosed,
    Withheld,
)
from .sources.port import Source, SourceUnavailable
from .task_windows import Windows

_MAX_BYTES: Final = {topic.name: topic.max_bytes for topic in TOPICS}
_CONTROL_TOPICS: Final = (TASKS, ROSTERS, KEYS)
_CONTROL_EVERY_MS: Final = 1_000
_CONTROL_RECORDS: Final = 100
_CONTROL_POLLS: Final = 10
_PROBE_RECORDS: Final = 100
_CONTROL_AWAY_MS: Final = 15_000
_DRAIN_EVERY_MS: Final = 1_000
_HOUSEKEEPING_EVERY_MS: Final = 60_000
_LONGEST_SLEEP_MS: Final = 1_000


def _no_fault(_point: str) -> None:
    return


@dataclass(slots=True)
class Tally:
    """What an agent counts; names and numbers, nothing measured."""

    published: int = 0
    sealed: int = 0
    epochs: int = 0
    expired: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Timers:
    """When each periodic step runs next, milliseconds since 1970."""

    control_ms: int = 0
    drain_ms: int = 0
    housekeeping_ms: int = 0


class AgentShell:
    """One live agent; `run` until `stop`."""

    def __init__(
        self,
        participant: Participant,
        ledger: Ledger,
        transport: Transport,
        windows: Windows,
        sources: Sequence[Source],
        *,
        clock: Clock | None = None,
        name: str = "agent",
        fault_point: Callable[[str], None] = _no_fault,
    ) -> None:
        self._participant = participant
        self._ledger = ledger
        self._transport = transport
        self._windows = windows
        self._sources = tuple(sources)
        self._clock = clock or SystemClock()
        self._name = name
        self._fault_point = fault_point
        self._outbox = Outbox(transport, fault_point)
        self._control: Consumer | None = None
        self._timers = _Timers()
        self._down = False
        self._stopping = False
        self._observer: Observer = Unobserved()
        self._log = structlog.get_logger("pointillist.agent").bind(agent=name)
        self.tally = Tally()

    # What others see ----------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """Show what happens to a local observer; set it before the loop starts."""
        self._observer = observer

    @property
    def windows(self) -> Windows:
        """The open windows."""
        return self._windows

    def replace_sources(self, sources: Sequence[Source]) -> None:
        """Go on with other sources, started already; those of before are stopped."""
        for source in self._sources:
            source.stop()
        self._sources = tuple(sources)

    def status(self) -> AgentStatus:
        """Give what the agent counts, as it stands."""
        tally = self.tally
        return AgentStatus(
            sources=tuple(source.name for source in self._sources),
            published=tally.published,
            sealed=tally.sealed,
            epochs=tally.epochs,
            expired=tally.expired,
            refused=dict(tally.refused),
            spool_records=self._ledger.spool_records,
            spool_bytes=self._ledger.spool_bytes,
            queued=len(self._outbox),
            next_send_ms=self._outbox.next_ms(),
            transport_up=not self._down,
        )

    # The loop -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end; safe from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Run until stopped, then put everything down in order.

        Raises      LedgerRefused: nothing more may be published
        """
        try:
            self.start()
            while not self._stopping:
                self.step()
                if not self._stopping:
                    self._clock.sleep_ms(self.pause_ms())
        finally:
            self.close()

    def start(self) -> None:
        """Queue what an earlier process sealed and did not get rid of."""
        self._drain_spool()
        waiting = len(self._outbox)
        if waiting:
            self._log.info("spool found", records=waiting)
        self._observer.started()

    def step(self) -> None:
        """Do once everything that is due now."""
        now_ms = self._clock.unix_ms()
        if now_ms >= self._timers.control_ms:
            self._timers.control_ms = now_ms + _CONTROL_EVERY_MS
            self._read_control(now_ms // 1000)
        self._tell(EpochDue(now_ms // 1000))
        if now_ms >= self._timers.drain_ms or self._window_ended(now_ms):
            self._timers.drain_ms = now_ms + _DRAIN_EVERY_MS
            self._drain_sources()
        self._close_windows(now_ms // 1000)
        self._send()
        if now_ms >= self._timers.housekeeping_ms:
            self._timers.housekeeping_ms = now_ms + _HOUSEKEEPING_EVERY_MS
            self._housekeeping(now_ms // 1000)
        self._observer.stepped(now_ms)

    def _window_ended(self, now_ms: int) -> bool:
        end_s = self._windows.next_end_s()
        return end_s is not None and end_s * 1000 <= now_ms

    def pause_ms(self) -> int:
        """Sleep to the next beat on which something is due; always at least once a second."""
        now_ms = self._clock.unix_ms()
        end_s = self._windows.next_end_s()
        sends_ms = self._outbox.next_ms()
        due = [now_ms + _LONGEST_SLEEP_MS, *([end_s * 1000] if end_s is not None else [])]
        if sends_ms is not None:
            due.append(sends_ms)
        return max(1, min(-(-min(due) // BEAT_MS) * BEAT_MS, max(due)) - now_ms)

    def close(self) -> None:
        """Keep the open windows, send what is due, let everything go."""
        self._observer.stopping()
        for source in self._sources:
            source.stop()
        self._windows.persist()
        try:
            self._send()
            self._outbox.close()
            if self._control is not None:
                self._control.close()
        except TransportUnavailable:
            self._log.warning("transport away at stop", spooled=self._ledger.spool_records)
        self._ledger.close()
        self._log.info("stopped", published=self.tally.published, spooled=len(self._outbox))

    # What comes in ------------------------------------------------------------------------------

    def _read_control(self, now_s: int) -> None:
        """Read tasks, rosters and keys; each process reads them from the oldest on."""
        try:
            if self._control is None:
                for topic in TOPICS:
                    self._transport.create_topic(topic.name, topic.partitions)
                group = f"{self._name}-{secrets.token_hex(6)}"
                self._control = self._transport.consumer(group, _CONTROL_TOPICS)
            for _ in range(_CONTROL_POLLS):  # a flooded topic must not stop the agent
                records = self._control.poll(_CONTROL_RECORDS, 0.0)
                # Rosters and keys first, so that a task finds what its first epoch needs.
                for record in sorted(records, key=lambda r: r.topic == TASKS):
                    self._take(record, now_s)
                if not records:
                    break
        except TransportUnavailable as error:
            # Asking may take as long as a time-out: seldom enough not to hold the windows up.
            self._timers.control_ms += _CONTROL_AWAY_MS
            self._log.warning("control topics away", error=str(error))

    def _take(self, record: Record, now_s: int) -> None:
        try:
            kind, core = unwrap(record.value, _MAX_BYTES[record.topic])
            if kind is Kind.TASK and record.topic == TASKS:
                self._tell(TaskReceived(core, now_s))
            elif kind is Kind.ROSTER and record.topic == ROSTERS:
                self._tell(RosterReceived(core, now_s))
            elif kind is Kind.KEY_ANNOUNCEMENT and record.topic == KEYS:
                self._tell(KeysAnnounced((KeyAnnouncement.decode(core),), now_s))
        except ReportRejected as refusal:
            self._count(Refuse(refusal.reason, 0, str(refusal)))

    def _drain_sources(self) -> None:
        now_ns = self._clock.boottime_ns()
        for source in self._sources:
            failure, drained = None, []
            try:
                for record in source.drain(now_ns):
                    self._windows.add(record)
                    drained.append(record)
            except SourceUnavailable as error:
                failure = str(error)
                self._log.warning("source failed", source=source.name, error=failure)
            self._observer.drained(source, drained, now_ns, failure)

    def _close_windows(self, now_s: int) -> None:
        for closed in self._windows.close_ended(now_s):
            self._fault_point("shell:window-closed")
            self._tell(
                WindowClosed(closed.task_id, closed.start_s, closed.rows, closed.present, now_s)
            )

    # What goes out ------------------------------------------------------------------------------

    def _send(self) -> None:
        if self._down and not len(self._outbox):
            self._probe()
        try:
            sent = self._outbox.send_due(self._clock.unix_ms())
        except TransportUnavailable as error:
            if not self._down:
                self._down = True
                self._log.warning("transport away", error=str(error), waiting=len(self._outbox))
                self._tell(TransportDown())
            return
        if dropped := self._outbox.take_too_large():
            self.tally.refused["record_too_large"] += len(dropped)
            self._log.error("records longer than the log takes", dropped=len(dropped))
            self._tell(Published(dropped))
        if not sent:
            return
        self.tally.published += len(sent)
        self._tell(Published(sent))
        if self._down:
            self._back()

    def _probe(self) -> None:
        """Try again with what the spool holds: while down, what was queued may all have expired."""
        page = self._ledger.spooled(_PROBE_RECORDS)
        if page:
            self._outbox.add_spooled(page, self._clock.unix_ms())
        else:
            self._back()

    def _back(self) -> None:
        self._down = False
        self._log.info("transport back")
        self._tell(TransportUp())

    def _drain_spool(self) -> None:
        last, now_ms = 0, self._clock.unix_ms()
        while page := self._ledger.spooled(1000, last):
            self._outbox.add_spooled(page, now_ms)
            last = page[-1].spool_id

    def _housekeeping(self, now_s: int) -> None:
        self._outbox.drop_expired(now_s)
        self.tally.expired += self._ledger.drop_expired(now_s)
        self._windows.follow_clock()
        self._windows.persist()
        self._log.info(
            "agent",
            published=self.tally.published,
            sealed=self.tally.sealed,
            epochs=self.tally.epochs,
            expired=self.tally.expired,
            spool_records=self._ledger.spool_records,
            spool_bytes=self._ledger.spool_bytes,
            refused=dict(self.tally.refused),
        )

    # Effects ------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        effects: Iterable[Effect] = self._participant.handle(event)
        for effect in effects:
            self._carry_out(effect)

    @singledispatchmethod
    def _carry_out(self, effect: Effect) -> None:
        raise TypeError(f"expected an effect, got {type(effect).__name__}")

    @_carry_out.register
    def _(self, effect: CommitEpochs) -> None:
        self._fault_point("shell:epoch-sealed")
        if self._commit(effect, lambda: self._commit_epochs(effect)):
            self.tally.epochs += len(effect.records)

    @_carry_out.register
    def _(self, effect: CommitSealed) -> None:
        self._fault_point("shell:report-sealed")
        if self._commit(effect, lambda: self._commit_sealed(effect)):
            self.tally.sealed += len(effect.records)

    def _commit_epochs(self, effect: CommitEpochs) -> tuple[int, ...]:
        return self._ledger.commit_epochs(effect.openings, effect.records, effect.now_s)

    def _commit_sealed(self, effect: CommitSealed) -> tuple[int, ...]:
        return self._ledger.commit_sealed(effect.entries, effect.records, effect.now_s)

    def _commit(
        self, effect: CommitEpochs | CommitSealed, commit: Callable[[], tuple[int, ...]]
    ) -> bool:
        """Commit, or tell the participant that nothing was spent; other refusals end the agent."""
        try:
            spool_ids = commit()
        except (SpoolFull, LedgerFull, ClockSetBack, WindowSpent) as error:
            self._log.warning("not committed", code=error.code, error=str(error))
            self._tell(CommitFailed(effect.token, _WITHHELD[type(error)]))
            return False
        self._fault_point("shell:committed")
        self._tell(Committed(effect.token, spool_ids))
        return True

    @_carry_out.register
    def _(self, effect: Publish) -> None:
        self._outbox.add(effect.spool_ids, effect.records, self._clock.unix_ms())

    @_carry_out.register
    def _(self, effect: DrainSpool) -> None:  # noqa: ARG002  (dispatched on its type)
        self._drain_spool()

    @_carry_out.register
    def _(self, effect: Forget) -> None:
        self._fault_point("shell:before-forget")
        self._ledger.forget(effect.spool_ids)
        self._fault_point("shell:forgotten")

    @_carry_out.register
    def _(self, effect: RememberSeries) -> None:
        self._ledger.remember_series([effect.known])

    @_carry_out.register
    def _(self, effect: TaskAccepted) -> None:
        now_s = self._clock.unix_ms() // 1000
        self._windows.open_task(effect.task_id, effect.task, now_s)
        self._log.info(
            "task accepted",
            series=effect.task.series,
            version=effect.task.version,
            window_s=effect.task.window_s,
            scheme=effect.task.scheme.value,
        )

    @_carry_out.register
    def _(self, effect: SignedTimeSeen) -> None:
        self._ledger.note_signed_time(effect.signed_time_s)

    @_carry_out.register
    def _(self, effect: EraseKeys) -> None:
        self._log.debug("epoch keys erased", epochs=effect.epochs)

    @_carry_out.register
    def _(self, effect: Refuse) -> None:
        self._count(effect)

    def _count(self, refusal: Refuse) -> None:
        first = refusal.reason.value not in self.tally.refused
        self.tally.refused[refusal.reason.value] += max(1, refusal.hosts)
        if first:
            self._log.warning("refused", reason=refusal.reason.value, detail=refusal.detail)


_WITHHELD: Final[dict[type[Exception], Withheld]] = {
    SpoolFull: Withheld.SPOOL_FULL,
    LedgerFull: Withheld.DISK_FULL,
    ClockSetBack: Withheld.CLOCK_SET_BACK,
    WindowSpent: Withheld.WINDOW_SPENT,
}

__all__ = ["AgentShell", "Clock", "SystemClock", "Tally"]
