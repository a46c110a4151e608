"""Every report encoded, sealed, sent, opened, summed and released by production code."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import sign_roster, sign_task
from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import HelperState
from aggregator.leader import leader_events as events
from aggregator.leader.leader import Leader
from aggregator.leader.leader_runner import LeaderRunner, call_helper
from aggregator.leader.leader_state import LeaderState
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import HelperPort
from aggregator.protocol.released import ReleasedWindow
from aggregator.statistics.range_checks import SumRules
from privacy.masks import mask_into
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from simulator.fleet.hosts import FleetState, HostInventory
from simulator.simulated_hosts import fleet_members, memberships, roster_of
from transport.embedded.embedded import EmbeddedLog
from transport.factory import EmbeddedSettings, Side, TransportSettings, open_transport
from transport.interface import Consumer, Transport, create_topics
from wire.catalogue import Catalogue
from wire.epoch import KeyAnnouncement
from wire.fields import TaskId, key_id
from wire.rejection import Reason
from wire.roster import FleetName, Roster
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

from .blocks import spans
from .exact_hosts import ExactHosts, HostPapers, Sent
from .interface import EngineSettings, MemoryStore, RowSource, WindowOutcome
from .task_rules import merged, summed
from .worker_pool import Laps, PooledEngine

_GROUP: Final = "leader"
_POLL_RECORDS: Final = 2000
_DAY_S: Final = 86_400
_PRUNE_EVERY_S: Final = 3600


class ExactParties:
    """Both aggregators of one simulation, with throw-away identities."""

    def __init__(self) -> None:
        self.leader_key, self.helper_key = SigningKey.generate(), SigningKey.generate()
        self._leader_box, self._helper_box = HpkeKeyPair.generate(), HpkeKeyPair.generate()
        self.now_s = 0.0
        self.leader_laps, self.helper_laps = Laps("leader."), Laps("helper.")
        self._store = MemoryStore()
        self._told: list[events.StoreSuppressed] = []
        self._calls: list[events.CallHelper | events.CallCountersign] = []
        self._pruned_s = 0.0

    @property
    def public_keys(self) -> tuple[bytes, bytes]:
        return self.leader_key.public_bytes, self.helper_key.public_bytes

    def start(
        self,
        tasks: list[Task],
        roster: Roster,
        log: Transport,
        folder: Path,
        span: tuple[int, int],
        wrap_helper: Callable[[HelperPort], HelperPort] = lambda port: port,
    ) -> tuple[HostPapers, dict[str, TaskId]]:
        """Sign everything, open both parties' states, join the log.

        span        Unix seconds, [first, end), for which the sealing keys are announced
        Returns     what hosts are told, and each series' task id
        """
        self.now_s = float(span[0])
        signed = {task.series: sign_task(task, self.leader_key, self.helper_key) for task in tasks}
        papers = [raw for _, raw in signed.values()]
        roster_bytes = sign_roster(roster, self.leader_key, self.helper_key)
        create_topics(log)
        self._consumer: Consumer = log.consumer(_GROUP, [EPOCHS, REPORTS])
        self._state = LeaderState(folder / "leader.sqlite")
        self._helper_state = HelperState(folder / "helper.sqlite", folder / "helper.fence", span[0])
        rules = SumRules(Catalogue.load())
        self.leader = Leader(
            self._directory(papers, roster_bytes, span[0]),
            self.leader_key,
            _held(self._leader_box),
            sum_rules=rules,
            stopwatch=self.leader_laps,
        )
        self._runner = LeaderRunner(
            self.leader,
            self._state,
            self._store,
            commit=lambda offsets: self._consumer.commit(dict(offsets)),
            call=self._calls.append,
            tell=self._note,
        )
        self.helper = Helper(
            self._directory(papers, roster_bytes, span[0]),
            self.helper_key,
            _held(self._helper_box),
            self._helper_state,
            sum_rules=rules,
            mask_into=self._timed_mask,
            stopwatch=self.helper_laps,
        )
        helper_pk = self.helper_key.public_bytes
        runner = HelperRunner(self.helper, lambda: self.now_s, helper_pk=helper_pk)
        self._helper = wrap_helper(_Timed(runner, self.helper_laps))
        n_min = min(task.n_min for task in tasks)
        keys = self._announcements(span)
        said = HostPapers(tuple(papers), roster_bytes, keys, *self.public_keys, n_min, span[0])
        return said, {series: identity for series, (identity, _) in signed.items()}

    def _directory(self, tasks: list[bytes], roster: bytes, now_s: int) -> Directory:
        directory = Directory(PinnedParties(*self.public_keys))
        for task in tasks:
            directory.add_task(task, now_s)
        directory.add_roster(roster)
        return directory

    def _announcements(self, span: tuple[int, int]) -> tuple[KeyAnnouncement, ...]:
        """Announce one pair of keys for the whole run: they live no longer than it does."""
        pairs = ((self.leader_key, self._leader_box), (self.helper_key, self._helper_box))
        found = []
        for party, box in pairs:
            bare = KeyAnnouncement(
                party.public_bytes, box.public_bytes, span[0] - _DAY_S, span[1] + _DAY_S
            )
            found.append(replace(bare, signature=party.sign(bare.unsigned())))
        return tuple(found)

    # The log

    def read(self, timeout_s: float) -> int:
        """Take what the log has, at most one poll; give how many records."""
        with self.leader_laps:
            records = self._consumer.poll(_POLL_RECORDS, timeout_s)
            self.leader_laps("log")
            for topic, event in ((EPOCHS, events.EpochsArrived), (REPORTS, events.ReportsArrived)):
                some = [record for record in records if record.topic == topic]
                if some:
                    self._runner.feed(event(some, self.now_s))
                    self.leader_laps(topic.rpartition(".")[2])
        return len(records)

    def _note(self, settled: events.Settled) -> None:
        if isinstance(settled, events.StoreSuppressed):
            self._told.append(settled)

    # Time

    def settle(self, now_s: float) -> tuple[list[ReleasedWindow], list[events.StoreSuppressed]]:
        """Let the clock reach now_s: freeze, ask the Helper, release; give what came of it."""
        self.now_s = now_s
        self._feed(events.Tick(now_s))
        while self._calls:
            self._feed(self._answer(self._calls.pop(0)))
        if now_s - self._pruned_s > _PRUNE_EVERY_S:
            self._state.prune(now_s, self.leader.directory.longest_retention_s())
            self._pruned_s = now_s
        released, told = list(self._store.written), list(self._told)
        self._store.written.clear()
        self._store.suppressed.clear()
        self._told.clear()
        return released, told

    def _feed(self, event: events.LeaderEvent) -> None:
        with self.leader_laps:
            self._runner.feed(event)
            self.leader_laps("freeze" if isinstance(event, events.Tick) else "release")

    def _answer(self, effect: events.CallHelper | events.CallCountersign) -> events.HelperAnswer:
        with self.helper_laps:
            wanted = effect.wanted if isinstance(effect, events.CallHelper) else None
            epochs = self._state.epoch_bytes(list(wanted or ()))
            came = call_helper(self._helper, effect, epochs, lambda: self.now_s)
            self.helper_laps("commit" if isinstance(effect, events.CallHelper) else "countersign")
            return came

    def _timed_mask(self, key: bytes, nonce: bytes, out: NDArray[np.uint32]) -> None:
        self.helper_laps("authenticate")
        mask_into(key, nonce, out)
        self.helper_laps("mask")

    def close(self) -> None:
        for held in ("_consumer", "_state", "_helper_state"):
            opened = getattr(self, held, None)
            if opened is not None:
                opened.close()


class _Timed:
    """A Helper whose opening of epochs is timed apart from its judging of batches."""

    def __init__(self, inner: HelperPort, lap: Laps) -> None:
        self._inner, self._lap = inner, lap
        self.submit_batch = inner.submit_batch
        self.submit_release = inner.submit_release
        self.status = inner.status

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._inner.submit_epochs(epochs)
        self._lap("epochs")


def _held(pair: HpkeKeyPair) -> Callable[[bytes], HpkeKeyPair | None]:
    own = key_id(pair.public_bytes)
    return lambda kid: pair if kid == own else None


_POLL_S: Final = 0.02
_PURGE_BYTES: Final = 512 << 20
_SETTLE_S: Final = 1
_PATIENCE_S: Final = 30.0
_EMPTY_POLLS: Final = 2
"""A broker's poll may come back empty while records are under way."""


@dataclass(frozen=True, slots=True)
class Tampering:
    """Hooks of `exact`; without any, everybody is honest.

    helper      around the Leader's way to its Helper
    transport   around the hosts' way to the log, in each of their processes: to be pickled
    """

    helper: Callable[[HelperPort], HelperPort] = lambda port: port
    transport: Callable[[Transport], Transport] | None = None


HONEST: Final = Tampering()


class LogFellShort(RuntimeError):
    """The log delivered fewer records than were sent."""


class ExactEngine(PooledEngine[ExactHosts]):
    """Production participants in processes of their own, Leader and Helper here."""

    def __init__(
        self,
        parties: ExactParties,
        tasks: list[Task],
        inventory: HostInventory,
        span: tuple[int, int],
        settings: EngineSettings,
        tampering: Tampering = HONEST,
    ) -> None:
        """Make every host's keys, enrol the hosts, sign roster and tasks of `parties`' keys."""
        self._scratch = TemporaryDirectory(prefix="pointillist-exact-", dir=settings.folder)
        folder = Path(self._scratch.name)
        # A log that holds nothing yet: a file, or topics of their own on the broker.
        transport: TransportSettings = EmbeddedSettings(folder / "log")
        if (kafka := settings.kafka) is not None:
            transport = replace(kafka, prefix=f"{kafka.prefix}{secrets.token_hex(4)}.")
        parts = spans(inventory.hosts, settings.block_hosts, settings.processes)
        self._log = open_transport(transport, Side.AGGREGATOR)
        super().__init__(
            [
                partial(ExactHosts, number, part, settings, folder, transport, tampering.transport)
                for number, part in enumerate(parts)
            ]
        )
        self._parties = parties
        keys = [key for part in self._pool.call("public_keys") for key in part]
        roster = make_roster(keys, inventory, tasks)
        papers, self._ids = parties.start(tasks, roster, self._log, folder, span, tampering.helper)
        self._pool.call("take", papers)
        self._faithful = tampering.transport is None
        self._unpurged = 0

    def window(
        self, task: Task, window_start: int, state: FleetState, rows: RowSource
    ) -> WindowOutcome:
        self._learn(task.series, rows)
        before = self._counters()
        end_s = window_start + task.window_s
        self._parties.now_s = float(end_s)
        self._pool.start("window", self._ids[task.series], task, state, end_s)
        got = 0
        while self._pool.working():  # the log is read while the hosts still write to it
            got += self._parties.read(_POLL_S)
        sent: list[Sent] = self._pool.results()
        self._drain(sum(part.sent for part in sent) - got)
        released, told = self._parties.settle(end_s + task.lateness_s + _SETTLE_S)
        if any(part.held for part in sent):
            self._drain(sum(self._pool.call("send_late")))
            # What still waits for an epoch, or is late, is counted now.
            more = self._parties.settle(end_s + task.lateness_s + _SETTLE_S)
            released, told = released + more[0], told + more[1]
        self._purge(sum(part.sent for part in sent) * 4 * task.d)
        return self._outcome(task, window_start, state, sent, before, (released, told))

    def _drain(self, expected: int) -> None:
        """Read to the log's end.

        expected    records on it that were not read; a network that tampers may hold fewer or more
        Raises      LogFellShort when they do not come
        """
        deadline = time.monotonic() + _PATIENCE_S
        empty = 0
        while expected > 0 or empty < _EMPTY_POLLS:
            got = self._parties.read(_POLL_S)
            expected -= got
            if got:
                deadline, empty = time.monotonic() + _PATIENCE_S, 0
                continue
            empty += 1
            if not self._faithful and empty >= _EMPTY_POLLS:
                return
            if time.monotonic() > deadline:
                raise LogFellShort(f"expected {expected} more records on the log, got none")

    def _counters(self) -> Counter[str]:
        parties = self._parties
        return Counter(parties.leader.rejected) + parties.helper.refused + parties.helper.cleared

    def _outcome(
        self,
        task: Task,
        start: int,
        state: FleetState,
        sent: list[Sent],
        before: Counter[str],
        settled: tuple[list[ReleasedWindow], list[events.StoreSuppressed]],
    ) -> WindowOutcome:
        refused = self._counters()
        refused.subtract(before)
        for part in sent:
            refused.update(part.withheld)
        truth = summed([part.truth for part in sent])
        laps = (self._parties.leader_laps, self._parties.helper_laps)
        stages = merged([*(part.stage_s for part in sent), *(lap.take() for lap in laps)])
        released = next(
            (release for release in settled[0] if release.window_start_s == start), None
        )
        series = task.series
        # A window with too few hosts waits for more: it is settled while a later one is played.
        told = (
            suppressed.reason
            for suppressed in settled[1]
            if (suppressed.series, suppressed.key.window) == (series, start)
        )
        reason = next(told, Reason.N_MIN.value)
        return WindowOutcome(
            start,
            None if released is None else released.vector,
            0 if released is None else released.n,
            {name: count for name, count in refused.items() if count},
            reason if released is None else "",
            task,
            stages,
            truth,
            int(np.count_nonzero(state.reporting)),
            1,
            None if released is None else released.capacity,
        )

    def _purge(self, size: int) -> None:
        """Delete what was read: a day of 100,000 GPUs would lay 70 GB on the disk."""
        self._unpurged += size
        if isinstance(self._log, EmbeddedLog) and self._unpurged > _PURGE_BYTES:
            self._log.purge(time.time())
            self._unpurged = 0

    def close(self) -> None:
        super().close()
        self._parties.close()
        self._log.close()
        self._scratch.cleanup()


def make_roster(keys: list[bytes], inventory: HostInventory, tasks: list[Task]) -> Roster:
    """Enrol every host of an inventory in every task; keys are in the fleet's order."""
    fleet = FleetName(tasks[0].leader_pk, tasks[0].helper_pk, "simulated")
    return roster_of(fleet_members(keys, inventory), memberships(tasks), fleet=fleet)
