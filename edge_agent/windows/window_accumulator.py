"""Windows by event time: records in, one raw row per window out."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.boot_clock import boottime_ns, read_point
from collectors.records.activity import GpuCoverage, KernelActivity, Observation, Record
from kernels.families import UNKNOWN_APPLICATION
from privacy.quantise import uniform_below
from wire.catalogue import Catalogue
from wire.task import SectionKind, SectionSpec, Task

from .durable_windows import DurableAccumulators
from .encode import UNMEASURABLE, match_section
from .window_rows import OTHER_MODEL, GpuWindow, RowFiller
from .window_state import WindowState

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
MILLION = 1_000_000
FARTHEST_AHEAD = 2
"""Windows past the open one in which a record is still believed: clocks differ by less."""

_APPLICATIONS_SEEN = "applications_seen"


@dataclass(frozen=True, slots=True)
class HostClock:
    """Maps CLOCK_BOOTTIME to Unix time: unix_ns = boottime_ns + offset_ns."""

    offset_ns: int

    @classmethod
    def now(cls) -> HostClock:
        """Read both clocks of this host."""
        return cls(read_point().offset_ns)


class WindowAccumulator:
    """Gathers one host's records into the windows of one task.

    Every window can be closed, busy or idle. Wall time of a GPU that no source watched (`watch`,
    `GpuCoverage`) is unmeasured. A record counts in the window of its own time: late
    (its window is closed), early (too far ahead) and stray ones (no such GPU, section or cell) are
    counted in `dropped` and left out. Not thread-safe.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        task: Task,
        gpus: Sequence[str],
        *,
        clock: HostClock | None = None,
        first_window: int | None = None,
        store: DurableAccumulators | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Begin with the window that holds the present.

        gpus          GPU model of each GPU of this host, as in the catalogue's table (else "other")
        clock         mapping of clocks, None: read from this host now
        first_window  start of the first window in seconds; None: the oldest that the store keeps
                      (forget what is past reporting first: `store.erase_before`), else the present
        store         keeps open windows over restarts
        random_bytes  for the host's secret sampling coin
        Raises        ValueError when the task's sections are not the catalogue's
        """
        self._sections = [(match_section(catalogue, spec), spec) for spec in task.sections]
        self._by_name = {section.name: section for section, _ in self._sections}
        self._cells = {section.name: frozenset(section.cells) for section, _ in self._sections}
        models = frozenset(catalogue.classes("gpu_model"))
        self._models = [model if model in models else OTHER_MODEL for model in gpus]
        self._watched_since: dict[int, int | None] = {}
        self._window_s = task.window_s
        self._retention_s = task.retention_s
        self._series = task.series
        self._filler = RowFiller(catalogue)
        self._clock = clock or HostClock.now()
        self._store = store
        self._random_bytes = random_bytes
        first_s = self._first_window() if first_window is None else first_window
        self._next = first_s // task.window_s * task.window_s
        self._open: dict[int, WindowState] = {}
        self.dropped: Counter[str] = Counter()
        self.governor_millionths = MILLION

    @property
    def next_window(self) -> int:
        """Start in seconds of the oldest window that is not closed."""
        return self._next

    def set_clock(self, clock: HostClock) -> None:
        """Follow a wall clock that was corrected."""
        self._clock = clock

    def watch(self, gpus: Iterable[int], since_boottime_ns: int | None) -> None:
        """Count GPUs as watched from a time on (None: no longer) beside what `GpuCoverage` says."""
        for gpu in gpus:
            self._watched_since[gpu] = since_boottime_ns

    def add(self, record: Record) -> None:
        """Count a record in the window of its own time; what is local to the host is not."""
        match record:
            case KernelActivity():
                self._add_activity(record)
            case Observation():
                self._add_observation(record)
            case GpuCoverage():
                self._add_coverage(record)
            case _:
                pass

    def measures(self, window: int) -> bool:
        """Tell whether this host's secret coin lets any section measure in an open window.

        Raises  ValueError for a window (start in seconds) that is closed already
        """
        if window < self._next:
            raise ValueError(f"expected a window from {self._next} on, got {window}")
        coin = self._coin(self._state(window))
        return any(coin < self._rate(spec) for _, spec in self._sections)

    def close(self, window: int) -> NDArray[np.int64]:
        """Close a window (start in seconds) and return int64[k], base units, sections in order.

        The totals in memory are forgotten; a stored window stays until `forget`, so that a crash
        before the report is sealed loses nothing.
        Raises  ValueError for a window that is closed already or is no window of the task
        """
        if window < self._next or window % self._window_s:
            raise ValueError(f"expected a multiple of {self._window_s} from {self._next} on, "
                             f"got window {window}")  # fmt: skip
        state = self._state(window)
        coin = self._coin(state)
        if self._store is not None:
            self._save(window, state)
        row = self._row(state, coin, window)
        self._open = {start: kept for start, kept in self._open.items() if start > window}
        self._next = window + self._window_s
        return row

    def preview(self, window: int) -> NDArray[np.int64]:
        """Return int64[k] of an open window as it stands; it stays open."""
        state = self._state(window)
        return self._row(state, self._coin(state), window)

    def _row(self, state: WindowState, coin: int, window: int) -> NDArray[np.int64]:
        gpus = [self._gpu_window(state, index, window) for index in range(len(self._models))]
        rows = [
            self._filler.fill(section, state, gpus)
            if coin < self._rate(spec)
            else self._filler.unmeasured(section, gpus)
            for section, spec in self._sections
        ]
        return np.concatenate(rows)

    def skip_to(self, at_s: int) -> None:
        """Leave out every window that starts before a time, kept totals included."""
        window = -(-at_s // self._window_s) * self._window_s
        if window <= self._next:
            return
        self.dropped["skipped"] += (window - self._next) // self._window_s
        self._next = window
        self._open = {start: kept for start, kept in self._open.items() if start >= window}
        if self._store is not None:
            self._store.erase_before(self._series, window)

    def persist(self) -> None:
        """Write every open window to the store; call it now and then, and before stopping."""
        if self._store is not None:
            for window, state in self._open.items():
                self._save(window, state)

    def _save(self, window: int, state: WindowState) -> None:
        if self._store is not None:
            expires_s = window + self._window_s + self._retention_s
            self._store.save(self._series, window, state, expires_s)

    def forget(self, window: int) -> None:
        """Erase a sealed window from the store."""
        if self._store is not None:
            self._store.erase(self._series, window)

    def _first_window(self) -> int:
        kept = self._store.windows(self._series) if self._store is not None else []
        now_ns = boottime_ns() + self._clock.offset_ns
        return min([*kept, now_ns // NS_PER_S])

    def _add_activity(self, record: KernelActivity) -> None:
        if not 0 <= record.gpu < len(self._models):
            self.dropped["stray_gpu"] += 1
            return
        for window, overlap_ns, whole_ns in self._spans(record.boottime_ns, record.span_ns):
            state = self._state_for(window)
            if state is None:
                continue
            state.gpu(record.gpu).add(record, (overlap_ns, whole_ns))
            seen = record.count > 0 and record.application != UNKNOWN_APPLICATION
            if seen and record.application in self._cells.get(_APPLICATIONS_SEEN, ()):
                state.observe(_APPLICATIONS_SEEN, record.application, 1)

    def _add_coverage(self, record: GpuCoverage) -> None:
        if not 0 <= record.gpu < len(self._models):
            self.dropped["stray_gpu"] += 1
            return
        only = self._window_of(record.boottime_ns, record.span_ns)
        if only is not None and only in self._open and only >= self._next:
            self._open[only].gpu(record.gpu).cover(record.source, record.span_ns)
            return
        for window, overlap_ns, whole_ns in self._spans(record.boottime_ns, record.span_ns):
            if self._next <= window <= self._next + FARTHEST_AHEAD * self._window_s:
                covered_ns = record.span_ns * overlap_ns // whole_ns
                self._state(window).gpu(record.gpu).cover(record.source, covered_ns)

    def _add_observation(self, record: Observation) -> None:
        section = self._by_name.get(record.section)
        if section is None:
            return  # another task may carry this section
        cell = record.cell
        if section.kind is SectionKind.HISTOGRAM and section.bins is not None:
            inner = section.bins.names[section.bins.index(record.value)]
            cell = f"{cell}/{inner}" if cell else inner
        if cell not in self._cells[section.name] or record.value < 0:
            self.dropped["stray_cell"] += 1
            return
        window = (record.boottime_ns + self._clock.offset_ns) // NS_PER_S
        state = self._state_for(window // self._window_s * self._window_s)
        if state is not None:
            amount = 1 if section.kind is SectionKind.HISTOGRAM else record.value
            state.observe(section.name, cell, amount)

    def _window_of(self, boottime_ns: int, span_ns: int) -> int | None:
        """Return the window that holds [start, start + span] as a whole, None where two share it.

        Nearly every record lies in one: what `_spans` gives of it, without its list.
        """
        start_ns = boottime_ns + self._clock.offset_ns
        length_ns = self._window_s * NS_PER_S
        first = start_ns // length_ns
        last = max(start_ns, start_ns + span_ns - 1) // length_ns
        return first * self._window_s if first == last else None

    def _spans(self, boottime_ns: int, span_ns: int) -> list[tuple[int, int, int]]:
        """Return (window, overlap_ns, whole_ns) of each window that [start, start + span] meets."""
        only = self._window_of(boottime_ns, span_ns)
        if only is not None:
            return [(only, 1, 1)]
        start_ns = boottime_ns + self._clock.offset_ns
        length_ns = self._window_s * NS_PER_S
        first, last = start_ns // length_ns, (start_ns + span_ns - 1) // length_ns
        spans = []
        for number in range(first, last + 1):
            begin, end = number * length_ns, (number + 1) * length_ns
            overlap_ns = min(end, start_ns + span_ns) - max(begin, start_ns)
            spans.append((number * self._window_s, overlap_ns, span_ns))
        return spans

    def _state_for(self, window: int) -> WindowState | None:
        """Return the state of a record's window, None (and a count) when it is late or early."""
        if window < self._next:
            self.dropped["late"] += 1
            return None
        if window > self._next + FARTHEST_AHEAD * self._window_s:
            self.dropped["early"] += 1
            return None
        return self._state(window)

    def _state(self, window: int) -> WindowState:
        state = self._open.get(window)
        if state is None:
            kept = self._store.load(self._series, window) if self._store is not None else None
            state = self._open[window] = kept or WindowState()
        return state

    def _coin(self, state: WindowState) -> int:
        if state.coin is None:
            state.coin = int(uniform_below(MILLION, 1, self._random_bytes)[0])
        return state.coin

    def _rate(self, spec: SectionSpec) -> int:
        """Return the rate in force; what cannot be unmeasured is always measured."""
        if spec.kind in UNMEASURABLE:
            return MILLION
        return min(spec.rate_millionths, self.governor_millionths)

    def _gpu_window(self, state: WindowState, index: int, window: int) -> GpuWindow:
        wall_ms = self._window_s * 1_000
        totals = state.gpu(index)
        since_ns = self._watched_since.get(index)
        watched_ns = 0
        if since_ns is not None:
            begun_ns = since_ns + self._clock.offset_ns - window * NS_PER_S
            watched_ns = wall_ms * NS_PER_MS - max(begun_ns, 0)
        measured_ms = totals.measured_ns(wall_ms * NS_PER_MS, watched_ns) // NS_PER_MS
        return GpuWindow(self._models[index], totals, measured_ms, wall_ms)
