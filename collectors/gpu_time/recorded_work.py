"""What a process's kernels did between two states of its segment, and how much of it was recorded.

CUPTI numbers all launches of a context: their exact number is known once the next window has met
one. Copies and kernels of graphs have no such numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import EVERYTHING_MILLIONTHS, log2_bin, scale
from collectors.records.gpu_time import EstimatedTime, FamilyTime, TimedGpu, TimedKernel

from .segment import BINS, ROW, RecordingState, RowKind, RowNames, Snapshot
from .window_estimates import Window, WindowEstimates, WindowEstimator

_KINDS: Final = frozenset(map(int, RowKind))
NUMBERED: Final = frozenset({RowKind.KERNEL})
_NUMBERED: Final = tuple(map(int, NUMBERED))
_MOST_RECORDS: Final = 1 << 40
_MOST_NS: Final = 1 << 50
"""Growth of a row between two looks that no GPU reaches: 13 days."""
_MOST_BIN: Final = 1 << 31
_FINE: Final = EVERYTHING_MILLIONTHS // 100
"""Shares from this on are rounded by less than 0.01 %."""
_LONGEST_HELD_NS: Final = 5_000_000_000
"""A window that goes on for longer is told in parts."""
_LOSSES: Final = ("records_lost_cupti", "buffers_refused", "bad_times", "without_context")
"""Counts of the header that grow where something is missing from the rows or from the numbers."""


class Work(NamedTuple):
    """What is estimated of one kernel, or of copies in one direction: over `rate` it is all of it.

    records  how many were recorded, times `weight`; none where only the windows before had some
    time_ns  their durations, summed, times `weight`
    bins     (log2 of ns, count), times `weight`
    rate     share of what happened that was recorded, times `weight`, in millionths, 1 to 1,000,000
    weight   1, or a power of ten where too little was recorded to be told in millionths
    """

    device: int
    kind: RowKind
    name: str
    records: int
    time_ns: int
    bins: tuple[tuple[int, int], ...]
    rate: int
    weight: int

    @property
    def launches(self) -> int:
        return round(self.records * EVERYTHING_MILLIONTHS / self.rate)


class RecordedShare(NamedTuple):
    """How much was recorded: `part` of `whole`, 1 <= part <= whole."""

    part: int
    whole: int

    def rate(self) -> tuple[int, int]:
        weight = 1
        while EVERYTHING_MILLIONTHS * self.part * weight < _FINE * self.whole:
            weight *= 10
        return round(EVERYTHING_MILLIONTHS * self.part * weight / self.whole), weight


EVERYTHING: Final = RecordedShare(1, 1)


class _Grown(NamedTuple):
    """Rows that grew: their places, and float64[n] of records and ns."""

    rows: NDArray[np.int64]
    counts: NDArray[np.float64]
    times: NDArray[np.float64]


@dataclass(slots=True)
class CounterDeltas:
    """Follows one process.

    before     its newest state that was told of: what is there already was told to somebody else
    since_ns   until when its time is accounted for, CLOCK_BOOTTIME
    newest     its newest state: a window that goes on is told of when it is over
    estimated  what the views are told of the windows that ended; None where none did
    """

    before: Snapshot
    since_ns: int
    launches: RecordedShare = EVERYTHING
    time: RecordedShare = EVERYTHING
    newest: Snapshot = field(init=False)
    estimated: WindowEstimates | None = None
    _estimator: WindowEstimator = field(default_factory=WindowEstimator)

    def __post_init__(self) -> None:
        self.newest = self.before

    def follow(self, after: Snapshot, *, last: bool = False) -> Iterator[Work]:
        """Yield what came since the last state; `last`: nothing is waited for."""
        looked, self.newest, self.estimated = self.newest, after, None
        if not last and self._goes_on(looked, after):
            return
        before, self.before = self.before, after
        kinds = after.rows["kind"][: len(before.rows)]
        if not np.array_equal(kinds, before.rows["kind"]):
            self._estimator = WindowEstimator()  # of no library: rows stay as they are
        grown = _grown(before, after)
        window = self._window(before, after, grown)
        self._shares(before, after)
        if window is None:
            yield from self._scaled(before, after, grown)
            return
        kernels = np.isin(after.rows["kind"], _NUMBERED)
        found = self.estimated = self._estimator.estimate(window, kernels, last=last)
        yield from self._works(before, after, (found.counts, found.times))

    def _goes_on(self, looked: Snapshot, after: Snapshot) -> bool:
        header, on_ns = after.header, after.header["on_ns"] - self.before.header["on_ns"]
        if not 0 < on_ns < min(header["written_ns"] - self.since_ns, _LONGEST_HELD_NS):
            return False
        if header["state"] == RecordingState.ON:
            return True
        # It is over, and CUPTI has not left: records may still come, if anything does.
        attached = bool(header["closed_ns"]) and header["detaches"] < header["windows"]
        return attached and header["generation"] != looked.header["generation"]

    def _window(self, before: Snapshot, after: Snapshot, grown: _Grown) -> Window | None:
        now, then = after.header, before.header
        on_ns, span_ns = now["on_ns"] - then["on_ns"], now["written_ns"] - self.since_ns
        if on_ns <= 0 or span_ns <= 0:
            return None
        launches, numbered = (max(now[key] - then[key], 0) for key in ("launches", "numbered"))
        sound = all(now[name] == then[name] for name in _LOSSES)
        if numbered < launches:  # a device that was reset numbers anew
            sound, numbered = False, round(launches * span_ns / min(on_ns, span_ns))
        return Window(min(on_ns, span_ns), span_ns, launches, numbered, *grown, sound)

    def _shares(self, before: Snapshot, after: Snapshot) -> None:
        """Learn which share was recorded; records that come behind a window have that window's."""
        on_ns, launches, numbered = (
            after.header[name] - before.header[name] for name in ("on_ns", "launches", "numbered")
        )
        if on_ns > 0:
            self.time = _share(on_ns, after.header["written_ns"] - self.since_ns)
            self.since_ns = max(self.since_ns, after.header["written_ns"])
        if numbered > 0:
            self.launches = _share(launches, numbered)
        elif launches <= 0:
            self.launches = self.time

    def _share_of(self, kind: RowKind) -> RecordedShare:
        return self.launches if kind in NUMBERED else self.time

    def _scaled(self, before: Snapshot, after: Snapshot, grown: _Grown) -> Iterator[Work]:
        """Yield rows without a window of their own, by the shares of the one before."""
        counts, times = np.zeros(len(after.rows)), np.zeros(len(after.rows))
        for at, row in enumerate(grown.rows.tolist()):
            part, whole = self._share_of(RowKind(int(after.rows[row]["kind"])))
            counts[row] = grown.counts[at] * (whole / part)
            times[row] = grown.times[at] * (whole / part)
        yield from self._works(before, after, (counts, times))

    def _works(
        self, before: Snapshot, after: Snapshot,
        estimates: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> Iterator[Work]:  # fmt: skip
        counts, times = estimates
        rows = np.flatnonzero(counts > 0)
        for row in rows.tolist():
            now = after.rows[row]
            kind = RowKind(int(now["kind"]))
            share = self._share_of(kind)
            rate, weight = share.rate()
            scaled = weight * share.part / share.whole
            records = min(max(round(counts[row] * scaled), 1), weight * _MOST_RECORDS)
            time_ns = min(round(times[row] * scaled), weight * _MOST_NS)
            then = before.rows[row] if row < len(before.rows) else np.zeros(1, ROW)[0]
            bins = _bins(now["bins"] - then["bins"], records, time_ns)
            yield Work(
                int(now["device"]), kind, after.names[row], records, time_ns, bins, rate, weight
            )


def _bins(grown: NDArray[np.uint32], records: int, time_ns: int) -> tuple[tuple[int, int], ...]:
    """Spread records over the bins in which the row grew; where it did not, all have the mean."""
    places = np.flatnonzero((grown > 0) & (grown <= _MOST_BIN))  # of 32 bits, which go round
    found = [int(grown[place]) for place in places.tolist()]
    if not found:
        return ((min(log2_bin(time_ns // records), BINS - 1), records),)
    shared = zip(places.tolist(), scale(found, records, sum(found)), strict=True)
    return tuple((place, count) for place, count in shared if count)


def _grown(before: Snapshot, after: Snapshot) -> _Grown:
    """Find the rows that grew as rows do."""
    then = np.zeros(len(after.rows), ROW)
    known = before.rows[: len(after.rows)]
    then[: len(known)] = known
    counts, times = (after.rows[name] - then[name] for name in ("count", "total_ns"))
    good = (counts > 0) & (counts <= _MOST_RECORDS) & (times <= _MOST_NS)
    rows = np.flatnonzero(good & np.isin(after.rows["kind"], tuple(_KINDS)))
    return _Grown(rows, counts[rows].astype(np.float64), times[rows].astype(np.float64))


def _share(part: int, whole: int) -> RecordedShare:
    return RecordedShare(min(max(part, 1), whole), whole) if whole > 0 else EVERYTHING


"""Growth between two looks that no GPU reaches: 13 days."""
_COVERED: Final = (
    "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
    "collective_beside_compute_ns", "kernels_beside_ns",
)  # fmt: skip
_LOST: Final = ("records_lost_cupti", "buffers_refused", "bad_times")

_Floats = NDArray[np.float64]
_Places = NDArray[np.int64]
GpuOf = Callable[[int], int]
"""Gives the number by which a GPU is told from the process's own."""


class TimedRow(NamedTuple):
    """A kernel, how many launches were recorded, and whether alone, not by a graph."""

    kernel: TimedKernel
    recorded: int
    alone: bool


class TimedSpan(NamedTuple):
    """What the windows told of now say of their time; `lost`: records dropped or without times."""

    begun_ns: int
    span_ns: int
    recorded_ns: int
    lost: int
    time: EstimatedTime
    families: tuple[FamilyTime, ...]
    rows: tuple[TimedRow, ...]
    gpus: tuple[TimedGpu, ...]


class _Row(NamedTuple):
    gpu: int
    kernel: str
    family: str
    alone: bool


class _Groups:
    def __init__(self, rows: int, places: _Places, keys: Sequence[Hashable]) -> None:
        number: dict[Hashable, int] = {}
        found = [number.setdefault(key, len(number)) for key in keys]
        self.number = len(number)
        self._labels = np.full(rows, self.number, np.int64)
        self._labels[places] = found

    def times(self, estimates: WindowEstimates) -> list[EstimatedTime]:
        return estimates.by(self._labels, self.number + 1)[: self.number]

    def sums(self, values: _Floats) -> list[float]:
        """Add up float64[rows] by group."""
        found: list[float] = np.bincount(self._labels, values, self.number + 1).tolist()
        return found[: self.number]


class TimedSpans:
    def __init__(self, deltas: CounterDeltas, names: RowNames, graphs_apart: bool = False) -> None:
        """Take what follows the process."""
        self._deltas, self._names, self._graphs_apart = deltas, names, graphs_apart
        self._before = deltas.before

    def take(self, gpu_of: GpuOf) -> TimedSpan | None:
        estimates = self._deltas.estimated
        if estimates is None or not estimates.told:
            return None
        before, after = self._before, self._deltas.before
        self._before = after
        rows = len(after.rows)
        places = estimates.rows(rows)
        named = list(self._named(after, places, gpu_of))
        families = _Groups(rows, places, [row.family for row in named])
        (time,) = _Groups(rows, np.arange(rows), [None] * rows).times(estimates)
        recorded_ns = sum(part.window.on_ns for part in estimates.told)
        grown_ns = float(_sums_grown(before, after, "total_ns").sum())
        known = grown_ns > 0 and time.value_ns > 0
        scale = time.value_ns / grown_ns if known else estimates.span_ns / recorded_ns
        return TimedSpan(
            self._deltas.since_ns - estimates.span_ns,
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


def _sums_grown(before: Snapshot, after: Snapshot, name: str) -> _Floats:
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
        groups.sums(_sums_grown(before, after, name))
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
    found: dict[int, Any] = {}
    for device, (then, now) in enumerate(zip(before.devices, after.devices, strict=True)):
        grown = np.array([int(now[name]) - int(then[name]) for name in _COVERED], dtype=np.float64)
        if grown.any() and (grown >= 0).all() and (grown <= _MOST_NS).all():
            gpu = gpu_of(device)
            found[gpu] = found.get(gpu, 0.0) + grown * scale
    return tuple(TimedGpu(gpu, *values.tolist()) for gpu, values in sorted(found.items()))
