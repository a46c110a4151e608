"""The driver's loop: batches of Spark on one side, the Leader on the other.

A batch is in the store before Spark is told that it is done, and only then are its hosts named.
Whatever the loop is not sure of it ends with: the process that follows goes on from the store.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock
from typing import Final, Protocol

import structlog

from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import Checkpoint, no_checkpoint
from transport.interface import Noted, Record, TransportUnavailable, became_shorter, made_anew
from wire.topics import REPORTS

from .driver_state import Bounds, DriverState, PassInput
from .messages import Command, ReaderUpdate
from .partial_sums import Gathered
from .sum_store import Source, SumStore

SAY_S: Final = 0.05
BUSY_S: Final = 0.01
RETRY_S: Final = 0.5
TURNS_A_LOOK: Final = 100
"""Of so many turns one asks which log it is: one in five seconds."""
_LOG_VERSION: Final = b"v1\n"


class StreamEnded(Exception):
    """The streaming query ended, or nobody listens any more; says why."""


class LeaderPort(Protocol):
    """The Leader that keeps this driver."""

    def say(self, update: ReaderUpdate) -> None:
        """Say what is new. Raises StreamEnded where nobody listens."""

    def commands(self) -> Sequence[Sequence[Command]]:
        """What it has said since, each time at once."""


class LogOffsets(Protocol):
    """Where the report topic begins, ends and goes on: `KafkaOffsets`.

    Every method raises TransportUnavailable.
    """

    def identity(self) -> str:
        """Which log of that name it is; empty where nobody knows."""

    def bounds(self) -> dict[int, Bounds]: ...

    def starts(self) -> dict[int, int]: ...

    def commit(self, offsets: Mapping[int, int]) -> None: ...

    def read(self, partition: int, offsets: Sequence[int]) -> list[Record]: ...


Gather = Callable[[PassInput, float], list[Gathered]]
"""Makes a pass over one batch of a streaming query; it may be made again and reads the same."""


class SparkRuntime:
    def __init__(
        self,
        leader: LeaderPort,
        parties: PinnedParties,
        store: SumStore,
        log: LogOffsets,
        *,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] | None = None,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        """Begin with the first turn.

        pause       waits so many seconds, or until `stop`; None: in real time
        checkpoint  told of each step, for tests
        """
        self._leader, self._store, self._log = leader, store, log
        self._clock, self._checkpoint = clock, checkpoint
        self._state = DriverState(parties, store)
        self._lock = RLock()
        self._stopped = Event()
        self._pause = pause or self._stopped.wait
        self._committed: dict[int, int] = {}
        self._away = False
        self._turns = 0
        self._out = structlog.get_logger("leader-spark")

    def stop(self) -> None:
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def begin(self, checkpoint: Path | None = None) -> dict[int, int]:
        """Find where reading begins, which the store keeps from then on.

        checkpoint  folder of Spark's, which goes where the log is another: it knows offsets alone
        Raises      StorageUnavailable, OSError
        """
        while not self.stopped:
            try:
                log, bounds, starts = self._log.identity(), self._log.bounds(), self._log.starts()
                if other := self._differs(self._store.positions, bounds, log):
                    self._out.warning(Noted.ANEW.value, detail=other)
                    self._state.rejected[Noted.ANEW.value] += 1
                    if checkpoint is not None and checkpoint.exists():
                        shutil.rmtree(checkpoint)
                    starts = {part: oldest for part, (oldest, _next) in bounds.items()}
                    self._store.begin_anew(starts, log)
                else:
                    self._store.begin_at(starts, log)
            except TransportUnavailable as error:
                self._log_away(error)
                self._pause(RETRY_S)
            else:
                break
        return dict(self._store.positions)

    def _differs(self, positions: Mapping[int, int], bounds: Mapping[int, Bounds], log: str) -> str:
        """Say in what the log is not the one that was read as far as `positions`."""
        if log and self._store.log not in {"", log}:
            return made_anew(REPORTS, self._store.log, log).detail
        for part, at in positions.items():
            end = bounds[part][1] if part in bounds else 0
            if at > end:
                return became_shorter((REPORTS, part), at, end).detail
        return ""

    # The Leader

    def turn(self, ends: Mapping[int, int] | None = None) -> None:
        """Say what is new, do what is said, commit.

        ends        of the newest batch that Spark has done, as `DriverState.update` takes them
        Raises      StreamEnded, also where the log is another; StorageUnavailable
        """
        bounds: dict[int, Bounds] | None = None
        read = dict(self._store.positions)
        try:
            bounds = self._log.bounds()
            log = "" if self._turns % TURNS_A_LOOK else self._log.identity()
            self._turns += 1
            if other := self._differs(read, bounds, log):
                raise StreamEnded(other)
            if bounds.keys() - read.keys():  # a query reads those that it began with
                raise StreamEnded(f"{REPORTS} has {len(bounds)} partitions, read are {len(read)}")
            self._give_again()
            self._away = False
        except TransportUnavailable as error:
            self._log_away(error)
        with self._lock:
            self._state.unpark()
            update = self._state.update(bounds, ends)
        self._leader.say(update)
        with self._lock:
            for said in self._leader.commands():
                self._state.handle(said, self._clock())
        if bounds is not None:
            with suppress(TransportUnavailable):  # the next turn says so
                self._commit()
        self._pause(SAY_S)

    def _give_again(self) -> None:
        with self._lock:
            wanted = self._state.wanted.to_read_again()
        for place, offsets in wanted.items():
            records = self._log.read(place[1], offsets)
            with self._lock:
                self._state.wanted.give_again(place, records)

    def _commit(self) -> None:
        with self._lock:
            offsets = self._state.offsets()
        moved = {part: at for part, at in offsets.items() if at > self._committed.get(part, 0)}
        if moved:
            self._log.commit(moved)
            self._committed |= moved

    def _log_away(self, error: TransportUnavailable) -> None:
        if not self._away:
            self._out.warning("log away", detail=str(error))
        self._away = True

    # Batches, from Spark's thread

    def take(self, source: Source, gather: Gather) -> None:
        """Keep a batch, once; Spark is told that it is done when this returns.

        Raises      StreamEnded when the loop ends first; StorageUnavailable
        """
        query, number = source
        if number <= self._store.newest(query):
            self._checkpoint("redelivered")
            self._out.info("batch known", batch=number)
            return
        while True:
            with self._lock:
                self._until_answered()
                told = self._state.pass_input()
            gathered = gather(told, self._clock())
            with self._lock:
                if self._state.need(gathered):
                    continue
                self._checkpoint("before sink commit")
                if self._state.take(source, gathered, told):
                    break
        self._checkpoint("after sink commit")

    def _until_answered(self) -> None:
        while not self._state.begun or self._state.asking:
            if self.stopped:
                raise StreamEnded("expected to go on, the engine stops")
            self._lock.release()
            try:
                self._pause(BUSY_S)
            finally:
                self._lock.acquire()


def drop_strange_checkpoint(folder: Path, store: SumStore) -> None:
    """Throw Spark's checkpoint away unless it and the store fell together.

    A batch is planned, kept in the store, then done. Where Spark has done what the store has not,
    that is read again. Where the store has what Spark has not planned, Spark would give other
    records under the numbers that it has. Either came back from a backup then, or a power cut left
    a file of Spark's, which syncs none, empty.
    """
    if folder.is_dir():
        try:
            done, planned = (_newest(folder / name) for name in ("commits", "offsets"))
            kept = store.newest(query_of((folder / "metadata").read_text()))
            together = done <= kept <= planned
        except (OSError, ValueError, KeyError):
            together = False
        if not together:
            shutil.rmtree(folder)


def _newest(log: Path) -> int:
    """The newest batch in one of a checkpoint's logs; -1: none.

    Raises      ValueError for a file that is not whole
    """
    numbers = [int(path.name) for path in log.glob("*") if path.name.isdigit()]
    newest = max(numbers, default=-1)
    if numbers and not (log / str(newest)).read_bytes().startswith(_LOG_VERSION):
        raise ValueError(f"{log}/{newest}: expected a log of Spark, got other bytes")
    return newest


def query_of(metadata: str) -> str:
    return str(json.loads(metadata)["id"])
