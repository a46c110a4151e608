"""The Helper's process: keys, state, channel, witnesses; of the log, releases at a start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final

import structlog

from aggregator.enrolment.tasks import TASK_SUFFIX, SignedFolder
from aggregator.party import health
from aggregator.party.channel import serve
from aggregator.party.config import HelperConfig
from aggregator.party.health import STATUS_EVERY_S, HealthMetric, Trouble
from aggregator.party.key_ring import KeyRing
from aggregator.protocol import interfaces
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import BatchReply, RosterSeen, TaskSeen
from aggregator.state.state_file import PRUNE_EVERY_S, StorageUnavailable
from aggregator.statistics.range_checks import SumRules
from aggregator.witness.backends import kinds_of_witnesses, open_witness
from aggregator.witness.chain import RollbackSeen, WitnessedChain, WitnessUnavailable
from privacy.signing import verify
from transport.factory import Side, open_transport
from transport.interface import Record, Transport, TransportUnavailable, UnknownTopic
from transport.process.supervision import Notifier, SteadyTime, has_stood
from wire.batch import SignedRelease
from wire.catalogue import Catalogue
from wire.envelope import Kind, unwrap
from wire.rejection import ReportRejected
from wire.topics import RELEASES, TOPICS

from .helper import Helper
from .helper_state import HelperState


class HelperRunner:
    """A Helper as `HelperPort`: settles with the witnesses before and after each answer."""

    def __init__(
        self,
        helper: Helper,
        clock: Callable[[], float],
        *,
        helper_pk: bytes,
        announcements: Callable[[], Sequence[bytes]] = tuple,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve one Helper.

        clock       its own, unix seconds
        settle      has each witness hold all that was committed; raises where it does not
        """
        self._helper, self._clock, self._settle = helper, clock, settle
        self._helper_pk, self._announcements = helper_pk, announcements
        self.batches_answered = 0
        self.asked_s = 0.0

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._helper.admit_epochs(epochs, self._begin())

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        """Answer a batch; FencedOut, StateUnusable and RollbackSeen must end the process.

        Raises      WitnessUnavailable: nothing left; the same batch is answered later
        """
        self._settle()
        now_s = self._begin()
        reply = self._helper.answer_batch(signed_batch, complete=epochs_complete, now_s=now_s)
        if reply.share:
            self._let_out()
            self._helper.checkpoint("after CommitAnswer")
            self.batches_answered += 1
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> interfaces.ReleaseReply:
        """Countersign a release, or refuse it; raises as `submit_batch` does."""
        self._settle()
        self._begin()
        reply = self._helper.countersign(entry, vector)
        if reply.entry:
            self._let_out()
        return reply

    def _let_out(self) -> None:
        self._helper.checkpoint("between commit and witness")
        self._settle()

    def _begin(self) -> float:
        self.asked_s = self._clock()
        self._helper.store_owed()
        return self.asked_s

    def status(self) -> interfaces.HelperStatus:
        return interfaces.HelperStatus(
            version=interfaces.PROTOCOL_VERSION,
            helper_pk=self._helper_pk,
            clock_s=int(self._clock()),
            roster_version=max(self._helper.directory.rosters, default=0),
            batches_answered=self.batches_answered,
            refused=dict(self._helper.refused),
            key_announcements=list(self._announcements()),
            takes_salt=True,
        )


GROUP: Final = "helper-releases"
"""It commits nothing: each start reads from the oldest release that the log still has."""

MOST_RECORDS: Final = 2_000_000
MOST_S: Final = 300.0
_POLL_RECORDS: Final = 2_000
_POLL_S: Final = 0.2
_MAX_BYTES: Final = next(topic.max_bytes for topic in TOPICS if topic.name == RELEASES)


def compare_releases(
    log: Transport, helper_pk: bytes, state: HelperState, alive: Callable[[], None]
) -> int:
    """Read the topic to its end.

    helper_pk   the Helper's own identity
    alive       called now and then: reading may take minutes
    Returns     records read; 0 where the log has no such topic
    Raises      RollbackSeen; TransportUnavailable, also where the end is not reached in bounds
    """
    try:
        consumer = log.consumer(GROUP, [RELEASES])
    except UnknownTopic:
        return 0
    read, until_s = 0, time.monotonic() + MOST_S
    with closing(consumer):
        while read < MOST_RECORDS and time.monotonic() < until_s:
            records = consumer.poll(_POLL_RECORDS, _POLL_S)
            for record in records:
                _compare(record, helper_pk, state)
            read += len(records)
            alive()
            if not records and consumer.lag() == 0:
                return read
    raise TransportUnavailable(
        f"{RELEASES}: expected its end within {MOST_RECORDS} records and {MOST_S:.0f} s, "
        f"read {read}"
    )


def _compare(record: Record, helper_pk: bytes, state: HelperState) -> None:
    try:
        kind, core = unwrap(record.value, _MAX_BYTES)
        signed = SignedRelease.decode(core)
    except ReportRejected:
        return
    entry = state.entry_of_batch(signed.release.batch_hash)
    known = entry is not None and SignedRelease.decode(entry).release == signed.release
    if kind is not Kind.RELEASE or known:
        return
    if not verify(helper_pk, signed.release.unsigned(), signed.sig_helper):
        return
    # A restore that was noticed before has closed the windows of all releases until then.
    if record.appended_s >= state.refuse_before_s:
        raise RollbackSeen(
            f"state: expected every release that this Helper signed, found one on the log, offset "
            f"{record.offset} of {RELEASES}, that it does not know: it was rolled "
            "back; nothing is answered: with a witness, start once with --after-restore; without "
            "one, set up a Helper with a new identity"
        )


FORGET_EVERY_S: Final = 60.0
_GRACE_S: Final = 5.0

MEASURES: Final = (
    health.trouble_measure(
        Trouble.STORAGE, Trouble.LOG_AWAY, Trouble.WITNESS_AWAY, Trouble.ROLLED_BACK
    ),
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("leader_seen", "leader_seen_seconds", "when the Leader last asked, unix time"),
    HealthMetric("batches_answered", "batches_answered", "since the start", counter=True),
    HealthMetric(
        "refused", "refused", "batches, releases and epochs refused", "reason", counter=True
    ),
    HealthMetric("cleared", "cleared", "hosts left out of batches", "reason", counter=True),
    HealthMetric("epochs_open", "epochs_open", "epochs whose keys are at hand"),
    HealthMetric("refuses_windows_before", "refuses_windows_before_seconds", "0, or when restored"),
    health.DISK_MEASURE,
)


_WAITED_OUT: Final = (
    (StorageUnavailable, Trouble.STORAGE),
    (TransportUnavailable, Trouble.LOG_AWAY),
    (WitnessUnavailable, Trouble.WITNESS_AWAY),
)


class HelperRuntime:
    """Serves until `stop`; every event of the state machine happens under one lock."""

    def __init__(
        self,
        config: HelperConfig,
        *,
        clock: Callable[[], float] | None = None,
        after_restore: bool = False,
        notifier: Notifier | None = None,
        checkpoint: interfaces.Checkpoint = interfaces.no_checkpoint,
    ) -> None:
        """Open keys and state; call it after privileges are dropped.

        clock           unix seconds; None: the machine's, steady
        after_restore   the operator knows that the state or machine was rolled back, and that no
                        other copy of this Helper runs
        notifier        tells systemd when it serves, and that it goes on

        Raises      KeyFileRefused, StateUnusable, OSError; WitnessUnavailable after a restore, or
                    where its library is lacking
        """
        clock = SteadyTime() if clock is None else clock
        self._config, self._clock = config, clock
        self._log = structlog.get_logger("helper")
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._keys = KeyRing(config.key_dir)
        self._state = HelperState(
            config.state_dir / "helper.sqlite",
            config.fence_file,
            clock(),
            linked_as=self._keys.identity.public_bytes if config.witnesses else None,
        )
        self._witnesses = [open_witness(one, self._keys.identity) for one in config.witnesses]
        self._chain = WitnessedChain(self._state, *self._witnesses)
        if after_restore:
            self._chain.after_restore(clock())
        self._compared = config.transport is None
        own_pk = self._keys.identity.public_bytes
        parties = PinnedParties(config.leader_pk, own_pk, config.fleet)
        catalogue = Catalogue.load()
        self._directory = Directory(parties, catalogue=catalogue)
        self._folder = SignedFolder(config.signed_dir)
        self._helper = Helper(
            self._directory,
            self._keys.identity,
            self._keys.pair,
            self._state,
            ledger_counters=self._state.counters(),
            seen_epochs=self._state.epochs(),
            sum_rules=SumRules(catalogue),
            checkpoint=checkpoint,
        )
        self._runner = HelperRunner(
            self._helper,
            clock,
            helper_pk=self._keys.identity.public_bytes,
            announcements=lambda: self._keys.announcements(clock()),
            settle=self._settle,
        )
        self._forgot_s = self._pruned_s = 0.0
        self._notifier = notifier or Notifier()
        self._troubles = health.Troubles(self._log)
        self.health = health.Health("helper", MEASURES)
        self._presence = health.Presence(config.status_file)
        self._started_s = clock()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped, or until an error after which nothing may be answered.

        Raises      FencedOut, StateUnusable, RollbackSeen or what else ended the service
        """
        try:
            self._serve()
        finally:
            with self._lock:
                self._say_status()
                self._state.close()
            for witness in self._witnesses:
                witness.close()
            self._presence.close()
            self._log.info("stopped")
        if self.error is not None:
            raise self.error

    def _serve(self) -> None:
        while not self._housekeeping(at_start=True):
            if self._stop.wait(STATUS_EVERY_S):
                return
        server = serve(self._runner, self._config.address, self._failed, self._lock)
        kinds = kinds_of_witnesses(self._config.witnesses)
        self._log.info("serving", fence=self._state.fence, witness=kinds)
        self._notifier.ready("serving")
        try:
            while not self._stop.wait(STATUS_EVERY_S):
                self._housekeeping()
        finally:
            self._notifier.stopping()
            server.stop(_GRACE_S).wait()

    def _failed(self, error: BaseException) -> bool:
        """Take what ended a call; says whether the Helper must end with it.

        A disk that takes nothing, a log or a witness that is away is waited out: nothing was
        answered, and the Leader asks again.
        """
        trouble = next((word for kind, word in _WAITED_OUT if isinstance(error, kind)), None)
        if trouble is not None:
            self._troubles.begin(trouble, self._clock(), str(error))
            return False
        if isinstance(error, RollbackSeen):
            self._troubles.begin(Trouble.ROLLED_BACK, self._clock(), str(error))
        self.error = error
        self._log.error("stops", error=type(error).__name__)
        self._stop.set()
        return True

    def _housekeeping(self, *, at_start: bool = False) -> bool:
        """Do what is due and say how things stand; False when the disk took nothing."""
        with self._lock:
            now_s = self._clock()
            try:
                self._read_signed(now_s, at_start)
                retention_s, stood = self._directory.longest_retention_s(), has_stood(self._clock)
                self._keys.rotate(now_s, retention_s, destroy=stood)
                self._helper.store_owed()
                if stood:
                    self._forget(now_s, retention_s)
                if Trouble.STORAGE in self._troubles.standing:
                    self._state.check_writable()
            except OSError as error:
                self._troubles.begin(Trouble.STORAGE, now_s, str(error))
            else:
                self._troubles.end(Trouble.STORAGE, now_s)
                self._look_outside(now_s)
            self._alive()
            self._say_status()
            return Trouble.STORAGE not in self._troubles.standing

    def _look_outside(self, now_s: float) -> None:
        """Compare the state with the log's releases, once, and with the witnesses.

        Raises      RollbackSeen, FencedOut
        """
        try:
            if not self._compared:
                self._compare_releases()
                self._compared = True
            self._troubles.end(Trouble.LOG_AWAY, now_s)
            self._chain.settle()
        except (TransportUnavailable, WitnessUnavailable) as error:
            log_away = isinstance(error, TransportUnavailable)
            trouble = Trouble.LOG_AWAY if log_away else Trouble.WITNESS_AWAY
            self._troubles.begin(trouble, now_s, str(error))
        except RollbackSeen as error:
            self._troubles.begin(Trouble.ROLLED_BACK, now_s, str(error))
            raise
        else:
            self._troubles.end(Trouble.WITNESS_AWAY, now_s)

    def _compare_releases(self) -> None:
        if self._config.transport is None:
            return
        own_pk = self._keys.identity.public_bytes
        with open_transport(self._config.transport, Side.AGGREGATOR) as log:
            read = compare_releases(log, own_pk, self._state, self._alive)
        self._log.info("releases compared", records=read)

    def _alive(self) -> None:
        self.health.turned()
        self._notifier.alive()

    def _settle(self) -> None:
        """Let nothing out before the state was compared and each witness holds it.

        Raises      TransportUnavailable, WitnessUnavailable, RollbackSeen
        """
        if not self._compared:
            raise TransportUnavailable("the releases on the log are still to be compared")
        self._chain.settle()

    def _forget(self, now_s: float, retention_s: int) -> None:
        """Drop keys soon, and look through the state file, which holds none, now and then."""
        if not 0 <= now_s - self._forgot_s <= FORGET_EVERY_S:
            self._helper.book.prune(now_s, retention_s)
            self._forgot_s = now_s
        if not 0 <= now_s - self._pruned_s <= PRUNE_EVERY_S:
            self._state.prune(now_s, retention_s)
            self._pruned_s = now_s

    def _read_signed(self, now_s: float, at_start: bool) -> None:
        for path, content in self._folder.new_files():
            task = path.suffix == TASK_SUFFIX
            try:
                self._helper.learn(
                    TaskSeen(content, now_s, at_start) if task else RosterSeen(content)
                )
            except ReportRejected as refusal:
                self._log.warning("refused", file=path.name, reason=refusal.reason.value)
            else:
                self._log.info("accepted", file=path.name)

    def _say_status(self) -> None:
        """Say how things stand; on a full disk only to those who ask over HTTP."""
        self.health.document = self._status()
        with suppress(StorageUnavailable):
            health.write_status(self._config.status_file, self.health.document)

    def _status(self) -> dict[str, object]:
        troubles = self._troubles.document()
        return {
            **health.process_document(self._started_s, self._clock()),
            "ready": int(not troubles),
            "troubles": troubles,
            "leader_seen": int(self._runner.asked_s),
            "fence": self._state.fence,
            "refuses_windows_before": self._state.refuse_before_s,
            "witness": kinds_of_witnesses(self._config.witnesses),
            "links": self._state.chain_end().sequence,
            "links_witnessed": self._chain.witnessed,
            "tasks": len(self._directory.tasks),
            "roster_version": max(self._directory.rosters, default=0),
            "epochs_open": len(self._helper.book),
            "batches_answered": self._runner.batches_answered,
            "refused": dict(self._helper.refused),
            "cleared": dict(self._helper.cleared),
            "disk_free": health.disk_free(
                {"state": self._config.state_dir, "fence": self._config.fence_file.parent}
            ),
            "stored": self._state.counts(),
        }
