"""Spark's batches without Spark: what it delivers, and delivers again, to the real sink."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from aggregator.protocol.directory import PinnedParties
from aggregator.spark.batch_rows import COLUMNS, from_rows
from aggregator.spark.executing import Pass, TaskMemory, gather_rows
from aggregator.spark.partial_sums import Gathered
from aggregator.spark.spark_shell import SparkShell
from aggregator.spark.sum_reader import PassInput
from aggregator.spark.sum_store import SumStore
from aggregator.workers.codec import encode_order
from tests.protocol_kit import World
from tests.workers_kit import PARTITIONS, GroupLog, LossyDesk, WorkersFleet
from transport.port import Record
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
            raise Killed(step)


@dataclass(frozen=True)
class Held:
    """A broadcast that went nowhere."""

    value: Any


class GroupOffsets:
    """The offsets of a log in memory."""

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self.read_again: list[int] = []

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {part: (0, len(records)) for part, records in enumerate(self._log.records)}

    def starts(self) -> dict[int, int]:
        return {part: self._log.committed.get((REPORTS, part), 0) for part in range(PARTITIONS)}

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._log.commit({(REPORTS, part): at for part, at in offsets.items()})

    def read(self, partition: int, offsets: Sequence[int]) -> list[Record]:
        self.read_again += offsets
        return [self._log.records[partition][at] for at in offsets]


@dataclass(frozen=True)
class PlannedBatch:
    """A batch of Spark's offset log: the same records, however often it is delivered."""

    source: tuple[str, int]
    records: Sequence[Record]
    parties: PinnedParties
    passes: list[PassInput]
    memory: TaskMemory

    def gather(self, told: PassInput, now_s: float) -> list[Gathered]:
        self.passes.append(told)
        raw = Held([encode_order(order).SerializeToString() for order in told.orders])
        asked = Pass(b"s", len(self.passes), self.parties, [raw], Held(told.before), now_s)
        found: list[Gathered] = []
        for part in range(PARTITIONS):
            rows = [record for record in self.records if record.partition == part]
            made = list(gather_rows(asked, arrow_batches(rows), self.memory))
            if made:
                found += from_rows(pa.Table.from_batches(made))
        return found


def arrow_batches(records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
    """Records as Spark hands them to Python, three at a time."""
    for at in range(0, len(records), 3):
        group = records[at : at + 3]
        rows = [(r.partition, r.offset, r.value, int(r.appended_s * 1e6)) for r in group]
        columns = [list(column) for column in zip(*rows, strict=True)]
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], list(COLUMNS))


class Checkpoint:
    """What Spark keeps of a query: the plan of each batch, and how many are done."""

    def __init__(self, query: str = "query") -> None:
        self.query = query
        self.plans: list[list[Record]] = []
        self.done = 0


class SparkDriver:
    """One life of the driver: the real shell and store, over a checkpoint that outlives it."""

    def __init__(
        self,
        fleet: SparkFleet,
        checkpoint: Checkpoint,
        step: str = "",
        most: int = 1000,
    ) -> None:
        self.fleet, self.checkpoint, self.most = fleet, checkpoint, most
        self.kill = KillAt(step)
        self.store = SumStore(fleet.folder / "sums.sqlite")
        self.log = GroupOffsets(fleet.group)
        self.way = LossyDesk(fleet, "spark")
        self.passes: list[PassInput] = []
        self.memory = TaskMemory()
        self.shell = SparkShell(
            self.way,
            fleet.world.parties,
            self.store,
            self.log,
            PARTITIONS,
            clock=fleet.clock,
            pause=self._pause,
            draw=lambda _n: next(fleet.draws),
            checkpoint=self.kill,
        )
        self.starts = self.shell.begin()
        self._speaking = False

    def _pause(self, _s: float) -> None:
        """What other threads do meanwhile."""
        self.fleet.settle_words()
        if not self._speaking:
            self.speak()

    def speak(self) -> None:
        self._speaking = True
        try:
            self.shell.turn()
        finally:
            self._speaking = False
        self.fleet.settle_words()

    def turn(self) -> None:
        self.speak()
        self.deliver()

    def deliver(self) -> None:
        """Deliver a batch as Spark does: planned, taken by the sink, done."""
        checkpoint = self.checkpoint
        if checkpoint.done == len(checkpoint.plans):
            planned = self._plan()
            if not planned:
                return
            checkpoint.plans.append(planned)
        number = checkpoint.done
        records = checkpoint.plans[number]
        source = checkpoint.query, number
        parties = self.fleet.world.parties
        self.shell.take(PlannedBatch(source, records, parties, self.passes, self.memory))
        checkpoint.done = number + 1

    def _plan(self) -> list[Record]:
        at = dict(self.starts)
        for record in itertools.chain.from_iterable(self.checkpoint.plans):
            at[record.partition] = record.offset + 1
        fresh = [r for r in self.fleet.group.in_order if r.offset >= at[r.partition]]
        return fresh[: self.most]

    def fall(self) -> None:
        """Nothing of the process is left."""
        self.fleet.drivers.remove(self)
        self.store.close()


class SparkFleet(WorkersFleet):
    """A coordinator whose reports Spark reads."""

    def __init__(self, world: World, folder: Path) -> None:
        self.folder = folder
        self.draws = (number.to_bytes(16, "big") for number in itertools.count(1 << 64))
        super().__init__(world, folder)
        self.drivers: list[SparkDriver] = []

    def drive(self, checkpoint: Checkpoint | None = None, **named: Any) -> SparkDriver:
        """Begin a driver; one that was there has fallen."""
        if self.drivers:
            self.drivers[-1].fall()
        self.drivers.append(SparkDriver(self, checkpoint or Checkpoint(), **named))
        return self.drivers[-1]

    def quiesce(self, turns: int = 6) -> None:
        for _ in range(turns):
            self.drivers[-1].turn()
