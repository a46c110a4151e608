"""The driver's process, in Spark's own environment: Spark, the store and the loop.

    python -m aggregator.spark.driver LIFE_LINE JOB

Both are descriptors: a pipe that ends when the Leader does, and one that a `SparkJob` is read from.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread

from aggregator.leader.intake import LEADER_GROUP
from aggregator.party.party_start import on_signals
from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.workers.children import until_parent_ends
from aggregator.workers.readers import PARTITIONS
from aggregator.workers.words import CLAIM_BYTES
from aggregator.workers.worker_channel import CoordinatorChannel
from transport.kafka.kafka_aggregator_offsets import KafkaOffsets
from transport.process.log_lines import log_to_stderr
from wire.topics import REPORTS

from .spark_processes import SparkJob
from .spark_shell import SparkShell, StreamEnded, drop_strange_checkpoint
from .streaming import open_session, start_query
from .sum_store import SumStore


def run_driver(
    job: SparkJob,
    *,
    begun: Callable[[SparkShell], None],
    clock: Callable[[], float] = time.time,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Read, until the shell is stopped.

    begun       is given the shell, to stop it by
    Raises      StreamEnded, StateUnusable, StorageUnavailable, KeyFileRefused, OSError
    """
    store = SumStore(job.folder / "sums.sqlite")
    # Java is begun by a fork that runs Python, and gRPC ends such a child where it has threads.
    session = open_session(job.settings, job.jars)
    log = KafkaOffsets(job.log, LEADER_GROUP, REPORTS, PARTITIONS)
    channel = CoordinatorChannel(job.coordinator, job.others)
    shell = SparkShell(
        channel, job.parties, store, log, PARTITIONS, clock=clock, checkpoint=checkpoint
    )
    begun(shell)
    folder = job.folder / "checkpoint"
    drop_strange_checkpoint(folder, store)
    starts = shell.begin()
    name = os.urandom(CLAIM_BYTES)
    query = start_query(
        session, job.log, job.settings, starts, folder, job.parties, name, shell.take
    )
    try:
        while not shell.stopped:
            shell.turn()
            if not query.isActive and not shell.stopped:
                raise StreamEnded(f"streaming query ended: {type(query.exception()).__name__}")
    finally:
        shell.stop()
        query.stop()
        session.stop()
        channel.close()
        log.close()
        store.close()


def main() -> None:
    """Run what the Leader began."""
    life_line, told = (int(text) for text in sys.argv[1:3])
    with os.fdopen(told, "rb") as file:
        job = pickle.load(file)  # noqa: S301 (our own party's)
    log_to_stderr()
    pipe = Connection(life_line)

    def begun(shell: SparkShell) -> None:
        on_signals(shell.stop)
        Thread(target=until_parent_ends, args=(pipe, shell.stop), daemon=True).start()

    run_driver(job, begun=begun)


if __name__ == "__main__":
    main()
