"""A production Leader and Helper around a log, driven by the simulation's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import sign_roster, sign_task
from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import (
    CallCountersign,
    CallHelper,
    EpochsArrived,
    HelperAnswer,
    LeaderEvent,
    ReportsArrived,
    Settled,
    StoreSuppressed,
    Tick,
)
from aggregator.leader.leader_runner import LeaderRunner, call_helper
from aggregator.leader.leader_state import LeaderState
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import HelperPort
from aggregator.protocol.released import ReleasedWindow
from aggregator.statistics.possible_sums import SumRules
from privacy.masks import mask_into
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.port import Consumer, TopicPartition, Transport, create_topics
from wire.catalogue import Catalogue
from wire.epoch import KeyAnnouncement
from wire.fields import TaskId, key_id
from wire.roster import Roster
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

from .crew import Laps
from .exact_hosts import HostPapers
from .memory_store import MemoryStore

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
        self._told: list[StoreSuppressed] = []
        self._calls: list[CallHelper | CallCountersign] = []
        self._pruned_s = 0.0

    @property
    def public_keys(self) -> tuple[bytes, bytes]:
        """Identity keys of Leader and Helper."""
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
            commit=self._commit,
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
            for topic, event in ((EPOCHS, EpochsArrived), (REPORTS, ReportsArrived)):
                some = [record for record in records if record.topic == topic]
                if some:
                    self._runner.feed(event(some, self.now_s))
                    self.leader_laps(topic.rpartition(".")[2])
        return len(records)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.commit(dict(offsets))

    def _note(self, settled: Settled) -> None:
        if isinstance(settled, StoreSuppressed):
            self._told.append(settled)

    # Time

    def settle(self, now_s: float) -> tuple[list[ReleasedWindow], list[StoreSuppressed]]:
        """Let the clock reach now_s: freeze, ask the Helper, release; give what came of it."""
        self.now_s = now_s
        self._feed(Tick(now_s))
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

    def _feed(self, event: LeaderEvent) -> None:
        with self.leader_laps:
            self._runner.feed(event)
            self.leader_laps("freeze" if isinstance(event, Tick) else "release")

    def _answer(self, effect: CallHelper | CallCountersign) -> HelperAnswer:
        with self.helper_laps:
            wanted = effect.wanted if isinstance(effect, CallHelper) else None
            epochs = self._state.epoch_bytes(list(wanted or ()))
            came = call_helper(self._helper, effect, epochs, lambda: self.now_s)
            self.helper_laps("commit" if isinstance(effect, CallHelper) else "countersign")
            return came

    def _timed_mask(self, key: bytes, nonce: bytes, out: NDArray[np.uint32]) -> None:
        self.helper_laps("authenticate")
        mask_into(key, nonce, out)
        self.helper_laps("mask")

    def close(self) -> None:
        """Let files and the log go."""
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
        """See `HelperPort.submit_epochs`."""
        self._inner.submit_epochs(epochs)
        self._lap("epochs")


def _held(pair: HpkeKeyPair) -> Callable[[bytes], HpkeKeyPair | None]:
    own = key_id(pair.public_bytes)
    return lambda kid: pair if kid == own else None
