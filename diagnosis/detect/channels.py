"""One frame as numbers of one subject: its own signals, the host's, other cgroups', its GPUs'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Frame, Signals, Subject
from diagnosis.frames.signals import SIGNALS, Scope, floors_of

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


def gpu_row(frame: Frame, indices: tuple[int, ...]) -> Row:
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
    """Where a channel's signal is read."""

    OWN = "own"
    HOST = "host"
    OTHER = "other"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Channel:
    """One number a second of one subject.

    floor   the least spread that counts, in the signal's unit: closer to usual is never unusual
    """

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

    frame: Frame
    names: tuple[str, ...]
    table: Floats
    known: NDArray[np.bool_]
    _host: Floats | None = None

    @classmethod
    def of(cls, frame: Frame) -> Readings:
        """Read what all subjects share."""
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
        return np.concatenate((own, self._host, self._others(subject.cgroup), gpu))

    def _others(self, cgroup: str) -> Floats:
        others = np.array([not related(name, cgroup) for name in self.names], dtype=bool)
        sums = others @ self.table
        return np.asarray(np.where(others @ self.known > 0, sums, _NAN))


def related(other: str, cgroup: str) -> bool:
    """Whether a cgroup is the subject's own, above or below it."""
    if other in ("", "/") or other == cgroup:
        return True
    return cgroup.startswith(f"{other}/") or other.startswith(f"{cgroup}/")


def read(frame: Frame, key: str) -> Floats:
    """Give float64[CHANNELS] of one subject; NaN where a signal was not measured."""
    return Readings.of(frame).of_subject(frame.subjects[key])


def _values(signals: Mapping[str, float], names: tuple[str, ...]) -> Floats:
    return np.array([signals.get(name, _NAN) for name in names])
