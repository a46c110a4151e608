"""Hardware faults: the kernel's log each second, the counters and states of sysfs each minute.

Windows get `hardware_faults`; what happened to which device stays here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from collectors.interface import SourceUnavailable
from collectors.kernel_files import Tree
from collectors.kernel_log import KMSG, log_failure
from collectors.records.activity import HostEvent, HostTable, Observation
from collectors.records.basics import FailureKind, ReadFailure

from .log_signs import Key, LogSigns, Tracker
from .scan import FailedReading, Finding, ReadSmart, State, look, read_smart

# Looks beside the agent's loop: a sensor behind a slow bus, or a drive that hangs, holds a thread.
#
# A look that does not end is not waited for: nothing new is begun, and it is counted as late.

LATE_NS: Final = 30_000_000_000

Look = Callable[[], Sequence[Finding]]
Starter = Callable[[Callable[[], None]], None]


def in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="faults", daemon=True).start()


class Sweeper:
    def __init__(self, look: Look, start: Starter = in_a_thread) -> None:
        self._look = look
        self._start = start
        self._lock = threading.Lock()
        self._found: Sequence[Finding] | None = None
        self._failure: Exception | None = None
        self._begun_ns: int | None = None
        self.late = 0

    def begin(self, now_ns: int) -> None:
        if self._begun_ns is not None:
            self.late += now_ns - self._begun_ns > LATE_NS
            return
        self._begun_ns = now_ns
        self._start(self._work)

    def take(self) -> Sequence[Finding] | None:
        """Give a look that has ended, once; None while there is none. Raises what the look did."""
        with self._lock:
            found, self._found = self._found, None
            failure, self._failure = self._failure, None
            if found is not None or failure is not None:
                self._begun_ns = None
        if failure is not None:
            raise failure
        return found

    def _work(self) -> None:
        found: Sequence[Finding] | None = None
        failure: Exception | None = None
        try:
            found = self._look()
        except Exception as error:  # noqa: BLE001 (handed over, and raised where it is taken)
            failure = error
        with self._lock:
            self._found, self._failure = found, failure


SECTION: Final = "hardware_faults"
SWEEP_NS: Final = 60_000_000_000
"""Counters of a rare thing: a look at 256 PCIe devices took 15 ms of CPU, on a tree of files."""

_MOST: Final = (1 << 63) - 1
"""A drive's own counters have 128 bits, and a broken drive may say anything."""

Records = Iterator[Observation | HostEvent | HostTable]


class FaultsSource:
    """Counts from its start on; a reading that fails is a gap and a count, never a zero."""

    name = "faults"

    def __init__(
        self,
        root: Path = Path("/"),
        log: Path = KMSG,
        *,
        smart: ReadSmart = read_smart,
        start: Starter = in_a_thread,
    ) -> None:
        self._tree = Tree(root)
        self._log_path = log
        self._smart = smart
        self._start_look = start
        self._signs: LogSigns | None = None
        self._sweeper: Sweeper | None = None
        self._tracker = Tracker()
        self._begun_ns: int | None = None
        self._drained_ns = 0
        self._told: Counter[str] = Counter()
        self._state: tuple[int, ...] = ()
        self.log_failure: ReadFailure | None = None
        self.gaps: Counter[str] = Counter()

    def probe(self) -> str | None:
        gap = self._open_log()
        self._close_log()
        if gap is None:
            return None
        if any(not isinstance(found, FailedReading) for found in look(self._tree, self._smart)):
            return None
        return f"faults: {gap.reason}, and sysfs has no counters of errors"

    def start(self) -> None:
        """Open the log at its end and begin the look that is the baseline."""
        self._tracker = Tracker()
        self._told.clear()
        self._state = ()
        self._begun_ns, self._drained_ns = None, 0
        self.log_failure = self._open_log()
        tree, smart = self._tree, self._smart
        self._sweeper = Sweeper(lambda: look(tree, smart), self._start_look)

    def drain(self, now_boottime_ns: int) -> Iterable[Observation | HostEvent | HostTable]:
        """Yield faults and their ends, and what error counters grew by."""
        sweeper = self._sweeper
        if sweeper is None:
            raise SourceUnavailable("faults: not started")
        begun_ns, self._drained_ns = self._drained_ns or now_boottime_ns, now_boottime_ns
        if self._begun_ns is None or now_boottime_ns - self._begun_ns >= SWEEP_NS:
            self._begun_ns = now_boottime_ns
            sweeper.begin(now_boottime_ns)
        try:
            found = sweeper.take()
        except Exception as error:  # noqa: BLE001 (a look at odd hardware must not end the agent)
            raise SourceUnavailable(f"faults: {type(error).__name__}: {error}") from None
        records = list(self._logged(now_boottime_ns))
        if found is not None:
            records += self._looked(found, now_boottime_ns)
        records += self._health(sweeper, begun_ns, now_boottime_ns)
        return records

    def stop(self) -> None:
        """Let the log go; a look that still runs is not waited for."""
        self._close_log()
        self._sweeper = None

    @property
    def standing(self) -> tuple[tuple[str, str], ...]:
        return self._tracker.standing

    def _open_log(self) -> ReadFailure | None:
        self._close_log()
        try:
            self._signs = LogSigns(self._tree, self._log_path)
        except OSError as error:
            return log_failure(self._log_path, error)
        return None

    def _close_log(self) -> None:
        if self._signs is not None:
            self._signs.close()
        self._signs = None

    def _logged(self, now_ns: int) -> Records:
        if self._signs is None:
            return
        try:
            faults, cleared = self._signs.read(now_ns)
        except OSError as error:
            self.log_failure = log_failure(self._log_path, error)
            self.gaps[f"kernel_log/{self.log_failure.kind}"] += 1
            return
        self.log_failure = None
        yield from _told(faults, cleared, now_ns)

    def _looked(self, found: Sequence[Finding], now_ns: int) -> Records:
        for miss in found:
            if isinstance(miss, FailedReading):
                self.gaps[f"{miss.name}/{miss.gap.kind}"] += 1
        news = self._tracker.follow(found, now_ns)
        yield from _told(news.faults, news.cleared, now_ns)
        if news.deltas:
            yield _table("fault_counts", news.deltas, now_ns - SWEEP_NS, SWEEP_NS)

    def _health(self, sweeper: Sweeper, begun_ns: int, now_ns: int) -> Records:
        missed = self._signs.counters if self._signs is not None else {}
        state = (self.gaps.total(), sweeper.late, sum(missed.values()))
        if state == self._state:  # they only grow: nothing did
            return
        self._state = state
        totals = Counter(self.gaps)
        totals["looks_late"] = sweeper.late
        totals.update(missed)
        grown = {
            (name, "faults"): count
            for name, count in (totals - self._told).items()
            if not (name.endswith(FailureKind.NO_PERMISSION) and self._told[name])
        }
        self._told = totals
        if grown:
            yield _table("fault_gaps", grown, begun_ns, now_ns - begun_ns)


def _told(faults: Iterable[State], cleared: Iterable[Key], now_ns: int) -> Records:
    for fault in faults:
        yield Observation(SECTION, fault.cell, 1, now_ns)
        yield HostEvent(fault.name, fault.subject, fault.detail, now_ns)
    for name, subject in cleared:
        yield HostEvent(f"{name}_cleared", subject, "", now_ns)


def _table(name: str, grown: dict[tuple[str, str], int], begun_ns: int, span_ns: int) -> HostTable:
    columns = tuple(sorted({column for column, _ in grown}))
    rows = tuple(sorted({row for _, row in grown}))
    values = np.zeros((len(rows), len(columns)), np.int64)
    for (column, row), count in grown.items():
        values[rows.index(row), columns.index(column)] = min(count, _MOST)
    return HostTable(name, rows, columns, values, begun_ns, span_ns)
