"""The live loop of an agent: it owns clocks, files and sockets, and carries out in order what the
participant decides; it stops at once when the ledger can no longer be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from collectors.interface import Source, UnavailableSource
from collectors.records.activity import SourceCoverage
from collectors.rounds import Drained, Rounds
from transport.interface import Transport, TransportUnavailable
from wire.fields import TaskId
from wire.task import Task

from .clock import Clock, SystemClock
from .host_diagnosis import NAME as DIAGNOSIS
from .host_diagnosis import Diagnosed, HostDiagnosis
from .ledger.ledger import Ledger
from .ledger.ledger_records import no_fault
from .ledger.machine_lock import MachineLock
from .protocol.participant import Participant
from .protocol.protocol_events import EpochDue, Refuse, WindowClosed
from .sending.effects import AgentTally, Effects
from .sending.outbox import BEAT_MS, ControlFeed, Outbox
from .windows.window_accumulator import ClosedWindow, Windows

_ROUND_MS: Final = 5 * BEAT_MS
"""Sources are drained on its multiples: by the clock, and not so long after the drain before."""

_CONTROL_AWAY_MS: Final = 15_000
_HOUSEKEEPING_EVERY_MS: Final = 60_000

_STILL_MS: Final = 500
"""Nothing that takes the longer the busier the host is begins so shortly before a send."""

_SET_BACK_MS: Final = 60_000
"""After a clock that was set back further nothing may wait for the time that it told."""

_SET_AHEAD_MS: Final = 86_400_000
"""Tasks that were refused by a clock further behind, as years away, are read again."""

_STILL_MOST_MS: Final = 1_000
"""Sends that follow one another hold the sources up no longer than so."""


@dataclass(slots=True)
class _Timers:
    control_ms: int = 0
    drain_ms: int = 0
    housekeeping_ms: int = 0
    still_since_ms: int = 0
    stepped_ms: int = 0


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What an agent counts; nothing measured. next_send_ms: when a record leaves, Unix ms."""

    sources: tuple[str, ...]
    tally: AgentTally
    spool_records: int
    spool_bytes: int
    queued: int
    next_send_ms: int | None
    transport_up: bool


class Observer:
    """What the loop shows on its own host; no method blocks for long, none raises or gives back."""

    def started(self) -> None:
        """The loop begins."""

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        """A source handed out records."""

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:
        """Diagnosis looked at all that was drained."""

    def closed(self, window: ClosedWindow, now_boottime_ns: int) -> None:
        """A window has ended: what was measured in it, whether it was reported or not."""

    def stepped(self, now_ms: int) -> None:
        """The loop went round once; about once a second."""

    def stopping(self) -> None:
        """The loop has ended; what is open is still there."""


class AgentRuntime:
    """One live agent; `run` until `stop`."""

    def __init__(
        self,
        participant: Participant,
        ledger: Ledger,
        transport: Transport,
        windows: Windows,
        sources: Sequence[Source],
        *,
        diagnosis: HostDiagnosis | None = None,
        clock: Clock | None = None,
        name: str = "agent",
        log_name: str = "",
        machine: MachineLock | None = None,
        fault_point: Callable[[str], None] = no_fault,
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._windows = windows
        self._rounds = Rounds(sources)
        self._working_ns: dict[str, int] = {}
        self._diagnosis: HostDiagnosis | None = None
        self.replace_diagnosis(diagnosis)
        self._clock = clock or SystemClock()
        self._fault_point = fault_point
        self._log = structlog.get_logger("pointillist.agent").bind(agent=name)
        self._outbox = Outbox(transport, fault_point)
        self._control = ControlFeed(transport, name)
        self._effects = Effects(
            participant, ledger, self._outbox, windows,
            clock=self._clock, log=self._log, fault_point=fault_point, log_name=log_name,
            machine=machine,
        )  # fmt: skip
        self._timers = _Timers()
        self._stopping = False
        self._observers: tuple[Observer, ...] = ()

    # What others see ----------------------------------------------------------------------------

    def observe(self, *observers: Observer) -> None:
        """Show what happens to local observers, in this order; set them before the loop starts."""
        self._observers = observers

    @property
    def tally(self) -> AgentTally:
        return self._effects.tally

    @property
    def windows(self) -> Windows:
        return self._windows

    @property
    def tasks(self) -> Mapping[TaskId, Task]:
        return self._effects.tasks

    @property
    def sources(self) -> tuple[Source, ...]:
        return self._rounds.sources

    def replace_sources(self, sources: Sequence[Source]) -> None:
        """Go on with these sources, started already; what was drained and is not there stops."""
        self._rounds = self._rounds.replace(sources)
        self._working_ns.clear()
        if self._diagnosis is not None:
            self._diagnosis.lack(self._rounds.lacking)

    def replace_diagnosis(self, diagnosis: HostDiagnosis | None) -> None:
        """Go on with this one, or without; the one before is closed."""
        if self._diagnosis is not None:
            self._diagnosis.close()
        self._diagnosis = diagnosis
        self._working_ns.pop(DIAGNOSIS, None)
        if diagnosis is not None:
            diagnosis.lack(self._rounds.lacking)

    @property
    def lacking(self) -> Sequence[UnavailableSource]:
        return self._rounds.lacking

    def status(self) -> AgentStatus:
        tally = self.tally
        return AgentStatus(
            sources=tuple(
                [source.name for source in self.sources]
                + ([DIAGNOSIS] if self._diagnosis is not None else [])
            ),
            tally=replace(
                tally, refused=tally.refused.copy(), spool_dropped=tally.spool_dropped.copy()
            ),
            spool_records=self._ledger.spool_records,
            spool_bytes=self._ledger.spool_bytes,
            queued=len(self._outbox),
            next_send_ms=self._outbox.next_ms(),
            transport_up=not self._effects.down,
        )

    # The loop -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end; safe from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Run until stopped, then put all down. Raises LedgerRefused: nothing more may leave."""
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
        self._effects.queue_spool(self._clock.unix_ms())
        waiting = len(self._outbox)
        if waiting:
            self._log.info("spool found", records=waiting)
        for observer in self._observers:
            observer.started()

    def step(self) -> None:
        """Do what is due: sends first, and the rest away from the next: load moves no record."""
        now_ms = self._clock.unix_ms()
        before_ms = self._timers.stepped_ms
        if now_ms < before_ms - _SET_BACK_MS:
            self._go_on_from(now_ms)
        elif 0 < before_ms < now_ms - _SET_AHEAD_MS:
            self._log.warning("clock set ahead", seconds=(now_ms - before_ms) // 1000)
            self._control.restart()
        self._timers.stepped_ms = now_ms
        self._effects.send(now_ms)
        if now_ms >= self._timers.control_ms:
            self._timers.control_ms = _next_round(now_ms)
            self._read_control(now_ms // 1000)
        self._effects.tell(EpochDue(now_ms // 1000))
        if not self._keeps_still():
            self._measure(now_ms)

    def _go_on_from(self, now_ms: int) -> None:
        """Take up the present after a clock that was ahead; what was spent ahead stays spent.
        Control topics are read anew, as a task may have looked expired.
        """
        back_s = (self._timers.stepped_ms - now_ms) // 1000
        self._log.warning("clock set back", seconds=back_s)
        self._timers = _Timers()
        self._outbox.requeue()
        self._control.restart()
        self._effects.restart_windows(now_ms // 1000)

    def _measure(self, now_ms: int) -> None:
        """Do what takes the longer the busier the host is."""
        if now_ms >= self._timers.drain_ms or self._window_ended(now_ms):
            self._timers.drain_ms = _next_round(now_ms)
            self._drain_sources()
        self._close_windows(now_ms // 1000)
        if now_ms >= self._timers.housekeeping_ms:
            self._timers.housekeeping_ms = now_ms + _HOUSEKEEPING_EVERY_MS
            self._housekeeping(now_ms // 1000)
        for observer in self._observers:
            observer.stepped(now_ms)

    def _keeps_still(self) -> bool:
        """Say whether a send is so near that no measuring may begin."""
        now_ms, sends_ms = self._clock.unix_ms(), self._outbox.next_ms()
        if sends_ms is None or sends_ms - now_ms >= _STILL_MS:
            self._timers.still_since_ms = 0
            return False
        since_ms = self._timers.still_since_ms = self._timers.still_since_ms or now_ms
        return now_ms - since_ms < _STILL_MOST_MS

    def _window_ended(self, now_ms: int) -> bool:
        end_s = self._windows.next_end_s()
        return end_s is not None and end_s * 1000 <= now_ms

    def pause_ms(self) -> int:
        """Sleep to the next beat on which something is due."""
        now_ms = self._clock.unix_ms()
        end_s = self._windows.next_end_s()
        sends_ms = self._outbox.next_ms()
        due = [_next_round(now_ms)] if sends_ms is None else [_next_round(now_ms), sends_ms]
        if end_s is not None:
            due.append(max(end_s * 1000, (now_ms // BEAT_MS + 1) * BEAT_MS))
        return max(1, min(due) - now_ms)

    def close(self) -> None:
        """Keep the open windows, send what is due, let everything go."""
        for observer in self._observers:
            observer.stopping()
        if self._diagnosis is not None:
            for incident in self._diagnosis.flush():
                self._windows.add(incident)
        self.replace_diagnosis(None)
        self._rounds.stop()
        self._windows.persist()
        try:
            self._effects.send(self._clock.unix_ms())
            self._outbox.close()
            self._control.close()
        except TransportUnavailable:
            self._log.warning("transport away at stop", spooled=self._ledger.spool_records)
        self._ledger.close()
        if self._machine is not None:
            self._machine.close()
        self._log.info("stopped", published=self.tally.published, spooled=len(self._outbox))

    # What comes in ------------------------------------------------------------------------------

    def _read_control(self, now_s: int) -> None:
        try:
            for event in self._control.events(now_s):
                if isinstance(event, Refuse):
                    self._effects.carry_out(event)
                else:
                    self._effects.tell(event)
        except TransportUnavailable as error:
            # Asking may take as long as a time-out: seldom enough not to hold the windows up.
            self._timers.control_ms += _CONTROL_AWAY_MS
            self._log.warning("control topics away", error=str(error))
        self._effects.learn_longest(self._control.longest_report)
        for note in self._control.notes():
            self.tally.refused[note.noted.value] += 1
            self._log.warning(note.noted.value, detail=note.detail)

    def _drain_sources(self) -> None:
        """Hand each drain to windows, diagnosis and the observer, and what was diagnosed."""
        now_ns, diagnosis = self._clock.boottime_ns(), self._diagnosis
        for drained in self._rounds.round(now_ns):
            for record in drained.records:
                self._windows.add(record)
            if diagnosis is not None:
                diagnosis.take(drained)
            self._worked(drained.name, drained.failure, now_ns)
            for observer in self._observers:
                observer.drained(drained, now_ns)
        if diagnosis is not None:
            found = diagnosis.look(now_ns)
            for incident in found.incidents:
                self._windows.add(incident)
            self._worked(DIAGNOSIS, found.failure, now_ns)
            for observer in self._observers:
                observer.diagnosed(found, now_ns)

    def _worked(self, name: str, failure: str | None, now_ns: int) -> None:
        """Tell the windows that a source worked since its look before, or the log why not."""
        since_ns = self._working_ns.pop(name, now_ns)
        if failure is not None:
            self._log.warning("source failed", source=name, error=failure)
            return
        self._working_ns[name] = now_ns
        if now_ns > since_ns:
            self._windows.add(SourceCoverage(name, since_ns, now_ns - since_ns))

    def _close_windows(self, now_s: int) -> None:
        for closed in self._windows.close_ended(now_s):
            self._fault_point("runtime:window-closed")
            self._effects.tell(
                WindowClosed(closed.task_id, closed.start_s, closed.rows, closed.present, now_s)
            )
            for observer in self._observers:
                observer.closed(closed, self._clock.boottime_ns())

    def _housekeeping(self, now_s: int) -> None:
        self._outbox.drop_expired(now_s)
        self._effects.drop_expired(now_s)
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
            spool_dropped=dict(self.tally.spool_dropped),
        )


def _next_round(now_ms: int) -> int:
    return (now_ms // _ROUND_MS + 1) * _ROUND_MS
