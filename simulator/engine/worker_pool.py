"""Parts of a fleet at work, in processes or all in this one: blocks of hosts, CPU time, memory."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from transport.process.unforeseen import line

from .blocks import BlockRandomness, BlockRows, Span
from .interface import EngineSettings, RowSource

_JOIN_S = 10.0
_PRELOAD = [
    "simulator.engine.exact_hosts",
    "simulator.engine.fast",
]


class Laps:
    """Charges the time between two laps to a stage.

    A lap reads the wall clock, which costs 40 ns; at `stop` the laps since `start` are scaled to
    the CPU time that the process used in them, so that neighbours on the machine do not count.
    """

    def __init__(self, prefix: str = "", stages: dict[str, float] | None = None) -> None:
        self._prefix = prefix
        self._wall: Counter[str] = Counter()  # nanoseconds
        self._mark = self._cpu = 0
        self.stages: dict[str, float] = {} if stages is None else stages

    def __call__(self, stage: str) -> None:
        now = time.perf_counter_ns()
        self._wall[stage] += now - self._mark
        self._mark = now

    def start(self) -> None:
        self._wall.clear()
        self._cpu = time.process_time_ns()
        self._mark = time.perf_counter_ns()

    def stop(self) -> None:
        self("rest")
        scale = (time.process_time_ns() - self._cpu) / max(1, self._wall.total())
        for stage, wall in self._wall.items():
            name = self._prefix + stage
            self.stages[name] = self.stages.get(name, 0.0) + wall * scale / 1e9

    def __enter__(self) -> Laps:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self) -> dict[str, float]:
        taken, self.stages = self.stages, {}
        return taken


class WorkerFailed(RuntimeError):
    """A part failed; the message says how, and where the details are."""


P = TypeVar("P", bound="BlockHosts")


class WorkerPool(Generic[P]):
    """Several parts that do the same at the same time.

    make        one call per part, to be pickled: a function of a module and its arguments
    processes   1: every part in this process, one after the other
    """

    def __init__(self, make: Sequence[Callable[[], P]], processes: int) -> None:
        self._here: list[P] = []
        self._there: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        self._begun: tuple[str, tuple[Any, ...]]
        self._failure = ""
        if processes <= 1:
            self._here = [make_part() for make_part in make]
            return
        # A copy of this process would copy its threads' locks and its open files; a server without
        # any makes copies of itself, and imports what they need once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        for number, make_part in enumerate(make):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_serve, args=(theirs, make_part), name=f"hosts-{number}", daemon=True
            )
            child.start()
            theirs.close()
            self._there.append((child, ours))
        self._receive()

    def start(self, method: str, *arguments: Any) -> None:
        """Have every part call a method. Raises WorkerFailed, also after an earlier failure."""
        if self._failure:
            raise WorkerFailed(self._failure)
        self._begun = (method, arguments)
        for child, pipe in self._there:
            try:
                pipe.send((method, arguments))
            except OSError as error:
                raise self._failed(f"process {child.name} is gone") from error

    def working(self) -> bool:
        return any(not pipe.poll(0) for _, pipe in self._there)

    def results(self) -> list[Any]:
        """Wait for what was started; one result per part. Raises WorkerFailed."""
        method, arguments = self._begun
        if self._there:
            return self._receive()
        return [getattr(part, method)(*arguments) for part in self._here]

    def call(self, method: str, *arguments: Any) -> list[Any]:
        self.start(method, *arguments)
        return self.results()

    def peak_bytes(self) -> list[int]:
        there = self.call("__peak__") if self._there else []
        return [peak_bytes(), *there]

    def close(self) -> None:
        here, self._here = self._here, []
        for part in here:
            part.close()
        there, self._there = self._there, []
        for _, pipe in there:
            try:
                pipe.send(None)
            except OSError:
                continue  # it is gone already
        for child, pipe in there:
            child.join(_JOIN_S)
            if child.is_alive():
                child.terminate()
            pipe.close()

    def _receive(self) -> list[Any]:
        found = []
        for child, pipe in self._there:
            try:
                good, value = pipe.recv()
            except (EOFError, OSError) as error:
                raise self._failed(f"process {child.name} ended without an answer") from error
            if not good:
                raise self._failed(f"process {child.name}: {value}")
            found.append(value)
        return found

    def _failed(self, why: str) -> WorkerFailed:
        self._failure = why
        self.close()
        return WorkerFailed(why)


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _serve(pipe: Connection, make: Callable[[], BlockHosts]) -> None:
    """Do what comes through the pipe until it ends, which it does with the parent."""
    try:
        with closing(make()) as part:
            pipe.send((True, None))
            while (request := pipe.recv()) is not None:
                method, arguments = request
                found = peak_bytes() if method == "__peak__" else getattr(part, method)(*arguments)
                pipe.send((True, found))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return
    except Exception as error:  # noqa: BLE001  (whatever it was, the parent must hear of it)
        pipe.send((False, line(error)))


class BlockHosts:
    """The hosts of one process: their rows, noise and rounding by block."""

    def __init__(self, spans_: tuple[Span, ...], settings: EngineSettings, stage: str = "") -> None:
        self._lap = Laps(stage)
        self._random = BlockRandomness(settings, self._lap)
        self._rows = BlockRows(spans_, settings)

    def learn(self, series: str, rows: RowSource) -> None:
        self._rows.learn(series, rows)

    def close(self) -> None:
        """Hold nothing."""


class PooledEngine(Generic[P]):
    """An engine whose parts have the methods of `BlockHosts`."""

    def __init__(self, make: Sequence[Callable[[], P]]) -> None:
        self._pool = WorkerPool(make, len(make))
        self._known: set[str] = set()

    def _call(self, series: str, rows: RowSource, method: str, *arguments: Any) -> list[Any]:
        """Have every part call a method for a series, whose rows it is told once."""
        self._learn(series, rows)
        return self._pool.call(method, *arguments)

    def _learn(self, series: str, rows: RowSource) -> None:
        if series not in self._known:
            self._pool.call("learn", series, rows)
            self._known.add(series)

    def peak_bytes(self) -> list[int]:
        return self._pool.peak_bytes()

    def close(self) -> None:
        self._pool.close()
