"""Workers and a coordinator in one process: a group's log in memory, and a fleet that reads it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import ReportsArrived, StoreRelease, StoreSuppressed
from aggregator.party.quotas import Quotas
from aggregator.protocol.party_events import RosterSeen, TaskSeen
from aggregator.workers.coordinator import Coordinator
from aggregator.workers.desk import Desk, Heard, Reply
from aggregator.workers.words import Word
from aggregator.workers.worker_port import CoordinatorUnavailable
from aggregator.workers.worker_shell import WorkerShell
from tests.protocol_kit import T0, Clock, Fleet, World
from transport.port import Producer, Record, TopicPartition, TransportUnavailable, partition_of
from wire.envelope import Kind, wrap
from wire.topics import REPORTS

PARTITIONS = 4


MANY_RETRIES = Quotas(retries=1000)
"""Ways to read a log are compared by what is refused, and not by how often."""


class GroupLog:
    """The report topic and one group; a test divides the partitions."""

    def __init__(self) -> None:
        self.records: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.in_order: list[Record] = []
        self.committed: dict[TopicPartition, int] = {}
        self.holders: dict[int, str] = {}
        self.away = False

    def append(self, kind: Kind, core: bytes, key: bytes, partition: int | None = None) -> Record:
        """Append by the key, or to a partition that a lying broker chose."""
        part = partition_of(key, PARTITIONS) if partition is None else partition
        offset = len(self.records[part])
        record = Record(REPORTS, part, offset, key, wrap(kind, core), float(T0))
        self.records[part].append(record)
        self.in_order.append(record)
        return record

    def mark(self, partition: int) -> None:
        """Take an offset that is no record, as the end of a transaction is on Kafka."""
        self.records[partition].append(Record(REPORTS, partition, -1, b"", b"", 0.0))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed.update(offsets)

    def uncommitted(self) -> list[Record]:
        return [
            record
            for record in self.in_order
            if record.offset >= self.committed.get((record.topic, record.partition), 0)
        ]


class GroupMember:
    """One member's transport and consumer in one; it learns of another division as it polls."""

    def __init__(self, log: GroupLog, name: str) -> None:
        self._log, self._name = log, name
        self._at: dict[TopicPartition, int] = {}

    def consumer(self, group: str, topics: Sequence[str]) -> GroupMember:
        assert (group, list(topics)) == ("leader", [REPORTS])
        return self

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        del timeout_s
        if self._log.away:
            raise TransportUnavailable("away")
        held = {(REPORTS, part) for part, who in self._log.holders.items() if who == self._name}
        fresh = {slot: self._log.committed.get(slot, 0) for slot in held}
        self._at = fresh | {slot: at for slot, at in self._at.items() if slot in held}
        found: list[Record] = []
        for (topic, part), at in self._at.items():
            records = self._log.records[part][at : at + max(0, max_records - len(found))]
            self._at[topic, part] = at + len(records)
            found += [record for record in records if record.offset >= 0]
        return found

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self._log.commit(
            {slot: at for slot, at in offsets.items() if self._log.holders[slot[1]] == self._name}
        )

    def seek_to_committed(self) -> None:
        self._at = {slot: self._log.committed.get(slot, 0) for slot in self._at}

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._at)

    def lag(self) -> int | None:
        return sum(len(self._log.records[part]) - at for (_, part), at in self._at.items())

    report_partitions = PARTITIONS

    def create_topic(self, name: str, partitions: int) -> None:
        raise NotImplementedError

    def partitions(self, topic: str) -> int:
        raise NotImplementedError

    def producer(self) -> Producer:
        raise NotImplementedError

    def close(self) -> None:
        self._at = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LossyDesk:
    """The way to the coordinator: `lose` says which words or answers are lost, once each."""

    def __init__(self, fleet: WorkersFleet, name: str) -> None:
        self._fleet, self._name = fleet, name
        self.lose: list[str] = []
        self.words: list[Word] = []

    def exchange(self, worker: str, sequence: int, word: Word) -> Reply:
        lost = self.lose.pop() if self.lose else ""
        if lost == "word":
            raise CoordinatorUnavailable("lost")
        self.words.append(word)
        reply = self._fleet.desk.exchange(worker, sequence, word)
        if lost == "answer":
            raise CoordinatorUnavailable("lost")
        return reply


class WorkersFleet(Fleet):
    """A coordinator with workers, and the Helper of `Fleet`."""

    make_leader: Callable[..., Leader] = partial(Coordinator, partitions=PARTITIONS)
    leader: Coordinator
    quotas: Quotas = MANY_RETRIES
    """Of each worker that is added."""

    def __init__(self, world: World, folder: Path) -> None:
        self.workers: dict[str, WorkerShell] = {}
        self.ways: dict[str, LossyDesk] = {}
        self._names = (f"worker-{number}" for number in itertools.count())
        self._draws = (number.to_bytes(16, "big") for number in itertools.count())
        self.group = GroupLog()
        super().__init__(world, folder)
        self.log = self.group  # type: ignore[assignment]

    def start_leader(self, *arguments: object) -> None:
        self.desk = Desk(lambda: 0.0)
        super().start_leader(*arguments)  # type: ignore[arg-type]
        self.leader.restored()
        learn(self)

    def restart_leader(self) -> None:
        """Crash and come back; workers find that their sessions are over."""
        self.state.close()
        self.start_leader()

    def _note(self, settled: StoreRelease | StoreSuppressed) -> None:
        super()._note(settled)
        self.leader.note_settled(settled.key)

    def add_worker(self) -> str:
        name = next(self._names)
        way = self.ways[name] = LossyDesk(self, name)
        self.workers[name] = WorkerShell(
            GroupMember(self.group, name),
            way,
            self.world.parties,
            quotas=self.quotas,
            clock=self.clock,
            pause=lambda _s: self.settle_words(),
            draw=lambda _n: next(self._draws),
        )
        return name

    def kill(self, name: str) -> None:
        """It says nothing any more; its partitions stay with it until they are divided anew."""
        del self.workers[name], self.ways[name]

    def divide(self, holders: Mapping[int, str]) -> None:
        self.group.holders = dict(holders)

    def divide_evenly(self) -> None:
        names = sorted(self.workers)
        self.divide({part: names[part % len(names)] for part in range(PARTITIONS)})

    def settle_words(self) -> None:
        """What the coordinator's loop does between two turns: take words, give orders."""
        for heard in self.desk.take():
            self.hear(heard)
        for worker, orders in self.leader.orders():
            self.desk.put(worker, orders)

    def hear(self, heard: Heard) -> None:
        if heard.joined:
            self.leader.join(heard.worker)
        elif heard.word is None:
            self.leader.leave(heard.worker)
        else:
            self.runner.carry_out(self.leader.hear(heard.worker, heard.word, self.clock()))
            self.answer_calls()

    def answer_calls(self) -> None:
        while self.calls:
            self.runner.feed(self.call(self.calls.pop(0)))

    def turn(self, name: str) -> None:
        self.workers[name].turn()
        self.settle_words()

    def quiesce(self, turns: int = 6) -> None:
        """Until everybody has read and said everything."""
        for _ in range(turns):
            for name in list(self.workers):
                self.turn(name)

    def tick(self, at_s: float, lag: int | None = 0) -> None:
        self.clock.now_s = at_s
        super().tick(at_s, self.leader.lag(lag, at_s))
        self.settle_words()


class OneProcess(Fleet):
    """A Leader without workers, over the same kind of log."""

    make_leader: Callable[..., Leader] = partial(Leader, quotas=MANY_RETRIES)

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world, folder)
        learn(self)

    def read(self, records: Sequence[Record]) -> None:
        self.feed(ReportsArrived(records, self.clock()))


def learn(fleet: Fleet) -> None:
    """Take task and roster as a shell does."""
    fleet.runner.feed(TaskSeen(fleet.world.task_bytes, T0))
    fleet.runner.feed(RosterSeen(fleet.world.roster_bytes))


def what_came(fleet: Fleet) -> list[tuple[int, bytes, bytes, list[int], int]]:
    """Of each window its signed batch, the release under both signatures, the vector and n."""
    rows = fleet.state._tables.execute(
        'SELECT "window", batch, entry FROM windows WHERE state = ? ORDER BY "window"',
        ("released",),
    )
    vectors = {w.window_start_s: (w.vector.tolist(), w.n) for w in fleet.store.written}
    return [(window, batch, entry, *vectors[window]) for window, batch, entry in rows]


__all__ = ["PARTITIONS", "Clock", "OneProcess", "WorkersFleet", "learn", "what_came"]
