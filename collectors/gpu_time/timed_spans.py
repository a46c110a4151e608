"""What recording windows tell of a process, for the views of this host and for profiles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.estimated_time import EstimatedTime
from collectors.records.gpu_time import FamilyTime, TimedGpu, TimedKernel

from .recorded_work import Growth
from .row_names import RowNames
from .segment import RowKind, Snapshot
from .window_estimates import WindowEstimates

_MOST_NS: Final = 1 << 50
"""Growth between two looks that no GPU reaches: 13 days."""
_COVERED: Final = (
    "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
    "collective_beside_compute_ns", "kernels_beside_ns",
)  # fmt: skip
"""Of a device, in the order of `TimedGpu`."""
_LOST: Final = ("records_lost_cupti", "buffers_refused", "bad_times")

_Floats = NDArray[np.float64]
_Places = NDArray[np.int64]
GpuOf = Callable[[int], int]
"""Gives the number by which a GPU is told from the process's own."""


class TimedRow(NamedTuple):
    """A kernel, and what of it only profiles tell.

    recorded  how many of its launches were
    alone     launched one by one, not by a graph; rows are told apart by it where that was asked
    """

    kernel: TimedKernel
    recorded: int
    alone: bool


class TimedSpan(NamedTuple):
    """What the windows that are told of now say, of the time since the windows before.

    begun_ns      CLOCK_BOOTTIME
    recorded_ns   of `span_ns`
    lost          records that CUPTI dropped or that had no times
    """

    begun_ns: int
    span_ns: int
    recorded_ns: int
    lost: int
    time: EstimatedTime
    families: tuple[FamilyTime, ...]
    rows: tuple[TimedRow, ...]
    gpus: tuple[TimedGpu, ...]


class _Row(NamedTuple):
    """What a row is told as."""

    gpu: int
    kernel: str
    family: str
    alone: bool


class _Groups:
    """Rows of a segment in groups, each by the key of its rows."""

    def __init__(self, rows: int, places: _Places, keys: Sequence[Hashable]) -> None:
        number: dict[Hashable, int] = {}
        found = [number.setdefault(key, len(number)) for key in keys]
        self.number = len(number)
        self._labels = np.full(rows, self.number, np.int64)
        self._labels[places] = found

    def times(self, estimates: WindowEstimates) -> list[EstimatedTime]:
        """Give each group's time."""
        return estimates.by(self._labels, self.number + 1)[: self.number]

    def sums(self, values: _Floats) -> list[float]:
        """Add up float64[rows] by group."""
        found: list[float] = np.bincount(self._labels, values, self.number + 1).tolist()
        return found[: self.number]


class TimedSpans:
    """Follows the windows of one process, from when they were told of last."""

    def __init__(self, growth: Growth, names: RowNames, graphs_apart: bool = False) -> None:
        """Take what follows the process.

        graphs_apart   kernels that a graph launches are told apart from the same ones alone
        """
        self._growth, self._names, self._graphs_apart = growth, names, graphs_apart
        self._before = growth.before

    def take(self, gpu_of: GpuOf) -> TimedSpan | None:
        """Give what the state that was followed last tells; None where no window is told of."""
        estimates = self._growth.estimated
        if estimates is None or not estimates.told:
            return None
        before, after = self._before, self._growth.before
        self._before = after
        rows = len(after.rows)
        places = estimates.rows(rows)
        named = list(self._named(after, places, gpu_of))
        families = _Groups(rows, places, [row.family for row in named])
        (time,) = _Groups(rows, np.arange(rows), [None] * rows).times(estimates)
        recorded_ns = sum(part.window.on_ns for part in estimates.told)
        grown_ns = float(_grown(before, after, "total_ns").sum())
        known = grown_ns > 0 and time.value_ns > 0
        scale = time.value_ns / grown_ns if known else estimates.span_ns / recorded_ns
        return TimedSpan(
            self._growth.since_ns - estimates.span_ns,
            estimates.span_ns,
            recorded_ns,
            sum(max(after.header[name] - before.header[name], 0) for name in _LOST),
            time,
            tuple(
                map(FamilyTime, dict.fromkeys(r.family for r in named), families.times(estimates))
            ),
            tuple(_timed_rows(before, after, estimates, places, named)),
            _timed_gpus(before, after, scale, gpu_of),
        )

    def _named(self, after: Snapshot, places: _Places, gpu_of: GpuOf) -> Iterator[_Row]:
        found = [after.row(place) for place in places.tolist()]
        self._names.learn((kind, name) for _, kind, name in found)
        for device, kind, name in found:
            alone = not self._graphs_apart or kind is RowKind.KERNEL
            yield _Row(gpu_of(device), *self._names.called(kind, name), alone)


def _grown(before: Snapshot, after: Snapshot, name: str) -> _Floats:
    """Give by how much a field of each row grew, float64[rows]; 0 where no GPU reaches it."""
    grown = after.rows[name].copy()
    known = before.rows[: len(grown)]
    grown[: len(known)] -= known[name]
    return np.where(grown <= _MOST_NS, grown, 0).astype(np.float64)


def _timed_rows(
    before: Snapshot, after: Snapshot, estimates: WindowEstimates, places: _Places,
    named: Sequence[_Row],
) -> Iterator[TimedRow]:  # fmt: skip
    """Yield rows with one name once; what is known of recorded ones alone stands for all."""
    groups = _Groups(len(after.rows), places, named)
    columns = [
        groups.sums(_grown(before, after, name))
        for name in ("count", "bytes", "delay_ns", "delays")
    ]
    launched, times = groups.sums(estimates.launched(len(after.rows))), groups.times(estimates)
    for row, launches, time, records, moved, delay_ns, delays in zip(
        dict.fromkeys(named), launched, times, *columns, strict=True
    ):
        kernel = TimedKernel(
            row.gpu, row.kernel, row.family, launches, time,
            max(moved * launches / records, 0.0) if records else 0.0,
            delay_ns / delays if delays else None,
        )  # fmt: skip
        yield TimedRow(kernel, round(records), row.alone)


def _timed_gpus(
    before: Snapshot, after: Snapshot, scale: float, gpu_of: GpuOf
) -> tuple[TimedGpu, ...]:
    """Give what the process's work covered of each GPU: scaled as the time of its rows was."""
    found: dict[int, Any] = {}
    for device, (then, now) in enumerate(zip(before.devices, after.devices, strict=True)):
        grown = np.array([int(now[name]) - int(then[name]) for name in _COVERED], dtype=np.float64)
        if grown.any() and (grown >= 0).all() and (grown <= _MOST_NS).all():
            gpu = gpu_of(device)
            found[gpu] = found.get(gpu, 0.0) + grown * scale
    return tuple(TimedGpu(gpu, *values.tolist()) for gpu, values in sorted(found.items()))
