"""Spark's batches without Spark: what it delivers, and delivers again, to the real sink."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from aggregator.leader.leader import Leader
from aggregator.protocol.directory import PinnedParties
from aggregator.spark.driver_state import PassInput
from aggregator.spark.executor import COLUMNS, Pass, TaskMemory, from_rows, gather_rows
from aggregator.spark.messages import Command, ReaderUpdate, encode_update
from aggregator.spark.partial_sums import Gathered
from aggregator.spark.spark_reader import SparkReader
from aggregator.spark.spark_runtime import SparkRuntime
from aggregator.spark.sum_store import SumStore
from tests.fault_notes import note
from tests.protocol_kit import Fleet, Log, World
from tests.reader_kit import PARTITIONS, learn
from transport.interface import Record, partition_of
from wire.envelope import Kind
from wire.topics import REPORTS


class Killed(Exception):
    """What stands for SIGKILL inside one process."""


class KillAt:
    """Raises `Killed` at a step, once."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if step == self.step:
            self.step = ""
            note(f"driver@{step}")
            raise Killed(step)


@dataclass(frozen=True)
class Held:
    value: Any


class GroupOffsets:
    def __init__(self, log: Log, name: str) -> None:
        self._log, self.name = log, name
        self.read_again: list[int] = []

    def identity(self) -> str:
        return self.name

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {part: (0, at) for part, at in enumerate(self._log.next)}

    def starts(self) -> dict[int, int]:
        return {
            part: self._log.committed.get((REPORTS, part), 0) for part in range(len(self._log.next))
        }

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._log.commit({(REPORTS, part): at for part, at in offsets.items()})

    def read(self, partition: int, offsets: Sequence[int]) -> list[Record]:
        self.read_again += offsets
        asked = {(partition, offset) for offset in offsets}
        return [r for r in self._log.records if (r.partition, r.offset) in asked]


@dataclass(frozen=True)
class PlannedBatch:
    """A batch of Spark's offset log: the same records, however often it is delivered."""

    records: Sequence[Record]
    parties: PinnedParties
    passes: list[PassInput]
    memory: TaskMemory

    def gather(self, told: PassInput, now_s: float) -> list[Gathered]:
        self.passes.append(told)
        commands = Held(pickle.loads(pickle.dumps(told.commands)))
        asked = Pass(b"s", len(self.passes), self.parties, [commands], Held(told.before), now_s)
        found: list[Gathered] = []
        for part in sorted({record.partition for record in self.records}):
            rows = [record for record in self.records if record.partition == part]
            made = list(gather_rows(asked, arrow_batches(rows), self.memory))
            if made:
                found += from_rows(pa.Table.from_batches(made))
        return found


def arrow_batches(records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(records), 3):
        group = records[at : at + 3]
        rows = [(r.partition, r.offset, r.value, int(r.appended_s * 1e6)) for r in group]
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], list(COLUMNS))


class Checkpoint:
    """What Spark keeps of a query: the plan and the end of each batch, and how many are done."""

    def __init__(self, query: str = "query") -> None:
        self.query = query
        self.plans: list[tuple[list[Record], dict[int, int]]] = []
        self.done = 0

    def ends(self) -> dict[int, int]:
        return self.plans[self.done - 1][1] if self.done else {}


class PipeInMemory:
    """Both ends of the pipe between the Leader's reader and its driver; bytes of each update."""

    def __init__(self) -> None:
        self._said: list[bytes | None] = []
        self._told: list[Sequence[Command]] = []
        self.updates: list[ReaderUpdate] = []
        self.refused: list[str] = []

    def begin(self) -> None:
        """Another driver has begun: nothing of what the last one said is taken any more."""
        self._said, self._told = [None], []

    # The Leader's end: `spark_reader.DriverPort`

    def said(self) -> Sequence[bytes | None]:
        said, self._said = self._said, []
        return said

    def tell(self, commands: Sequence[Command]) -> None:
        self._told.append(pickle.loads(pickle.dumps(list(commands))))

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)

    def close(self) -> None:
        """Nothing is open."""

    # The driver's end: `spark_runtime.LeaderPort`

    def say(self, update: ReaderUpdate) -> None:
        self.updates.append(update)
        self._said.append(encode_update(update))

    def commands(self) -> Sequence[Sequence[Command]]:
        told, self._told = self._told, []
        return told


class SparkDriver:
    """One life of the driver: the real shell and store, over a checkpoint that outlives it."""

    def __init__(
        self,
        fleet: SparkFleet,
        checkpoint: Checkpoint,
        step: str = "",
        most: int = 1000,
        name: str = "log",
    ) -> None:
        self.fleet, self.checkpoint, self.most = fleet, checkpoint, most
        self.kill = KillAt(step)
        self.store = SumStore(fleet.folder / "sums.sqlite")
        self.log = GroupOffsets(fleet.group, name)
        self.passes: list[PassInput] = []
        self.memory = TaskMemory()
        self.shell = SparkRuntime(
            fleet.pipe,
            fleet.world.parties,
            self.store,
            self.log,
            clock=fleet.clock,
            pause=self._pause,
            checkpoint=self.kill,
        )
        self.starts = self.shell.begin()
        self._speaking = False

    def _pause(self, _s: float) -> None:
        self.fleet.settle()
        if not self._speaking:
            self.speak()

    def speak(self) -> None:
        self._speaking = True
        try:
            self.shell.turn(self.checkpoint.ends())
        finally:
            self._speaking = False
        self.fleet.settle()

    def turn(self) -> None:
        self.speak()
        self.deliver()

    def deliver(self) -> None:
        """Deliver a batch as Spark does: planned, taken by the sink, done."""
        checkpoint = self.checkpoint
        if checkpoint.done == len(checkpoint.plans):
            planned, ends = self._plan()
            if ends == checkpoint.ends():
                return
            checkpoint.plans.append((planned, ends))
        number = checkpoint.done
        records, _ends = checkpoint.plans[number]
        source = checkpoint.query, number
        parties = self.fleet.world.parties
        batch = PlannedBatch(records, parties, self.passes, self.memory)
        self.shell.take(source, batch.gather)
        checkpoint.done = number + 1

    def _plan(self) -> tuple[list[Record], dict[int, int]]:
        """Up to `most` records after the last plan, and the offsets where they end."""
        at = dict(self.starts)
        if self.checkpoint.plans:
            at = dict(self.checkpoint.plans[-1][1])
        fresh = [r for r in self.fleet.group.records if r.offset >= at.get(r.partition, 0)]
        if len(fresh) <= self.most:
            return fresh, dict(enumerate(self.fleet.group.next))
        for record in fresh[: self.most]:
            at[record.partition] = record.offset + 1
        return fresh[: self.most], at

    def fall(self) -> None:
        self.fleet.drivers.remove(self)
        self.store.close()


class SparkFleet(Fleet):
    """A Leader whose reports Spark reads, and the Helper of `Fleet`."""

    def __init__(self, world: World, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.group = Log(REPORTS, PARTITIONS, partition_of)
        self.pipe = PipeInMemory()
        self.drivers: list[SparkDriver] = []
        super().__init__(world, folder)
        self.log = self.group

    def make_leader(self, *arguments: Any, **named: Any) -> Leader:
        return Leader(*arguments, reader=lambda leader: SparkReader(leader, self.pipe), **named)

    @property
    def reader(self) -> SparkReader:
        assert isinstance(self.leader.reader, SparkReader)
        return self.leader.reader

    def start_leader(self) -> None:
        super().start_leader()
        learn(self)

    def restart_leader(self) -> None:
        """Crash and come back: the driver ends with its Leader, and another begins."""
        self.state.close()
        self.start_leader()
        if self.drivers:
            self.drive(self.drivers[-1].checkpoint, most=self.drivers[-1].most)

    def drive(self, checkpoint: Checkpoint | None = None, **named: Any) -> SparkDriver:
        """Begin a driver; one that was there has fallen."""
        if self.drivers:
            self.drivers[-1].fall()
        self.pipe.begin()
        self.drivers.append(SparkDriver(self, checkpoint or Checkpoint(), **named))
        return self.drivers[-1]

    def settle(self) -> None:
        """What the Leader's loop does between two turns of the driver."""
        self.reader.turn(self.clock())
        self.runner.carry_out()
        while self.calls:
            self.runner.feed(self.call(self.calls.pop(0)))

    def quiesce(self, turns: int = 6) -> None:
        for _ in range(turns):
            self.drivers[-1].turn()

    def tick(self, at_s: float, lag: int | None = 0) -> None:
        self.clock.now_s = at_s
        super().tick(at_s, self.reader.lag(lag, at_s))
        self.settle()

    def publish(self, raw: Sequence[bytes], at_s: float) -> None:
        self.clock.now_s = at_s
        for report in raw:
            self.group.append(Kind.REPORT, report, report[:16])

    def close_slowly(self, at_s: float) -> None:
        for _ in range(2):
            self.tick(at_s)
            self.quiesce()
        self.tick(at_s)
