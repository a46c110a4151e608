"""The Leader's process: the loop between the log, the state machine, the Helper and the store."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from aggregator.enrolment.tasks import ENTRY_SUFFIX, TASK_SUFFIX, SignedFolder
from aggregator.party import health
from aggregator.party.channel import ChannelHelper
from aggregator.party.config import LeaderConfig
from aggregator.party.health import STATUS_EVERY_S, HealthMetric, Trouble
from aggregator.party.key_ring import KeyRing
from aggregator.protocol import interfaces
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import RosterSeen, TaskSeen
from aggregator.protocol.released import ReleaseStore
from aggregator.state.state_file import PRUNE_EVERY_S, StorageUnavailable
from aggregator.statistics.range_checks import SumRules
from transport.interface import (
    Consumer,
    LogNote,
    Noted,
    Record,
    RecordTooLarge,
    TopicPartition,
    Transport,
    TransportUnavailable,
    UnknownTopic,
)
from transport.process.supervision import Notifier, SteadyTime, has_stood
from wire.catalogue import Catalogue
from wire.rejection import ReportRejected
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

from . import leader_events as events
from .intake import LEADER_GROUP, ReportReader
from .leader import Leader
from .leader_events import CallCountersign, CallHelper, Settled
from .leader_runner import HelperCalls, LeaderRunner, restore_leader
from .leader_state import LeaderState
from .log_publisher import LogPublisher
from .window_closing import LogWatch

MEASURES: Final = (
    health.trouble_measure(*Trouble),
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("standby", "standby", "1 while another machine leads"),
    HealthMetric("log_lag", "log_lag_records", "records left to read; -1 while the log is away"),
    HealthMetric("helper_seen", "helper_seen_seconds", "when the Helper last answered, unix time"),
    HealthMetric(
        "last_windows",
        "last_window_end_seconds",
        "end of the newest settled window, unix time",
        "series",
        of=lambda last: {series: ended["window_end"] for series, ended in last.items()},
    ),
    HealthMetric("windows_unsettled", "windows_unsettled", "windows open or closed, not settled"),
    HealthMetric("windows_released", "windows_released", "since the start", counter=True),
    HealthMetric(
        "windows_suppressed", "windows_suppressed", "since the start", "reason", counter=True
    ),
    HealthMetric("reports_admitted", "reports_admitted", "since the start", counter=True),
    HealthMetric("rejected", "rejected", "reports and epochs refused", "reason", counter=True),
    HealthMetric("dead_letters", "dead_letters", "of refused messages", "outcome", counter=True),
    HealthMetric("epochs_open", "epochs_open", "epochs whose keys are at hand"),
    health.DISK_MEASURE,
)


POLL_RECORDS: Final = 500
"""2 MB at d = 1,000, which stays in a core's cache; the Helper's answer waits for so many."""
POLL_S: Final = 0.1
POLL_OTHERS_S: Final = 0.02
"""Where another process reads the reports: every window waits for some of the loop's turns."""
POLL_CALLED_S: Final = 0.01
"""While the Helper is called: the next window of the chain waits for its answer."""
ANNOUNCE_EVERY_S: Final = 300.0
ASK_HELPER_EVERY_S: Final = 10.0
RETRY_S: Final = 1.0
TIDY_EVERY_S: Final = 1.0


class LeaderRuntime:
    """One loop and one thread that calls the Helper; only the loop touches the state machine.

    A log, a disk or a Helper that is away is waited out: nothing that was read is lost, what must
    be stored is stored in its order once the disk takes it. So is a clock that was stepped, until
    it is put right or has stood: by a wrong one windows would close, or reports come early.
    """

    def __init__(
        self,
        config: LeaderConfig,
        transport: Transport,
        store: ReleaseStore,
        *,
        helper: interfaces.HelperPort | None = None,
        state: LeaderState | None = None,
        reader: Callable[[Leader], ReportReader] | None = None,
        clock: Callable[[], float] | None = None,
        pause: Callable[[float], object] | None = None,
        notifier: Notifier | None = None,
        checkpoint: interfaces.Checkpoint = interfaces.no_checkpoint,
    ) -> None:
        """Open keys, state and the channel; call it after privileges are dropped.

        helper      None: the channel that the configuration names
        state       None: a file in the state's folder
        reader      makes what reads the reports; None: this loop does
        clock       unix seconds; None: the machine's, steady
        pause       waits so many seconds, or until `stop`; None: in real time
        notifier    tells systemd that it has taken over, and that it goes on
        Raises      KeyFileRefused, StateUnusable, OSError
        """
        self._config, self._transport = config, transport
        self._clock = clock or SteadyTime()
        self._store, self._checkpoint = store, checkpoint
        self._log = structlog.get_logger("leader")
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._keys = KeyRing(config.key_dir)
        self._state = state or LeaderState(config.state_dir / "leader.sqlite")
        parties = PinnedParties(self._keys.identity.public_bytes, config.helper_pk)
        self._directory = Directory(parties, self._state.accepted_s())
        self._folder = SignedFolder(config.signed_dir, entries=True)
        if helper is None and config.helper is not None:
            helper = ChannelHelper(config.helper)
        self._helper = helper
        self._leader = Leader(
            self._directory,
            self._keys.identity,
            self._keys.pair,
            ledger_counters=self._state.counters(),
            resumed=self._state.resumed,
            raw_epoch=self._state.raw_epoch,
            sum_rules=SumRules(Catalogue.load(config.catalogue)),
            quotas=config.quotas,
            leave_out=config.leave_out,
            reader=reader,
        )
        self._reader = self._leader.reader
        self._runner = LeaderRunner(
            self._leader,
            self._state,
            store,
            commit=self._note_offsets,
            call=self._call,
            checkpoint=checkpoint,
            tell=self._note_settled,
        )
        self._inbox: deque[events.LeaderEvent] = deque()
        self._calls = HelperCalls(helper, self._clock)
        self._notifier = notifier or Notifier()
        self._troubles = health.Troubles(self._log)
        self._told_named: set[bytes] = set()
        self._last_windows: dict[str, dict[str, Any]] = {}
        """Series -> what is told of its newest window that ended since the start."""
        self.health = health.Health("leader", (*MEASURES, *self._reader.measures))
        self._presence = health.Presence(config.status_file)
        self._started_s = self._clock()
        self._helper_seen_s = 0.0
        self._done: dict[str, float] = {}
        self._signed: deque[tuple[Path, bytes]] = deque()
        self._restored = False
        letters = config.quotas.dead_letters is not None
        self._publisher = LogPublisher(transport, parties, letters=letters)
        self._consumer: Consumer | None = None
        self._poll_s = POLL_S
        self._lag: int | None = None
        self._offsets: dict[TopicPartition, int] = {}

    def _lag_of_all(self) -> int | None:
        return self._reader.lag(self._lag, self._clock())

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Open windows stay in the log and come back at the next start."""
        try:
            while not self._stop.is_set():
                self._turn()
        finally:
            self._end()

    def _end(self) -> None:
        self._notifier.stopping()
        self._reader.close()
        self._calls.close()
        with suppress(TransportUnavailable, RecordTooLarge):
            if self._consumer is not None:
                self._consumer.close()
            self._publisher.close()
        self._say_status()
        self._presence.close()
        self._state.close()
        if isinstance(self._helper, ChannelHelper):
            self._helper.close()
        self._log.info("stopped", unsettled=self._leader.unsettled)

    def _turn(self) -> None:
        try:
            self._runner.carry_out()
            if not self._restored:
                self._restore()
            if self._clock_stands():
                self._read()
                self._drain()
                self._runner.feed(events.Tick(self._clock(), self._lag_of_all()))
            self._housekeeping()
        except OSError as error:  # the disk takes nothing; what was read is kept
            self._troubles.begin(Trouble.STORAGE, self._clock(), str(error))
            self._pause(RETRY_S)
        else:
            self._troubles.end(Trouble.STORAGE, self._clock())
        self.health.turned()
        self._notifier.alive()
        if self._is_due("status", STATUS_EVERY_S):
            self._say_status()

    def _clock_stands(self) -> bool:
        now_s = self._clock()
        if not isinstance(self._clock, SteadyTime) or not self._clock.stepped:
            self._troubles.end(Trouble.CLOCK_STEPPED, now_s)
            return True
        detail = "the clock was stepped: put it right, or it is believed after ten minutes"
        self._troubles.begin(Trouble.CLOCK_STEPPED, now_s, detail)
        # As long as an outage of the log: what comes meanwhile is read before windows close.
        self._leader.watch.tick(now_s, None)
        self._pause(RETRY_S)
        return False

    def _restore(self) -> None:
        self._store.repair()
        self._read_signed(at_start=True)
        # The tasks first: they say which keys are still needed.
        self._rotate()
        owed = restore_leader(self._leader, self._state, self._clock())
        self._restored = True
        self._log.info("started", unsettled=self._leader.unsettled)
        self._notifier.ready("started")
        self._runner.carry_out(owed)

    # The log

    def _read(self) -> None:
        if not self._inbox:
            self._poll()
        while self._inbox:
            self._runner.feed(self._inbox.popleft())

    def _poll(self) -> None:
        try:
            if self._consumer is None:
                self._publisher.open()
                topics = self._reader.topics
                self._consumer = self._transport.consumer(LEADER_GROUP, topics)
                self._poll_s = POLL_S if REPORTS in topics else POLL_OTHERS_S
            wait_s = POLL_CALLED_S if self._calls.under_way else self._poll_s
            self._take_in(self._consumer.poll(POLL_RECORDS, wait_s))
            self._note(self._consumer.notes())
            partitions = sum(map(self._transport.partitions, self._reader.topics))
            self._lag = LogWatch.unread(self._consumer, partitions)
            if self._offsets:
                self._consumer.commit(self._offsets)
                self._offsets = {}
            self._publish()
        except RecordTooLarge as error:
            self._leader.rejected["record_too_large"] += max(1, len(error.refused))
            self._log.error("records longer than the log takes", detail=str(error))
        except TransportUnavailable as error:
            self._lag = None
            self._troubles.begin(Trouble.LOG_AWAY, self._clock(), str(error))
            if isinstance(error, UnknownTopic):
                with suppress(TransportUnavailable):  # as the next start would
                    self._publisher.make_topics()
            self._pause(RETRY_S)
            return
        if self._lag is not None:
            self._troubles.end(Trouble.LOG_AWAY, self._clock())

    def _take_in(self, records: Sequence[Record]) -> None:
        """Keep what was read: the log does not give it again to this process."""
        now_s = self._clock()
        epochs = [record for record in records if record.topic == EPOCHS]
        reports = [record for record in records if record.topic == REPORTS]
        if epochs:
            self._inbox.append(events.EpochsArrived(epochs, now_s))
        if reports:
            self._inbox.append(events.ReportsArrived(reports, now_s))

    def _note(self, notes: Sequence[LogNote]) -> None:
        for note in notes:
            self._leader.rejected[note.noted.value] += 1
            self._log.warning(note.noted.value, detail=note.detail)
            if note.noted is not Noted.UNREADABLE:
                self._offsets = {at: to for at, to in self._offsets.items() if at[0] != note.topic}
                self._inbox.append(events.LogChanged(note.topic))

    def _publish(self) -> None:
        self._publisher.put_letters(self._leader.intake.letters)
        self._publisher.flush()
        self._publisher.publish_releases(self._state, self._checkpoint)

    def _note_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets.update(offsets)

    def _note_settled(self, effect: Settled) -> None:
        """One line for each window without a release: how many hosts of how many, never which.

        One for each host that falsifies numbers, too, which is named.
        """
        for host_id in self._leader.left_out.named.keys() - self._told_named:
            shift = self._leader.left_out.named[host_id]
            self._told_named.add(host_id)
            told = (
                f"shifts {shift.section} by {shift.percent:.1f} %"
                if shift.section
                else "stops sums"
            )
            self._log.warning("host named", host_id=host_id.hex(), detail=told)
        if isinstance(effect, events.StoreRelease):
            self._note_last(effect, effect.released.task, "released", effect.released.n)
            return
        if effect.task is not None:
            self._note_last(effect, effect.task, effect.reason, effect.hosts)
        n_min = "an unknown number" if effect.task is None else effect.task.n_min
        self._log.warning(
            "window suppressed",
            series=effect.series,
            cohort=effect.key.cohort,
            window=effect.key.window,
            reason=effect.reason,
            hosts=f"{effect.hosts} of n_min {n_min}",
            **({"detail": effect.detail} if effect.detail else {}),
        )

    def _note_last(self, settled: Settled, task: Task, outcome: str, hosts: int) -> None:
        start = settled.key.window
        if self._last_windows.get(task.series, {}).get("window_start", start) <= start:
            self._last_windows[task.series] = {
                "window_start": start,
                "window_end": start + task.window_s,
                "outcome": outcome,
                "hosts": hosts,
            }

    # The Helper, which a thread of its own calls

    def _call(self, effect: CallHelper | CallCountersign) -> None:
        wanted = effect.wanted if isinstance(effect, CallHelper) else None
        # The state file belongs to the loop's thread: read here, sent from the other.
        self._calls.begin(effect, list(self._state.epoch_bytes(list(wanted or ()))))

    def _drain(self) -> None:
        for event in self._calls.answers():
            self._note_helper(answered=event.reply is not None)
            self._leader.chains.salts = bool(self._calls.takes_salt)
            self._runner.feed(event)
        for announcements in self._calls.announced():
            self._note_helper(answered=announcements is not None)
            for refusal in self._publisher.put_keys(announcements or ()):
                self._log.warning("key announcement left out", detail=str(refusal))
        self._reader.turn(self._clock())

    def _note_helper(self, *, answered: bool) -> None:
        now_s = self._clock()
        if answered:
            self._helper_seen_s = now_s
            self._troubles.end(Trouble.HELPER_AWAY, now_s)
        else:
            self._troubles.begin(Trouble.HELPER_AWAY, now_s, "the Helper does not answer")

    # Housekeeping

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = self._clock()
        if 0 <= now_s - self._done.get(what, -math.inf) < every_s:
            return False
        self._done[what] = now_s
        return True

    def _rotate(self) -> None:
        retention_s, stood = self._directory.longest_retention_s(), has_stood(self._clock)
        self._keys.rotate(self._clock(), retention_s, destroy=stood)

    def _housekeeping(self) -> None:
        if self._is_due("signed", STATUS_EVERY_S):
            self._read_signed()
        if self._is_due("announce", ANNOUNCE_EVERY_S):
            self._rotate()
            self._publisher.put_keys(self._keys.announcements(self._clock()))
            with suppress(TransportUnavailable):  # the next read says so
                self._note(self._publisher.put_again())
        if self._helper is not None and self._is_due("helper", ASK_HELPER_EVERY_S):
            self._calls.ask_status()
        if has_stood(self._clock) and self._is_due("prune", PRUNE_EVERY_S):
            self._state.prune(self._clock(), self._directory.longest_retention_s())
        if self._is_due("tidy", TIDY_EVERY_S):
            self._store.tidy(self._clock())

    def _read_signed(self, *, at_start: bool = False) -> None:
        self._signed.extend(self._folder.new_files())
        while self._signed:
            path, content = self._signed.popleft()
            try:
                self._take_signed(path, content, at_start)
            except ReportRejected as refusal:
                self._log.warning("refused", file=path.name, reason=refusal.reason.value)

    def _take_signed(self, path: Path, content: bytes, at_start: bool) -> None:
        if path.suffix == ENTRY_SUFFIX:
            self._publisher.put_entry(content)
            return
        task = path.suffix == TASK_SUFFIX
        owed = self._leader.handle(
            TaskSeen(content, self._clock(), at_start) if task else RosterSeen(content)
        )
        put = self._publisher.put_task if task else self._publisher.put_roster
        put(content)
        self._log.info("accepted", file=path.name)
        self._runner.carry_out(owed)

    def _say_status(self) -> None:
        """Say how things stand; on a full disk only to those who ask over HTTP."""
        with suppress(StorageUnavailable):
            self.health.document = self._status()
            health.write_status(self._config.status_file, self.health.document)

    def _status(self) -> dict[str, object]:
        leader, troubles = self._leader, self._troubles.document()
        return {
            **health.process_document(self._started_s, self._clock()),
            "ready": int(self._restored and leader.watch.level and not troubles),
            "troubles": troubles,
            "standby": 0,
            "log_lag": -1 if (lag := self._lag_of_all()) is None else lag,
            "last_windows": dict(self._last_windows),
            "helper_seen": int(self._helper_seen_s),
            "tasks": len(self._directory.tasks),
            "roster_version": max(self._directory.rosters, default=0),
            "epochs_open": len(leader.book),
            "windows_unsettled": leader.unsettled,
            "windows_released": leader.released,
            "windows_suppressed": dict(leader.suppressed),
            "reports_admitted": leader.admitted,
            "rejected": dict(leader.rejected),
            "dead_letters": leader.intake.letters.counts(),
            "disk_free": health.disk_free(
                {"state": self._config.state_dir, "releases": self._config.releases_dir}
            ),
            "stored": self._state.counts(),
            **self._reader.status(self._clock()),
        }
