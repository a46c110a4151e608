"""A streaming query whose sink is the runtime's store; the one module that imports PySpark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from aggregator.party.config import SparkSettings
from aggregator.protocol.directory import PinnedParties
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import REPORTS

from .driver_process import kafka_options
from .driver_state import PassInput
from .executor import ARROW, Pass, from_rows, gather_rows
from .partial_sums import Gathered
from .spark_runtime import Gather
from .sum_store import Source

_COLUMNS: Final = ("partition", "offset", "value", "unix_micros(timestamp) AS appended_us")
_PROTECTED: Final = {
    # Broadcasts hold keys of epochs: they are encrypted on disk and between processes.
    "spark.authenticate": "true",
    "spark.io.encryption.enabled": "true",
    "spark.network.crypto.enabled": "true",
    "spark.ui.enabled": "false",
}
_OURS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_ID_S: Final = 60.0


def open_session(settings: SparkSettings, jars: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of executors on this machine
    builder = SparkSession.builder.appName("pointillist-leader").master(settings.master)
    named = ",".join(str(path) for path in sorted(jars.glob("*.jar")))
    given = {"spark.jars": named} | _OURS | dict(settings.options) | _PROTECTED
    for name, value in given.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@dataclass(slots=True)
class Broadcasts:
    """What executors were told, each part once; of the newest generation alone."""

    session: SparkSession
    name: bytes
    generation: int = -1
    commands: list[Any] = field(default_factory=list)
    told: int = 0

    def of(self, told: PassInput, parties: PinnedParties, now_s: float) -> Pass:
        """What a pass is given; the hosts are for the caller to let go of."""
        context = self.session.sparkContext
        if told.generation != self.generation:
            for old in self.commands:
                old.destroy()
            self.commands, self.told, self.generation = [], 0, told.generation
        if new := told.commands[self.told :]:
            self.commands.append(context.broadcast(list(new)))
            self.told = len(told.commands)
        before = context.broadcast(told.before)
        return Pass(self.name, self.generation, parties, tuple(self.commands), before, now_s)


def _gather(
    frame: DataFrame, broadcasts: Broadcasts, parties: PinnedParties, told: PassInput, now_s: float
) -> list[Gathered]:
    asked = broadcasts.of(told, parties, now_s)
    try:
        rows = frame.mapInArrow(partial(gather_rows, asked), from_arrow_schema(ARROW))
        return from_rows(rows.toArrow())
    finally:
        asked.before.destroy()


def start_query(
    session: SparkSession,
    log: KafkaSettings,
    settings: SparkSettings,
    starts: Mapping[int, int],
    folder: Path,
    parties: PinnedParties,
    name: bytes,
    take: Callable[[Source, Gather], None],
) -> StreamingQuery:
    """Begin to read.

    starts      where a new query begins; one with a checkpoint goes on from that
    folder      of the checkpoint, on a disk of the driver
    """
    topic = log.named(REPORTS)
    options = kafka_options(log) | {
        "assign": json.dumps({topic: sorted(starts)}),
        "startingOffsets": json.dumps({topic: {str(part): at for part, at in starts.items()}}),
        "maxOffsetsPerTrigger": str(settings.batch_records),
    }
    frame = session.readStream.format("kafka").options(**options).load().selectExpr(*_COLUMNS)
    broadcasts, query, known = Broadcasts(session, name), list[str](), Event()

    def sink(batch: DataFrame, number: int) -> None:
        if not known.wait(_ID_S):
            raise RuntimeError("streaming query: expected its id, got none")
        take((query[0], number), partial(_gather, batch, broadcasts, parties))

    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder))
    started = writer.start()
    query.append(started.id)
    known.set()
    return started


def ends_of(query: StreamingQuery) -> Mapping[int, int]:
    """Partition -> the offset behind the newest batch that is done; none before the first."""
    done = query.lastProgress
    if done is None or not done.sources or done.sources[0].endOffset is None:
        return {}
    ((_topic, ends),) = json.loads(done.sources[0].endOffset).items()
    return {int(partition): offset for partition, offset in ends.items()}
