"""Windows by event time: records in, one raw row per window out, for each of a host's tasks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from collectors.records import activity
from kernels.families import UNKNOWN_APPLICATION
from privacy.quantise import uniform_below
from wire.catalogue import UNMEASURED, Catalogue, Section
from wire.catalogue_match import match_task
from wire.fields import TaskId
from wire.task import SectionKind, SectionSpec, Task

from .measured_by import measured
from .window_rows import OTHER_MODEL, GpuWindow, RowFiller
from .window_state import DurableAccumulators, WindowState, bump

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


class WindowAccumulator:
    """Gathers one host's records into the windows of one task.

    Every window can be closed, busy or idle. Wall time of a GPU that no source watched
    (`GpuCoverage`) is unmeasured. A record counts in the window of its own time: late (its window
    is closed), early (too far ahead) and stray ones (no such GPU, section or cell) are left out.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        task: Task,
        gpus: Sequence[str],
        *,
        clock: HostClock,
        first_window: int,
        store: DurableAccumulators | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Begin with the window of a time (`first_window`, seconds), of GPUs by their model.
        random_bytes  for the host's secret sampling coin
        Raises        ValueError when the task's sections are not the catalogue's
        """
        matched = match_task(catalogue, task)
        catalogue = matched.catalogue
        self._sections = list(zip(matched.sections, task.sections, strict=True))
        self._by_name = {section.name: section for section, _ in self._sections}
        self._cells = {section.name: frozenset(section.cells) for section, _ in self._sections}
        models = frozenset(catalogue.classes("gpu_model"))
        self._models = [model if model in models else OTHER_MODEL for model in gpus]
        self._window_s = task.window_s
        self._retention_s = task.retention_s
        self._series = task.series_key
        self._filler = RowFiller(catalogue)
        self._clock = clock
        self._store = store
        self._random_bytes = random_bytes
        self._next = first_window // task.window_s * task.window_s
        self._open: dict[int, WindowState] = {}

    @property
    def next_window(self) -> int:
        """Start in seconds of the oldest window that is not closed."""
        return self._next

    def set_clock(self, clock: HostClock) -> None:
        """Follow a wall clock that was corrected."""
        self._clock = clock

    def add(self, record: activity.Record) -> None:
        """Count a record in the window of its own time; what is local to the host is not."""
        match record:
            case activity.KernelActivity():
                self._add_activity(record)
            case activity.Observation():
                self._add_observation(record)
            case activity.GpuCoverage():
                self._add_coverage(record)
            case activity.SourceCoverage():
                for window, part, whole in self._spans(record.boottime_ns, record.span_ns):
                    if (state := self._state_for(window)) is not None:
                        bump(state.sources, record.source, record.span_ns * part // whole)
            case _:
                pass

    def close(self, window: int) -> NDArray[np.int64]:
        """Close a window (start, s), give int64[k], base units. A stored one stays until `forget`.
        Raises  ValueError for a window that is closed already or is no window of the task
        """
        if window < self._next or window % self._window_s:
            raise ValueError(f"expected a multiple of {self._window_s} from {self._next} on, "
                             f"got window {window}")  # fmt: skip
        state = self._state(window)
        coin = self._coin(state)
        if self._store is not None:
            self._save(window, state)
        row = self._row(state, coin)
        self._open = {start: kept for start, kept in self._open.items() if start > window}
        self._next = window + self._window_s
        return row

    def preview(self, window: int) -> NDArray[np.int64]:
        """Return int64[k] of an open window as it stands; it stays open."""
        state = self._state(window)
        return self._row(state, self._coin(state))

    def _row(self, state: WindowState, coin: int) -> NDArray[np.int64]:
        gpus = [self._gpu_window(state, index) for index in range(len(self._models))]
        rows = [self._section_row(*pair, state, gpus, coin) for pair in self._sections]
        return np.concatenate(rows)

    def _section_row(
        self,
        section: Section,
        spec: SectionSpec,
        state: WindowState,
        gpus: Sequence[GpuWindow],
        coin: int,
    ) -> NDArray[np.int64]:
        if coin >= spec.rate_millionths:
            return self._filler.unmeasured(section, gpus)
        row = self._filler.fill(section, state, gpus)
        seen = section.kind is SectionKind.INDICATORS and bool(row.any())
        known = seen or not section.counts_unmeasured
        if known or measured(section, state, gpus, self._window_s):
            return row
        row[:] = 0
        row[section.index(UNMEASURED)] = spec.unmeasured
        return row

    def skip_to(self, at_s: int) -> None:
        """Leave out every window that starts before a time, kept totals included."""
        window = -(-at_s // self._window_s) * self._window_s
        if window <= self._next:
            return
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

    def _add_activity(self, record: activity.KernelActivity) -> None:
        if not 0 <= record.gpu < len(self._models):
            return
        for window, overlap_ns, whole_ns in self._spans(record.boottime_ns, record.span_ns):
            state = self._state_for(window)
            if state is None:
                continue
            state.gpu(record.gpu).add(record, (overlap_ns, whole_ns))
            seen = record.count > 0 and record.application != UNKNOWN_APPLICATION
            if seen and record.application in self._cells.get(_APPLICATIONS_SEEN, ()):
                state.observe(_APPLICATIONS_SEEN, record.application, 1)

    def _add_coverage(self, record: activity.GpuCoverage) -> None:
        if not 0 <= record.gpu < len(self._models):
            return
        only = self._window_of(record.boottime_ns, record.span_ns)
        if only is not None and only in self._open and only >= self._next:
            self._open[only].gpu(record.gpu).cover(record.source, record.span_ns)
            return
        for window, overlap_ns, whole_ns in self._spans(record.boottime_ns, record.span_ns):
            if (state := self._state_for(window)) is not None:
                covered_ns = record.span_ns * overlap_ns // whole_ns
                state.gpu(record.gpu).cover(record.source, covered_ns)

    def _add_observation(self, record: activity.Observation) -> None:
        section = self._by_name.get(record.section)
        if section is None:
            return  # another task may carry this section
        cell = record.cell
        if section.kind is SectionKind.HISTOGRAM and section.bins is not None:
            inner = section.bins.names[section.bins.index(record.value)]
            cell = f"{cell}/{inner}" if cell else inner
        if cell not in self._cells[section.name] or record.value < 0:
            return
        window = (record.boottime_ns + self._clock.offset_ns) // NS_PER_S
        state = self._state_for(window // self._window_s * self._window_s)
        if state is not None:
            amount = 1 if section.kind is SectionKind.HISTOGRAM else record.value
            state.observe(section.name, cell, amount)

    def _window_of(self, boottime_ns: int, span_ns: int) -> int | None:
        """Return the window of all of [start, start + span]; nearly every record has one."""
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
        """Return the state of a record's window, None when it is late or early."""
        if self._next <= window <= self._next + FARTHEST_AHEAD * self._window_s:
            return self._state(window)
        return None

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

    def _gpu_window(self, state: WindowState, index: int) -> GpuWindow:
        wall_ms, totals = self._window_s * 1_000, state.gpu(index)
        measured_ms = totals.measured_ns(wall_ms * NS_PER_MS) // NS_PER_MS
        return GpuWindow(self._models[index], totals, measured_ms, wall_ms)


_ERASE_EVERY_S: Final = 600
DURABLE_FROM_S: Final = 3600
"""Windows at least this long are kept on disk: a restart must not empty a day or a week."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window that has ended: int64[hosts, k] in base units, bool[hosts] of who is up."""

    task_id: TaskId
    start_s: int
    rows: NDArray[np.int64] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)


class Windows(Protocol):
    """What the runtime closes windows of: one host's accumulators, or the simulator's hosts."""

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None: ...

    def add(self, record: activity.Record) -> None: ...

    def next_end_s(self) -> int | None: ...

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]: ...

    def follow_clock(self) -> None: ...

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None: ...

    def persist(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WindowPreview:
    """A window in the making, for this host's own eyes: int64[k] raw row as it stands."""

    task: Task
    start_s: int
    row: NDArray[np.int64]


_LOCAL: Final = frozenset(
    {activity.HostTicks, activity.HostTable, activity.StepMarks, activity.RhythmMarks}
)
"""What no window takes: it stays on this host."""


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    windows: WindowAccumulator
    sections: frozenset[str]
    last_s: int | None = None
    """Close this window and no later one: a newer version of the series takes over after it."""


class TaskWindows:
    """One accumulator per task; a new version begins where the old one's open window ends."""

    def __init__(
        self,
        catalogue: Catalogue,
        gpus: Sequence[str],
        store: DurableAccumulators | None,
        host_clock: Callable[[], HostClock],
    ) -> None:
        self._catalogue = catalogue
        self._gpus = tuple(gpus)
        self._store = store
        self._host_clock = host_clock
        self._open: list[_Open] = []
        self._erase_at_s = 0

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        store = self._store if task.window_s >= DURABLE_FROM_S else None
        if store is not None:
            store.erase_before(task.series_key, now_s - task.window_s - task.retention_s)
        kept = store.windows(task.series_key) if store is not None else []
        first = min([*kept, now_s])
        for old in self._open:
            if old.task.series_key == task.series_key and old.last_s is None:
                old.last_s = old.windows.next_window
                first = old.last_s + task.window_s
        accumulator = WindowAccumulator(
            self._catalogue,
            task,
            self._gpus,
            clock=self._host_clock(),
            store=store,
            first_window=first,
        )
        sections = frozenset(section.name for section in task.sections)
        self._open.append(_Open(task_id, task, accumulator, sections))

    def add(self, record: activity.Record) -> None:
        """Give a record to every task; each takes what its sections name."""
        if type(record) in _LOCAL:
            return
        section = record.section if isinstance(record, activity.Observation) else None
        for open_task in self._open:
            if section is None or section in open_task.sections:
                open_task.windows.add(record)

    def next_end_s(self) -> int | None:
        return min((o.windows.next_window + o.task.window_s for o in self._open), default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Close every window whose end has passed, oldest first, and drop finished tasks."""
        if self._store is not None and now_s >= self._erase_at_s:
            # Also of a series that ended while the agent was down.
            self._store.erase_expired(now_s)
            self._erase_at_s = now_s + _ERASE_EVERY_S
        for open_task in list(self._open):
            # A clock that jumps ahead passes windows that nobody takes any more: leave them out.
            open_task.windows.skip_to(now_s - open_task.task.window_s - open_task.task.retention_s)
            while open_task.windows.next_window + open_task.task.window_s <= now_s:
                start_s = open_task.windows.next_window
                if open_task.last_s is not None and start_s > open_task.last_s:
                    break
                row = open_task.windows.close(start_s)
                if open_task.task.first_window <= start_s <= open_task.task.last_window:
                    here = np.ones(1, dtype=np.bool_)
                    yield ClosedWindow(open_task.task_id, start_s, row.reshape(1, -1), here)
                open_task.windows.forget(start_s)
        self._open = [
            o for o in self._open
            if o.windows.next_window <= (o.task.last_window if o.last_s is None else o.last_s)
        ]  # fmt: skip

    def open_windows(self) -> Iterator[WindowPreview]:
        """Give every task's open window as it stands; nothing changes by looking."""
        for open_task in self._open:
            start_s = open_task.windows.next_window
            yield WindowPreview(open_task.task, start_s, open_task.windows.preview(start_s))

    def follow_clock(self) -> None:
        """Map the boot clock to the wall clock anew: only the wall clock is disciplined."""
        clock = self._host_clock()
        for open_task in self._open:
            open_task.windows.set_clock(clock)

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None:
        """Begin with the present again after a clock ahead; short windows start anew."""
        self.persist()
        self._open.clear()
        self._erase_at_s = 0
        for task_id, task in tasks.items():
            self.open_task(task_id, task, now_s)

    def persist(self) -> None:
        for open_task in self._open:
            open_task.windows.persist()
