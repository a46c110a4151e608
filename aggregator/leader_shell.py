"""The Leader's process: the loop between the log, the state machine, the Helper and the store."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from privacy.signing import verify
from transport.port import (
    Consumer,
    Producer,
    TopicPartition,
    Transport,
    TransportUnavailable,
)
from wire import labels
from wire.envelope import Kind, wrap
from wire.keys import KeyAnnouncement
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer
from wire.signed import Signed
from wire.task import Task
from wire.topics import (
    ENTRIES,
    EPOCHS,
    KEYS,
    RELEASES,
    REPORTS,
    ROSTERS,
    TASKS,
    TOPICS,
    announcement_key,
    join_key,
    release_key,
    roster_key,
    task_key,
)

from .channel import ChannelHelper
from .config import LeaderConfig
from .directory import Directory, PinnedParties
from .events import (
    CallCountersign,
    CallHelper,
    EpochsArrived,
    HelperAway,
    LeaderEvent,
    ReportsArrived,
    RosterSeen,
    StoreSuppressed,
    TaskSeen,
    Tick,
)
from .helper_port import HelperPort, HelperUnavailable, call_countersign, call_helper
from .helper_shell import PRUNE_EVERY_S, STATUS_EVERY_S, write_status
from .key_ring import KeyRing
from .leader import Leader
from .leader_state import LeaderState
from .released import ReleaseStore
from .runners import Checkpoint, LeaderRunner, no_checkpoint, restore_leader
from .signed_folder import ENTRY_SUFFIX, TASK_SUFFIX, SignedFolder

GROUP: Final = "leader"
POLL_RECORDS: Final = 2000
POLL_S: Final = 0.1
ANNOUNCE_EVERY_S: Final = 300.0
RETRY_S: Final = 1.0
PUBLISHED_AT_ONCE: Final = 500


class LeaderShell:
    """One loop and one thread that calls the Helper; only the loop touches the state machine."""

    def __init__(
        self,
        config: LeaderConfig,
        transport: Transport,
        store: ReleaseStore,
        *,
        helper: HelperPort | None = None,
        clock: Callable[[], float] = time.time,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        """Open keys, state and the channel; call it after privileges are dropped.

        helper      None: the channel that the configuration names
        Raises      KeyFileRefused, StateUnusable, TransportUnavailable, OSError
        """
        self._config, self._transport, self._clock = config, transport, clock
        self._checkpoint = checkpoint
        self._log = structlog.get_logger("leader")
        self._stop = threading.Event()
        self._keys = KeyRing(config.key_dir)
        self._state = LeaderState(config.state_dir / "leader.sqlite")
        parties = PinnedParties(self._keys.identity.public_bytes, config.helper_pk)
        self._directory = Directory(parties)
        self._folder = SignedFolder(config.signed_dir, entries=True)
        if helper is None and config.helper is not None:
            helper = ChannelHelper(config.helper)
        self._helper = helper
        self._leader = Leader(
            self._directory,
            self._keys.identity,
            self._keys.pair,
            ledger_counters=self._state.counters(),
        )
        self._runner = LeaderRunner(
            self._leader,
            self._state,
            store,
            commit=self._commit,
            call=self._call,
            checkpoint=checkpoint,
            tell=self._tell_suppressed,
        )
        self._answers: queue.SimpleQueue[LeaderEvent] = queue.SimpleQueue()
        self._calls = ThreadPoolExecutor(max_workers=1, thread_name_prefix="helper-call")
        self._catching_up = True
        self._helper_seen_s = 0.0
        self._due: dict[str, float] = {}
        self._announced_by_helper: queue.SimpleQueue[tuple[bytes, ...]] = queue.SimpleQueue()
        self._published: set[bytes] = set()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    def stop(self) -> None:
        """End `run` soon; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Open windows stay in the log and come back at the next start."""
        self._start()
        try:
            while not self._stop.is_set():
                self._turn()
        finally:
            self._end()

    def _start(self) -> None:
        for topic in TOPICS:
            self._transport.create_topic(topic.name, topic.partitions)
        self._producer = self._transport.producer()
        self._keys.rotate(self._clock(), self._directory.longest_retention_s())
        self._read_signed(at_start=True)
        restore_leader(self._leader, self._state, self._clock())
        self._consumer = self._transport.consumer(GROUP, [EPOCHS, REPORTS])
        self._log.info("started", unsettled=self._leader.unsettled)

    def _end(self) -> None:
        self._calls.shutdown(wait=True, cancel_futures=True)
        with suppress(TransportUnavailable):
            for end in (self._consumer, self._producer):
                if end is not None:
                    end.close()
        self._write_status()
        self._state.close()
        if isinstance(self._helper, ChannelHelper):
            self._helper.close()
        self._log.info("stopped", unsettled=self._leader.unsettled)

    def _turn(self) -> None:
        """One round of the loop: log, answers, time, housekeeping."""
        try:
            self._poll()
            self._drain()
            self._runner.feed(Tick(self._clock(), self._catching_up))
            self._housekeeping()
        except TransportUnavailable as error:
            # Reports may come late through no fault of theirs: take them until retention ends.
            self._catching_up = True
            self._log.warning("transport away", error=str(error))
            self._stop.wait(RETRY_S)

    def _poll(self) -> None:
        if self._consumer is None:
            raise RuntimeError("poll: expected a started shell")
        records = self._consumer.poll(POLL_RECORDS, POLL_S)
        epochs = [record for record in records if record.topic == EPOCHS]
        reports = [record for record in records if record.topic == REPORTS]
        if epochs:
            self._runner.feed(EpochsArrived(epochs, self._clock()))
        if reports:
            self._runner.feed(ReportsArrived(reports, self._clock(), self._catching_up))
        if len(records) < POLL_RECORDS:
            self._catching_up = False

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._consumer is not None:
            self._consumer.commit(dict(offsets))

    def _tell_suppressed(self, effect: StoreSuppressed) -> None:
        """One line for each window without a release: how many hosts of how many, never which."""
        self._log.warning(
            "window suppressed",
            series=effect.series,
            cohort=effect.key.cohort,
            window=effect.key.window,
            reason=effect.reason,
            hosts=f"{effect.hosts} of n_min {effect.n_min}",
        )

    # The Helper, called from a thread of its own

    def _call(self, effect: CallHelper | CallCountersign) -> None:
        if isinstance(effect, CallHelper) and effect.wanted is not None:
            # The state file belongs to the loop's thread: read there, sent from the other.
            kept = list(self._state.epoch_bytes(list(effect.wanted)))
            self._calls.submit(self._answer, effect, kept)
        else:
            self._calls.submit(self._answer, effect, [])

    def _answer(self, effect: CallHelper | CallCountersign, epochs: list[bytes]) -> None:
        helper = self._helper
        if helper is None:
            self._answers.put(HelperAway(effect.key, self._clock()))
        elif isinstance(effect, CallHelper):
            self._answers.put(call_helper(helper, effect, lambda _wanted: epochs, self._clock))
        else:
            self._answers.put(call_countersign(helper, effect, self._clock))

    def _drain(self) -> None:
        while True:
            try:
                event = self._answers.get_nowait()
            except queue.Empty:
                return
            if not isinstance(event, HelperAway):
                self._helper_seen_s = self._clock()
            self._runner.feed(event)

    # Housekeeping

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True

    def _housekeeping(self) -> None:
        self._publish_releases()
        if self._is_due("status", STATUS_EVERY_S):
            self._read_signed()
            self._write_status()
        if self._is_due("announce", ANNOUNCE_EVERY_S):
            self._keys.rotate(self._clock(), self._directory.longest_retention_s())
            self._announce(self._keys.announcements(self._clock()))
            if self._helper is not None:
                self._calls.submit(self._ask_announcements, self._helper)
        while not self._announced_by_helper.empty():
            self._announce(self._announced_by_helper.get_nowait())
        if self._is_due("prune", PRUNE_EVERY_S):
            self._state.prune(self._clock(), self._directory.longest_retention_s())

    def _ask_announcements(self, helper: HelperPort) -> None:
        try:
            status = helper.status()
        except HelperUnavailable:
            self._due["announce"] = self._clock() + RETRY_S
            return
        self._helper_seen_s = self._clock()
        self._announced_by_helper.put(tuple(status.key_announcements))

    def _announce(self, announcements: Iterable[bytes]) -> None:
        """Publish sealing keys, each once; hosts check them against the identity they pinned."""
        for raw in announcements:
            try:
                key = KeyAnnouncement.decode(raw)
            except ReportRejected:
                continue
            if raw not in self._published:
                self._publish(
                    KEYS, announcement_key(key.party_pk, key.key_id), Kind.KEY_ANNOUNCEMENT, raw
                )

    def _publish(self, topic: str, key: bytes, kind: Kind, core: bytes) -> None:
        if self._producer is None:
            raise RuntimeError("publish: expected a started shell")
        self._producer.send(topic, key, wrap(kind, core))
        self._producer.flush()
        self._published.add(core)

    def _publish_releases(self) -> None:
        """Give the log what the transcript holds: at least once each, in the order of a chain."""
        final = self._state.to_publish(PUBLISHED_AT_ONCE)
        if not final or self._producer is None:
            return
        for one in final:
            key = release_key(one.series, one.cohort)
            self._producer.send(RELEASES, key, wrap(Kind.RELEASE, one.entry))
        self._producer.flush()
        self._checkpoint("between log and published")
        self._state.published(final[-1])

    def _read_signed(self, *, at_start: bool = False) -> None:
        for path, content in self._folder.new_files():
            task = path.suffix == TASK_SUFFIX
            now_s = self._clock()
            try:
                if path.suffix == ENTRY_SUFFIX:
                    self._publish_entry(content)
                    continue
                self._leader.handle(
                    TaskSeen(content, now_s, at_start) if task else RosterSeen(content)
                )
            except ReportRejected as refusal:
                self._log.warning("refused", file=path.name, reason=refusal.reason.value)
                continue
            self._log.info("accepted", file=path.name)
            if content in self._published:
                continue
            if task:
                signed = Signed.decode(content, labels.TASK)
                series = Task.decode_body(signed.body).series
                self._publish(TASKS, task_key(series), Kind.TASK, content)
            else:
                self._publish(ROSTERS, roster_key(), Kind.ROSTER, content)

    def _publish_entry(self, content: bytes) -> None:
        """Answer a join request on the log, once both parties have signed the answer."""
        signed = Signed.decode(content, labels.ENTRY_ANSWER)
        parties, message = self._directory.parties, signed.unsigned()
        if not verify(parties.leader_pk, message, signed.sig_leader) or not verify(
            parties.helper_pk, message, signed.sig_helper
        ):
            raise ReportRejected(Reason.ROSTER_SIGNATURE, "both parties' signatures", "others")
        host_pk = EntryAnswer.decode_body(signed.body).entry.ed25519_pk
        self._publish(ENTRIES, join_key(host_pk), Kind.ENTRY_ANSWER, content)

    def _write_status(self) -> None:
        leader = self._leader
        status = {
            "pid": os.getpid(),
            "time": int(self._clock()),
            "catching_up": self._catching_up,
            "helper_seen": int(self._helper_seen_s),
            "tasks": len(self._directory.tasks),
            "roster_version": max(self._directory.rosters, default=0),
            "epochs_open": len(leader.book),
            "windows_unsettled": leader.unsettled,
            "windows_released": leader.released,
            "windows_suppressed": dict(leader.suppressed),
            "reports_admitted": leader.admitted,
            "rejected": dict(leader.rejected),
            "stored": self._state.counts(),
        }
        write_status(self._config.status_file, status)
