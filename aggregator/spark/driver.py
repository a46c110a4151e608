"""The driver's process, in Spark's own environment: `python -m aggregator.spark.driver PIPE`.

PIPE is the descriptor of the way to the Leader and ends when that does; a `SparkJob` comes first.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from threading import Thread

import structlog

from aggregator.leader.intake import LEADER_GROUP
from aggregator.party.party_start import on_signals
from aggregator.protocol.interfaces import Checkpoint, no_checkpoint
from aggregator.state.state_file import StateUnusable, StorageUnavailable
from transport.kafka.kafka_aggregator import KafkaOffsets
from transport.process.supervision import SteadyTime, log_to_stderr
from transport.process.unforeseen import keep_in, told
from wire.topics import REPORTS

from .driver_process import SparkJob
from .messages import Command, ReaderUpdate, encode_update
from .spark_runtime import SparkRuntime, StreamEnded, drop_strange_checkpoint
from .streaming import ends_of, open_session, start_query
from .sum_store import SumStore

_NAME_BYTES = 16


class LeaderPipe:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._commands: deque[Sequence[Command]] = deque()

    def job(self) -> SparkJob:
        found = self._pipe.recv()  # our own party's
        if not isinstance(found, SparkJob):
            raise TypeError(f"expected a job of Spark, got {type(found).__name__}")
        return found

    def listen(self, ended: Callable[[], None]) -> None:
        """Receive in a thread of its own; `ended` is called when the Leader is gone."""

        def receive() -> None:
            try:
                while True:
                    self._commands.append(pickle.loads(self._pipe.recv_bytes()))  # noqa: S301
            except (EOFError, OSError):
                ended()

        Thread(target=receive, name="leader", daemon=True).start()

    def say(self, update: ReaderUpdate) -> None:
        """Say what is new. Raises StreamEnded where nobody listens."""
        try:
            self._pipe.send_bytes(encode_update(update))
        except OSError as error:
            raise StreamEnded("the Leader is gone") from error

    def commands(self) -> Sequence[Sequence[Command]]:
        return [self._commands.popleft() for _ in range(len(self._commands))]


def run_driver(
    job: SparkJob,
    leader: LeaderPipe,
    *,
    clock: Callable[[], float] | None = None,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Read, until a signal, or until the Leader is gone.

    clock       unix seconds; None: the machine's, steady
    Raises      StreamEnded, StateUnusable, StorageUnavailable, KeyFileRefused, OSError
    """
    store = SumStore(job.folder / "sums.sqlite")
    session = open_session(job.settings, job.jars)
    log = KafkaOffsets(job.log, LEADER_GROUP, REPORTS)
    clock = clock or SteadyTime()
    runtime = SparkRuntime(leader, job.parties, store, log, clock=clock, checkpoint=checkpoint)
    on_signals(runtime.stop)
    leader.listen(runtime.stop)
    folder = job.folder / "checkpoint"
    drop_strange_checkpoint(folder, store)
    starts = runtime.begin(folder)
    name = os.urandom(_NAME_BYTES)
    query = start_query(
        session, job.log, job.settings, starts, folder, job.parties, name, runtime.take
    )
    try:
        while not runtime.stopped:
            runtime.turn(ends_of(query))
            if not query.isActive and not runtime.stopped:
                raise StreamEnded(f"streaming query ended: {type(query.exception()).__name__}")
    finally:
        runtime.stop()
        query.stop()
        session.stop()
        log.close()
        store.close()


def main() -> None:
    log_to_stderr()
    leader = LeaderPipe(Connection(int(sys.argv[1])))
    with told():
        job = leader.job()
        keep_in(job.folder)
        try:
            run_driver(job, leader)
        except (StreamEnded, StateUnusable, StorageUnavailable, OSError) as error:
            structlog.get_logger("leader-spark").error("driver ends", detail=str(error))
            sys.exit(1)


if __name__ == "__main__":
    main()
