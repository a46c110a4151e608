"""Puts one second together: what the sources handed out becomes a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.devices.device_port import DeviceReading
from collectors.records.activity import (
    GpuCoverage,
    HostEvent,
    HostTable,
    HostTicks,
    KernelActivity,
    Observation,
    Record,
    RhythmMarks,
    StepMarks,
)
from collectors.records.gpu_calls import GovernorState, GpuCalls
from collectors.records.gpu_time import GpuTimes

from .call_signals import CallSignals, on_gpus
from .cgroup_signals import CgroupSignals
from .cgroups import CgroupPressure, Places
from .columns import FineBins
from .frame import Frame
from .gpu_signals import GpuSignals
from .host_signals import HostSignals, fault_signals, observed
from .signals import SIGNALS, SignalTable
from .step_book import RhythmBook
from .subjects import Alive, SubjectBook, SubjectSecond

# How long packets of a watched cgroup take to their peer and back, by acknowledgements: pure.
#
# A path that has become longer, or a link that has become slower, lengthens every round trip, the
# shortest of a second too. A queue lengthens those of its busy moments. A slow peer lengthens none:
# its kernel acknowledges.

_FEWEST: Final = 3
"""Marks of a connection in a frame from which it counts."""

TripColumns = NDArray[np.int64]
"""int64[n, (socket, round trip in us, bytes)]"""


class RoundTrips:
    """Collects what the marks of one second saw of the connections that they were on."""

    def __init__(self) -> None:
        self._parts: dict[str, list[TripColumns]] = {}

    def add(self, marks: RhythmMarks) -> None:
        """Take what one drain handed over of a process."""
        told = marks.round_trip_us > 0
        if told.any():
            columns = marks.socket, marks.round_trip_us, marks.value
            part = np.stack([column[told] for column in columns], axis=1)
            self._parts.setdefault(marks.cgroup, []).append(part)

    def take(self) -> dict[str, dict[str, float]]:
        """Give the signals of each cgroup since the last call."""
        parts, self._parts = self._parts, {}
        found = {cgroup: _signals(np.concatenate(some)) for cgroup, some in parts.items()}
        return {cgroup: signals for cgroup, signals in found.items() if signals}


def _signals(marks: TripColumns) -> dict[str, float]:
    marks = marks[np.lexsort((marks[:, 1], marks[:, 0]))]
    sockets, trips_us = marks[:, 0], marks[:, 1]
    firsts = np.flatnonzero(np.concatenate([[True], sockets[1:] != sockets[:-1]]))
    counts = np.diff(np.append(firsts, len(marks)))
    carried = np.add.reduceat(marks[:, 2], firsts)
    often = counts >= _FEWEST
    if not often.any():
        return {}
    firsts, counts = firsts[often], counts[often]
    busiest = int(carried[often].argmax())
    return {
        "round_trip_us": float(trips_us[firsts[busiest] + counts[busiest] // 2]),
        "round_trip_least_us": float(trips_us[firsts].max()),
    }


_READ: Final = frozenset({"cpu", "cgroup", "block_cgroup", "device", "peer", "pressure"})


class Tables:
    """Collects tables by name until a frame takes them."""

    def __init__(self) -> None:
        self._found: dict[str, list[HostTable]] = {}

    def add(self, table: HostTable) -> None:
        """Take one; a source's first covers no time and says nothing."""
        if table.span_ns > 0 and table.name in _READ:
            self._found.setdefault(table.name, []).append(table)

    def take(self) -> dict[str, HostTable]:
        """Give everything since the last call, one table per name."""
        found, self._found = self._found, {}
        return {
            name: tables[0] if len(tables) == 1 else _sum(tables) for name, tables in found.items()
        }


def _sum(tables: Iterable[HostTable]) -> HostTable:
    """Add tables of one name up; those of another layout than the last are left out."""
    *others, last = tables
    alike = [table for table in others if table.columns == last.columns] + [last]
    rows = {
        name: place for place, name in enumerate(dict.fromkeys(r for t in alike for r in t.rows))
    }
    values = np.zeros((len(rows), len(last.columns)), np.int64)
    for table in alike:
        np.add.at(values, [rows[name] for name in table.rows], table.values)
    begun_ns = alike[0].boottime_ns
    span_ns = sum(table.span_ns for table in alike)
    return HostTable(last.name, tuple(rows), last.columns, values, begun_ns, span_ns)


SHORTEST_NS: Final = 500_000_000
"""A drain may come early (at a window's end): it then joins the next frame."""
_FAULTS: Final = "hardware_faults"

Extra = Callable[[int], dict[str, float]]
"""Host signals that no source hands out, asked once per frame with its end."""


class Framer:
    """Takes records as sources are drained, and gives a frame once a second.

    table    the signals
    watch    patterns of cgroups that are subjects whatever they do, `/train/*`
    extras   asked for more signals of the host
    faults   a source of hardware faults runs: no fault is then a zero
    pressure asked for the pressure of the subjects' cgroups; None: there is none
    """

    def __init__(
        self,
        table: SignalTable = SIGNALS,
        *,
        watch: Sequence[str] = (),
        extras: Sequence[Extra] = (),
        faults: bool = False,
        pressure: CgroupPressure | None = None,
        places: Places | None = None,
        alive: Alive | None = None,
    ) -> None:
        self._extras, self._has_faults = tuple(extras), faults
        self._tables, self._fine = Tables(), FineBins(table)
        self._host, self._cgroups = HostSignals(table), CgroupSignals(table)
        self._gpus, self._calls = GpuSignals(), CallSignals()
        self._pressure = pressure or CgroupPressure(None)
        self._rhythms, self._round_trips = RhythmBook(), RoundTrips()
        self._network: dict[str, dict[str, float]] = {}
        self._subjects = SubjectBook(watch, places, alive)
        self._levels: list[Observation] = []
        self._faults: list[Observation] = []
        self._lacking: frozenset[str] = frozenset()
        self._ended_ns: int | None = None

    def lack(self, signals: Iterable[str]) -> None:
        """Leave out what this host cannot measure: `signals.lacking` of the running sources."""
        self._lacking = frozenset(signals)
        self._fine.lack(self._lacking)

    def take(self, records: Iterable[Record]) -> None:
        """Take what a source yielded; what diagnosis does not look at is passed over."""
        for record in records:
            match record:
                case Observation():
                    (self._faults if record.section == _FAULTS else self._levels).append(record)
                case HostTable():
                    self._tables.add(record)
                case HostTicks():
                    self._fine.add(record)
                case RhythmMarks():
                    self._rhythms.add(record)
                    self._round_trips.add(record)
                case StepMarks():
                    self._subjects.steps.add(record)
                case GpuCalls():
                    self._calls.take(record)
                case KernelActivity() | GpuCoverage() | HostEvent() | GovernorState() | GpuTimes():
                    pass

    def look(self, readings: Iterable[DeviceReading]) -> None:
        """Take looks at GPUs; the same look may be shown again."""
        self._gpus.look(readings)

    def frame(self, now_ns: int) -> Frame | None:
        """Give the second that ends now; None for the first, and for one that is too short."""
        if self._ended_ns is None:
            self._ended_ns = now_ns
            self._tables.take()
            self._round_trips.take()
            self._forget()
            return None
        begun_ns, span_ns = self._ended_ns, now_ns - self._ended_ns
        if span_ns < SHORTEST_NS:
            return None
        self._ended_ns = now_ns
        tables = self._tables.take()
        self._cgroups.read(tables)
        host = self._host.of(tables) | observed(self._levels)
        if self._has_faults or self._faults:
            host |= fault_signals(self._faults, span_ns)
        for extra in self._extras:
            host |= extra(now_ns)
        host = self._measured(host)
        users, callers = self._gpus.processes(now_ns), self._calls.callers(now_ns)
        gpus = self._gpus.signals(now_ns)
        for gpu, copied in on_gpus(callers, users).items():
            gpus.setdefault(gpu, {}).update(copied)
        rhythms, self._network = self._rhythms.known(now_ns), self._round_trips.take()
        active = self._cgroups.names()
        second = SubjectSecond(now_ns, active, self._of_subject, users, callers, rhythms)
        subjects = self._subjects.subjects(second)
        own = dict.fromkeys(subject.cgroup for subject in subjects.values())
        busiest = self._cgroups.busiest(own).items()
        cgroups = {cgroup: self._measured(signals) for cgroup, signals in busiest}
        fine = self._fine.take(begun_ns, now_ns)
        self._forget()
        return Frame(now_ns, span_ns, host, fine, subjects, cgroups, gpus)

    def _measured(self, signals: dict[str, float]) -> dict[str, float]:
        if self._lacking.isdisjoint(signals):
            return signals
        return {name: value for name, value in signals.items() if name not in self._lacking}

    def _of_subject(self, cgroup: str, now_ns: int) -> dict[str, float]:
        found = self._cgroups.of(cgroup) | self._network.get(cgroup, {})
        return self._measured(found) | self._pressure.signals(cgroup, now_ns)

    def _forget(self) -> None:
        self._levels.clear()
        self._faults.clear()
