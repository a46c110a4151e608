"""What runs inside an executor of Spark: one pass over one partition's part of a batch.

Its process serves many passes and keeps what the Leader said; a pass brings what is new of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from aggregator.leader.admission import Parked
from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import BatchKey
from transport.interface import Record
from wire.topics import REPORTS

from .partial_sums import Gathered, Gatherer, KnownHosts, PartialSum

COLUMNS: Final = ("partition", "offset", "value", "appended_us")

_KEY_FIELDS: Final = [("task", pa.binary()), ("cohort", pa.int64()), ("window", pa.int64())]
_REASONS: Final = pa.map_(pa.string(), pa.int64())
ARROW: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("after", pa.int64()),
        ("appended_s", pa.list_(pa.float64())),
        ("rejected", _REASONS),
        (
            "sums",
            pa.list_(
                pa.struct(
                    [
                        *_KEY_FIELDS,
                        ("first", pa.int64()),
                        ("until_s", pa.int64()),
                        ("received_s", pa.float64()),
                        ("entries", pa.binary()),
                        ("records", pa.binary()),
                        ("offsets", pa.list_(pa.int64())),
                        ("late_s", pa.float64()),
                        ("reasons", _REASONS),
                        ("vector", pa.binary()),
                    ]
                )
            ),
        ),
        (
            "parked",
            pa.list_(
                pa.struct(
                    [
                        *_KEY_FIELDS,
                        ("offset", pa.int64()),
                        ("value", pa.binary()),
                        ("appended_s", pa.float64()),
                        ("received_s", pa.float64()),
                        ("name", pa.binary()),
                    ]
                )
            ),
        ),
    ]
)
"""One row for each partition of the report topic. Columns, not pickles: an executor may run on
another machine, and the driver as the Leader's user."""


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in COLUMNS)
    for partition, offset, value, appended_us in zip(*columns, strict=True):
        yield Record(REPORTS, partition, offset, b"", value or b"", appended_us / 1e6)


def to_row(found: Gathered) -> pa.RecordBatch:
    row = {
        "partition": found.partition,
        "after": found.after,
        "appended_s": list(found.appended_s),
        "rejected": list(found.rejected.items()),
        "sums": [_sum_row(part) for part in found.sums],
        "parked": [_parked_row(report) for report in found.parked],
    }
    return pa.RecordBatch.from_pylist([row], schema=ARROW)


def from_rows(table: pa.Table) -> list[Gathered]:
    return [
        Gathered(
            row["partition"],
            row["after"],
            tuple(_sum_of(row["partition"], part) for part in row["sums"]),
            tuple(_parked_of(row["partition"], report) for report in row["parked"]),
            tuple(row["appended_s"]),
            dict(row["rejected"]),
        )
        for row in table.to_pylist()
    ]


def _key_row(key: BatchKey) -> dict[str, Any]:
    return {"task": bytes(key.task_id), "cohort": key.cohort, "window": key.window}


def _key_of(row: Mapping[str, Any]) -> BatchKey:
    return BatchKey(row["task"], row["cohort"], row["window"])


def _sum_row(part: PartialSum) -> dict[str, Any]:
    return _key_row(part.key) | {
        "first": part.first,
        "until_s": part.until_s,
        "received_s": part.received_s,
        "entries": part.entries,
        "records": part.records,
        "offsets": list(part.offsets),
        "late_s": part.late_s,
        "reasons": list(part.reasons.items()),
        "vector": part.vector,
    }


def _sum_of(partition: int, row: Mapping[str, Any]) -> PartialSum:
    return PartialSum(
        *(_key_of(row), partition, row["entries"], row["late_s"]),
        *(row["first"], row["until_s"], row["received_s"], row["records"]),
        *(tuple(row["offsets"]), dict(row["reasons"]), row["vector"]),
    )


def _parked_row(report: Parked) -> dict[str, Any]:
    record = report.record
    return _key_row(report.key) | {
        "offset": record.offset,
        "value": record.value,
        "appended_s": record.appended_s,
        "received_s": report.received_s,
        "name": report.name,
    }


def _parked_of(partition: int, row: Mapping[str, Any]) -> Parked:
    record = Record(REPORTS, partition, row["offset"], b"", row["value"], row["appended_s"])
    return Parked(record, row["received_s"], _key_of(row), row["name"])


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
    yield to_row(found)
