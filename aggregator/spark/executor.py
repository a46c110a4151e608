"""What runs inside an executor of Spark: one pass over one partition's part of a batch.

A Python process of Spark serves many passes; what the Leader said is kept between them, and a pass
brings what is new of it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from aggregator.protocol.directory import PinnedParties
from transport.interface import Record
from wire.topics import REPORTS

from .partial_sums import Gathered, Gatherer, KnownHosts

COLUMNS: Final = ("partition", "offset", "value", "appended_us")

ARROW: Final = pa.schema([("gathered", pa.binary())])
"""One row for each partition of the report topic. An executor is the driver's own: like Spark, the
driver unpickles what it gives."""


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in COLUMNS)
    for partition, offset, value, appended_us in zip(*columns, strict=True):
        yield Record(REPORTS, partition, offset, b"", value or b"", appended_us / 1e6)


def from_rows(table: pa.Table) -> list[Gathered]:
    return [pickle.loads(row) for row in table.column("gathered").to_pylist()]  # noqa: S301


@dataclass(frozen=True, slots=True)
class Pass:
    """What an executor is given; commands and hosts are broadcast, as they are the same for all.

    session      names the driver's process, and with `generation` what was said
    commands     Broadcast of commands, each; those of a generation in its order
    before       Broadcast of partition -> hosts that are in a sum
    now_s        when the pass began, by the driver's clock
    """

    session: bytes
    generation: int
    parties: PinnedParties
    commands: Sequence[Any]
    before: Any
    now_s: float


class TaskMemory:
    """What this process was told, of the newest generation alone."""

    def __init__(self) -> None:
        self._generation: tuple[bytes, int] | None = None
        self._gatherer: Gatherer | None = None
        self._told = 0

    def gatherer(self, asked: Pass) -> Gatherer:
        generation = asked.session, asked.generation
        if (
            self._gatherer is None
            or self._generation != generation
            or self._told > len(asked.commands)
        ):
            self._gatherer, self._told = Gatherer(asked.parties), 0
            self._generation = generation
        for commands in asked.commands[self._told :]:
            self._gatherer.handle(commands.value, asked.now_s)
            self._told += 1
        return self._gatherer


_MEMORY = TaskMemory()


def gather_rows(
    asked: Pass, batches: Iterable[pa.RecordBatch], memory: TaskMemory = _MEMORY
) -> Iterator[pa.RecordBatch]:
    records = chain.from_iterable(map(records_of, batches))
    first = next(records, None)
    if first is None:
        return
    before: Mapping[int, KnownHosts] = asked.before.value
    found = memory.gatherer(asked).gather(
        first.partition, chain([first], records), before.get(first.partition, {}), asked.now_s
    )
    yield pa.RecordBatch.from_pylist([{"gathered": pickle.dumps(found)}], schema=ARROW)
