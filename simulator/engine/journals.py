"""Diagnosis journals of real agents, lived through again by simulated hosts.

Each line reaches the production window (`WeeklyIncidents`, `WindowAccumulator`) by that host's own
clock, at some time of its week.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.findings import SECTION, WeeklyIncidents
from diagnosis.detect.journal import MAX_LINE_BYTES, JournalLine, JournalReader, Series
from edge_agent.windows.window_accumulator import NS_PER_S, HostClock, WindowAccumulator
from simulator.fleet.hosts import FleetState
from simulator.streams import philox
from transport.files.own_names import files_ending
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

from .interface import RowSource

SUFFIX: Final = ".jsonl"
MAX_JOURNALS: Final = 1_000
MAX_LINES: Final = 100_000
NOBODY: Final = -1


class JournalError(ValueError):
    """A journal that cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class PlayedJournal:
    """What one agent wrote down, in the order of its time; `damaged` lines were left out."""

    name: str
    lines: tuple[JournalLine, ...]
    damaged: int = 0

    @classmethod
    def of(cls, name: str, lines: Iterable[bytes]) -> PlayedJournal:
        """Read a journal's lines. Raises JournalError for none that is whole, or too many."""
        reader = JournalReader()
        read = list(islice(reader.read(lines), MAX_LINES + 1))
        if not 0 < len(read) <= MAX_LINES:
            raise JournalError(f"{name}: expected 1 to {MAX_LINES} whole lines, got {len(read)}")
        read.sort(key=lambda line: line.unix_ns)
        return cls(name, tuple(read), reader.damaged)

    @property
    def span_s(self) -> int:
        return (self.lines[-1].unix_ns - self.lines[0].unix_ns) // NS_PER_S + 1


def load_journals(folder: Path) -> tuple[PlayedJournal, ...]:
    """Read every `*.jsonl` of a folder, by name. Raises JournalError, OSError."""
    if not folder.is_dir():
        there = "a file" if folder.exists() else "nothing there"
        raise JournalError(f"{folder}: expected a folder of journals (*{SUFFIX}), got {there}")
    paths = files_ending(folder, SUFFIX)
    if not 0 < len(paths) <= MAX_JOURNALS:
        raise JournalError(
            f"{folder}: expected 1 to {MAX_JOURNALS} journals (*{SUFFIX}) in it, got {len(paths)}"
        )
    found = []
    for path in paths:
        with path.open("rb") as file:
            try:
                found.append(PlayedJournal.of(path.stem, _lines(file)))
            except JournalError as error:
                raise JournalError(f"{path}{str(error).removeprefix(path.stem)}") from None
    return tuple(found)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Give a file's lines; one without an end comes in pieces, each refused as damaged."""
    while line := file.readline(MAX_LINE_BYTES + 2):
        yield line


def cast(hosts: int, parts: Mapping[int, int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose who lives through which journal: int64[hosts], index of a journal or NOBODY.

    parts       journal -> how many hosts; no host lives through two
    Raises      JournalError when there are fewer hosts
    """
    wanted = sum(parts.values())
    if wanted > hosts:
        raise JournalError(f"expected at most {hosts} hosts in all, got {wanted}")
    roles = np.full(hosts, NOBODY, dtype=np.int64)
    chosen = rng.permutation(hosts)[:wanted]
    roles[chosen] = np.repeat(list(parts), list(parts.values()))
    return roles


@dataclass(frozen=True, slots=True)
class Plays:
    """Journals for a scenario: others of its hosts live through each in each window."""

    journals: tuple[PlayedJournal, ...]
    hosts_each: int
    seed: int

    @property
    def fingerprint(self) -> str:
        told = [(journal.name, journal.lines) for journal in self.journals]
        return sha256(repr((told, self.hosts_each, self.seed)).encode()).hexdigest()

    def over(self, catalogue: Catalogue, task: Task, inner: RowSource, hosts: int) -> RowSource:
        """Give the rows of a task with the journals in them. Raises JournalError."""
        if SECTION not in task.slices():
            return inner
        parts = dict.fromkeys(range(len(self.journals)), self.hosts_each)
        starts = range(task.first_window, task.last_window + 1, task.window_s)
        roles = {
            start: cast(hosts, parts, philox(self.seed, "journals", task.series, start))
            for start in starts
        }
        return JournalRows(catalogue, task, inner, self.journals, roles)


class JournalRows:
    """A `RowSource` whose hosts live through journals on top of what they measure anyway."""

    def __init__(
        self,
        catalogue: Catalogue,
        task: Task,
        inner: RowSource,
        journals: tuple[PlayedJournal, ...],
        roles: Mapping[int, NDArray[np.int64]],
    ) -> None:
        """Raises JournalError for a journal longer than a window, or a task without incidents."""
        if SECTION not in task.slices():
            raise JournalError(f"expected a task that counts {SECTION}, got {task.series!r}")
        long = next((journal for journal in journals if journal.span_s > task.window_s), None)
        if long is not None:
            raise JournalError(
                f"{long.name}: expected a journal of at most {task.window_s} s, got {long.span_s}"
            )
        self._catalogue, self._task, self._inner = catalogue, task, inner
        self._journals, self._roles = journals, dict(roles)
        place = task.slices()[SECTION]
        self._place = slice(place.start - CHECK_WORDS, place.stop - CHECK_WORDS)

    def block(
        self,
        state: FleetState,
        lo: int,
        hi: int,
        rng: np.random.Generator,
        out: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        rows = self._inner.block(state, lo, hi, rng, out)
        roles = self._roles.get(state.start_s)
        if roles is None:
            return rows
        for host in np.flatnonzero(roles[lo:hi] != NOBODY).tolist():
            journal = self._journals[roles[lo + host]]
            delay_s = int(rng.integers(0, self._task.window_s - journal.span_s + 1))
            lived = self._lived(journal, state.start_s, delay_s)
            rows[host, self._place] = np.maximum(rows[host, self._place], lived)
        return rows

    def _lived(self, journal: PlayedJournal, window: int, delay_s: int) -> NDArray[np.int64]:
        shift_ns = (window + delay_s) * NS_PER_S - journal.lines[0].unix_ns
        gathered = WindowAccumulator(
            self._catalogue, self._task, [], clock=HostClock(0), first_window=window
        )
        weekly = WeeklyIncidents()
        for line in journal.lines:
            gathered.set_clock(HostClock(line.offset_ns + shift_ns))
            if isinstance(line.finding, Series):
                continue  # a picture for people, of a spike that the other lines tell of
            for observation in weekly.take([line.finding], line.at_ns):
                gathered.add(observation)
        for observation in weekly.flush():
            gathered.add(observation)
        return gathered.close(window)[self._place]
