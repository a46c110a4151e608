"""What is usual of signals, step times and other cgroups; one frame as numbers of one subject."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import FINE_BINS, HostSample, Signals, Subject
from diagnosis.frames.signals import FINE, SIGNALS, Scope, floors_of

_GPU_SIGNALS: Final = tuple(floors_of(SIGNALS, Scope.GPU))
_LOWERED: Final = frozenset({
    "pcie_width_percent", "pcie_generation_percent", "sm_clock_percent", "sm_clock_mhz",
    "memory_clock_mhz",
})  # fmt: skip
"""What a GPU that has nothing to do lowers by itself, to save power."""
_IN_USE_PERCENT: Final = 10.0
"""Busy less than this, a GPU may be put to sleep between its kernels."""
_AWAKE_PERCENT: Final = 30.0
"""Where nobody tells how busy it is, as under MIG: asleep, an H100 or A100 has 15 to 18 % of its
clock."""
_DOWN_IS_WORSE: Final = np.array([SIGNALS[name].hurts == "down" for name in _GPU_SIGNALS])
_NAN: Final = float("nan")

Row = NDArray[np.float64]


def gpu_row(frame: HostSample, indices: tuple[int, ...]) -> Row:
    """Give float64[signals of GPUs]; NaN where a signal was not measured, or says nothing."""
    rows = [_row(frame.gpus[index]) for index in indices if index in frame.gpus]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return np.full(len(_GPU_SIGNALS), _NAN)
    stacked = np.stack(rows)
    worst = np.where(_DOWN_IS_WORSE, np.fmin.reduce(stacked), np.fmax.reduce(stacked))
    return np.asarray(worst, dtype=np.float64)


def in_use(gpu: Signals) -> bool:
    """Whether a GPU works: of one that does not, a slow clock or link accuses nobody."""
    busy = gpu.get("gpu_busy_percent")
    if busy is not None:
        return busy >= _IN_USE_PERCENT
    return gpu.get("sm_clock_percent", 0.0) >= _AWAKE_PERCENT


def _row(gpu: Signals) -> Row:
    hidden = frozenset[str]() if in_use(gpu) else _LOWERED
    return np.array([_NAN if name in hidden else gpu.get(name, _NAN) for name in _GPU_SIGNALS])


Floats = NDArray[np.float64]


class ChannelPlace(StrEnum):
    OWN = "own"
    HOST = "host"
    OTHER = "other"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Channel:
    """One number a second of one subject; `floor` is the least spread that counts, in its unit."""

    place: ChannelPlace
    signal: str
    floor: float

    @property
    def name(self) -> str:
        return f"{self.place}.{self.signal}"

    @property
    def group(self) -> str:
        return SIGNALS[self.signal].group


_SCOPES: Final = {
    ChannelPlace.OWN: Scope.SUBJECT,
    ChannelPlace.HOST: Scope.HOST,
    ChannelPlace.OTHER: Scope.CGROUP,
    ChannelPlace.GPU: Scope.GPU,
}
_FLOORS: Final = {place: floors_of(SIGNALS, scope) for place, scope in _SCOPES.items()}
_OWN: Final = tuple(_FLOORS[ChannelPlace.OWN])
_HOST: Final = tuple(_FLOORS[ChannelPlace.HOST])
OTHER_SIGNALS: Final = tuple(_FLOORS[ChannelPlace.OTHER])
CHANNELS: Final = tuple(
    Channel(place, signal, floor)
    for place, floors in _FLOORS.items()
    for signal, floor in floors.items()
)
CHANNEL_NAMES: Final = tuple(channel.name for channel in CHANNELS)
INDEX: Final = {name: place for place, name in enumerate(CHANNEL_NAMES)}
FLOORS: Final = np.array([channel.floor for channel in CHANNELS])


@dataclass(slots=True, eq=False)
class Readings:
    """One frame, read once for all its subjects.

    names    busy cgroups, subjects' own included
    table    float64[cgroups, OTHER_SIGNALS], 0 where not measured
    known    bool[cgroups, OTHER_SIGNALS], where measured
    """

    frame: HostSample
    names: tuple[str, ...]
    table: Floats
    known: NDArray[np.bool_]
    _host: Floats | None = None

    @classmethod
    def of(cls, frame: HostSample) -> Readings:
        rows = [[row.get(name, _NAN) for name in OTHER_SIGNALS] for row in frame.cgroups.values()]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(OTHER_SIGNALS))
        known = table == table  # noqa: PLR0124
        table[~known] = 0.0
        return cls(frame, tuple(frame.cgroups), table, known)

    def of_subject(self, subject: Subject) -> Floats:
        """Give float64[CHANNELS]; NaN where a signal was not measured."""
        if self._host is None:
            self._host = _values(self.frame.host, _HOST)
        own = _values(subject.signals, _OWN)
        gpu = gpu_row(self.frame, subject.gpus)
        others = np.array([not related(name, subject.cgroup) for name in self.names], dtype=bool)
        sums = np.where(others @ self.known > 0, others @ self.table, _NAN)
        return np.concatenate((own, self._host, sums, gpu))


def related(other: str, cgroup: str) -> bool:
    """Whether a cgroup is the subject's own, above or below it."""
    if other in ("", "/") or other == cgroup:
        return True
    return cgroup.startswith(f"{other}/") or other.startswith(f"{cgroup}/")


def read(frame: HostSample, key: str) -> Floats:
    """Give float64[CHANNELS] of one subject; NaN where a signal was not measured."""
    return Readings.of(frame).of_subject(frame.subjects[key])


def _values(signals: Mapping[str, float], names: tuple[str, ...]) -> Floats:
    return np.array([signals.get(name, _NAN) for name in names])


NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
_PER_OCTAVE: Final = 32
_FIRST_OCTAVE: Final = 10  # 1 us
_OCTAVES: Final = 28  # to 275 s
_BINS: Final = _PER_OCTAVE * _OCTAVES


class SignalBaseline:
    """Medians and spreads of many signals over the last seconds that were usual.

    floors     float64[signals]: the least spread of each that counts, in its unit
    relative   float64[signals]: the same as a share of the median
    """

    def __init__(
        self, floors: NDArray[np.float64], length: int, relative: NDArray[np.float64]
    ) -> None:
        self._floors = floors
        self._relative = relative
        self._ring = np.full((length, floors.size), np.nan)
        self.seconds = 0
        self.median = np.full(floors.size, np.nan)
        self.spread = np.full(floors.size, np.nan)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take one usual second: float64[signals], NaN where not measured."""
        self._ring[self.seconds % self._ring.shape[0]] = values
        self.seconds += 1

    def refresh(self) -> None:
        """Compute `median` and `spread` anew; NaN where a signal was never measured."""
        rows = self._ring[: min(self.seconds, self._ring.shape[0])]
        if rows.shape[0] == 0:
            return
        self.median = _median(rows)
        strayed = NORMAL * _median(np.abs(rows - self.median))
        least = np.maximum(self._floors, self._relative * np.abs(self.median))
        self.spread = np.maximum(strayed, least)

    def deviation(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distances from the medians in spreads, float64[signals]; NaN where unknown."""
        return np.asarray((values - self.median) / self.spread)


def _median(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of each column without its NaN: a tenth of what numpy.nanmedian takes."""
    ordered = np.sort(rows, axis=0)  # NaN last
    known = np.count_nonzero(rows == rows, axis=0)  # noqa: PLR0124
    last = np.maximum(known - 1, 0)
    columns = np.arange(rows.shape[1])
    return np.asarray(0.5 * (ordered[last // 2, columns] + ordered[(last + 1) // 2, columns]))


class StepBaseline:
    """Distribution of step times in bins of a 32nd of an octave; older steps fade.

    fade_s   after how many usual seconds a step counts 1/e, but never fewer than `least_steps`
             steps are kept in mind
    """

    def __init__(self, fade_s: float, least_steps: float) -> None:
        self._fade_s = fade_s
        self._least_steps = least_steps
        self._counts = np.zeros(_BINS)
        self._sums: NDArray[np.float64] = np.zeros(_BINS)
        self.steps = 0.0
        self._span_s = 0.0

    def add(self, counts: NDArray[np.int64], span_s: float) -> None:
        """Take the steps of a usual stretch of time, binned by `step_bins`."""
        if self.steps > self._least_steps:
            kept = max(math.exp(-span_s / self._fade_s), self._least_steps / self.steps)
            self._counts *= kept
            self._span_s *= kept
        self._span_s += span_s
        self._counts += counts
        self._sums = np.cumsum(self._counts)
        self.steps = float(self._sums[-1])

    @property
    def rate_per_s(self) -> float:
        return self.steps / self._span_s if self._span_s > 0 else 0.0

    def quantile_ns(self, share: float) -> float:
        """Step time below which `share` of the steps lie; NaN without steps."""
        if self.steps <= 0:
            return float("nan")
        place = int(self._sums.searchsorted(share * self.steps))
        return float(2.0 ** (_FIRST_OCTAVE + (min(place, _BINS - 1) + 0.5) / _PER_OCTAVE))

    def above(self, duration_ns: float) -> float:
        """How many of the steps kept in mind took longer."""
        place = int((math.log2(max(duration_ns, 1.0)) - _FIRST_OCTAVE) * _PER_OCTAVE)
        return self.steps - float(self._sums[min(max(place, 0), _BINS - 1)])


def step_bins(duration_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    places = ((np.log2(np.maximum(duration_ns, 1)) - _FIRST_OCTAVE) * _PER_OCTAVE).astype(np.int64)
    return np.bincount(np.minimum(np.maximum(places, 0), _BINS - 1), minlength=_BINS)


NO_LAGS: Final = np.full(len(FINE), np.nan)
FINE_FRAMES: Final = 30
REACH_S: Final = 3.0
"""How far before an onset, and after it, a departure is looked for."""
_NS_PER_S: Final = 1e9
_SPREADS: Final = 5.0
_FEWEST_BINS: Final = 30
_SHAPE: Final = (len(FINE), FINE_BINS)
_GAP: Final = np.full(_SHAPE, np.nan, np.float32)
_FINE_FLOORS: Final = np.array(
    [
        2 * FLOORS[INDEX[n]] if (n := f"{ChannelPlace.HOST}.{name}") in INDEX else np.inf
        for name in FINE
    ]
)


class FineHistory:
    """The last half minute in bins of 100 ms, of the whole host."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int, NDArray[np.float32]]] = deque(maxlen=FINE_FRAMES)

    def take(self, frame: HostSample) -> None:
        """Add a frame's bins; one without them leaves a gap."""
        fits = frame.fine.shape == _SHAPE
        self._frames.append((frame.boottime_ns, frame.span_ns, frame.fine if fits else _GAP))

    def lags_s(self, onset_ns: int) -> NDArray[np.float64]:
        """Give float64[FINE]: seconds from each signal's departure to the onset.

        Negative: the signal followed. NaN: it did not leave what was usual, or is not measured.
        """
        tenths = np.arange(1, FINE_BINS + 1)
        ends = [
            end_ns - span_ns + tenths * span_ns // FINE_BINS for end_ns, span_ns, _ in self._frames
        ]
        ends_ns = np.concatenate([np.zeros(0, np.int64), *ends])
        order = np.argsort(ends_ns, kind="stable")
        ends_s = (ends_ns[order] - onset_ns) / _NS_PER_S
        parts = [_GAP[:, :0], *(fine for _, _, fine in self._frames)]
        bins = np.concatenate(parts, axis=1)[:, order].astype(np.float64)
        lags = np.full(len(FINE), np.nan)
        usual = bins[:, ends_s < -REACH_S]
        near = np.abs(ends_s) <= REACH_S
        for row in np.flatnonzero(np.count_nonzero(usual == usual, axis=1) >= _FEWEST_BINS):  # noqa: PLR0124
            known = usual[row][~np.isnan(usual[row])]
            middle = np.median(known)
            spread = max(NORMAL * float(np.median(np.abs(known - middle))), _FINE_FLOORS[row])
            away = np.abs(bins[row, near] - middle) > _SPREADS * spread
            left = np.flatnonzero(away[:-1] & away[1:])
            if left.size:
                lags[row] = -ends_s[near][left[0]]
        return lags


_OTHER_FLOORS: Final = FLOORS[[INDEX[f"{ChannelPlace.OTHER}.{name}"] for name in OTHER_SIGNALS]]
_LEAST_SHARE: Final = 0.3
"""Of all that others grew by: below it nobody in particular interferes."""
_FADE: Final = 1 / 30
_NS: Final = 1_000_000_000


class CgroupNeighbours:
    """Usual use of each busy cgroup, forgotten when it was idle for long; bounded."""

    def __init__(self, most: int, forget_s: float) -> None:
        self._most = most
        self._forget_ns = int(forget_s * 10 * _NS)
        self._places: dict[str, int] = {}
        self._usual = np.zeros((most, len(OTHER_SIGNALS)))
        self._free = list(range(most))
        self._seen_ns: dict[str, int] = {}
        self._oldest_ns = 0
        self._names: tuple[str, ...] = ()
        self._rows: list[int] = []
        self._kept: list[int] = []

    def learn(self, readings: Readings) -> None:
        now_ns = readings.frame.boottime_ns
        if readings.names != self._names:
            self._follow(readings)
        usual = self._usual[self._kept]
        self._usual[self._kept] = usual + _FADE * (readings.table[self._rows] - usual)
        self._seen_ns.update(dict.fromkeys(readings.names, now_ns))
        self._drop(now_ns)

    def _follow(self, readings: Readings) -> None:
        """Find the place of each cgroup; a new one begins with what it uses now."""
        for row, name in enumerate(readings.names):
            if name not in self._places and self._free:
                place = self._places[name] = self._free.pop()
                self._usual[place] = readings.table[row]
        known = [(row, name) for row, name in enumerate(readings.names) if name in self._places]
        self._rows = [row for row, _ in known]
        self._kept = [self._places[name] for _, name in known]
        self._names = readings.names

    def _drop(self, now_ns: int) -> None:
        crowded = len(self._seen_ns) > 4 * self._most
        if now_ns - self._oldest_ns <= self._forget_ns and not crowded:
            return
        gone = [name for name, at in self._seen_ns.items() if now_ns - at > self._forget_ns]
        if len(self._seen_ns) - len(gone) > 4 * self._most:
            gone = [name for name in self._seen_ns if name not in self._places]
        for name in gone:
            self._seen_ns.pop(name, None)
            place = self._places.pop(name, None)
            if place is not None:
                self._free.append(place)
        self._oldest_ns = min(self._seen_ns.values(), default=now_ns)
        self._names = ()

    def grown(self, readings: Readings, cgroup: str, signal: str) -> str:
        """Name the cgroup apart from `cgroup` whose `signal` grew most; "" where none does."""
        if signal not in OTHER_SIGNALS:
            return ""
        column = OTHER_SIGNALS.index(signal)
        before = {name: float(self._usual[at, column]) for name, at in self._places.items()}
        growth = {
            name: float(now) - before.get(name, 0.0)
            for name, now in zip(readings.names, readings.table[:, column], strict=True)
            if not related(name, cgroup)
        }
        if not growth:
            return ""
        most = max(growth, key=lambda name: growth[name])
        risen = sum(grown for grown in growth.values() if grown > 0)
        enough = growth[most] >= _OTHER_FLOORS[column] and growth[most] >= _LEAST_SHARE * risen
        return most if enough else ""
