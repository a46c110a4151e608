"""Puts one second together: what the sources of this host handed out becomes a frame."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from collectors.boot_clock import boottime_ns
from collectors.devices.device_port import DeviceReading
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.host.host_source import HostSource
from collectors.host.pressure import PressureSource
from collectors.interface import Source, SourceRegistry, UnavailableSource
from collectors.records.activity import (
    GpuCoverage,
    HostEvent,
    HostTable,
    HostTicks,
    KernelActivity,
    Observation,
    Record,
    RhythmMarks,
    SourceCoverage,
    StepMarks,
)
from collectors.records.gpu_calls import GovernorState, GpuCalls
from collectors.records.gpu_time import GpuTimes
from collectors.rounds import Drained, Rounds
from transport.process.supervision import Closing

from .frame import HostSample
from .gpu_signals import CallSignals, GpuSignals, on_gpus
from .host_signals import (
    CgroupPressure,
    CgroupSignals,
    HostSignals,
    Places,
    fault_signals,
    observed,
)
from .period_detector import PeriodDetector
from .signals import SIGNALS, FineBins, SignalTable, lacking
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
    def __init__(self) -> None:
        self._parts: dict[str, list[TripColumns]] = {}

    def add(self, marks: RhythmMarks) -> None:
        told = marks.round_trip_us > 0
        if told.any():
            columns = marks.socket, marks.round_trip_us, marks.value
            part = np.stack([column[told] for column in columns], axis=1)
            self._parts.setdefault(marks.cgroup, []).append(part)

    def take(self) -> dict[str, dict[str, float]]:
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
    def __init__(self) -> None:
        self._found: dict[str, list[HostTable]] = {}

    def add(self, table: HostTable) -> None:
        """Take one; a source's first covers no time and says nothing."""
        if table.span_ns > 0 and table.name in _READ:
            self._found.setdefault(table.name, []).append(table)

    def take(self) -> dict[str, HostTable]:
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
        self._periods, self._round_trips = PeriodDetector(), RoundTrips()
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
                    self._periods.add(record)
                    self._round_trips.add(record)
                case StepMarks():
                    self._subjects.steps.add(record)
                case GpuCalls():
                    self._calls.take(record)
                case GpuCoverage() | SourceCoverage() | HostEvent() | GovernorState():
                    pass
                case KernelActivity() | GpuTimes():
                    pass

    def look(self, readings: Iterable[DeviceReading]) -> None:
        self._gpus.look(readings)

    def frame(self, now_ns: int) -> HostSample | None:
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
        rhythms, network = self._periods.known(now_ns), self._round_trips.take()

        def signals(cgroup: str, at_ns: int) -> dict[str, float]:
            found = self._measured(self._cgroups.of(cgroup) | network.get(cgroup, {}))
            return found | self._pressure.signals(cgroup, at_ns)

        second = SubjectSecond(now_ns, self._cgroups.names(), signals, users, callers, rhythms)
        subjects = self._subjects.subjects(second)
        own = dict.fromkeys(subject.cgroup for subject in subjects.values())
        busiest = self._cgroups.busiest(own).items()
        cgroups = {cgroup: self._measured(signals) for cgroup, signals in busiest}
        fine = self._fine.take(begun_ns, now_ns)
        self._forget()
        return HostSample(now_ns, span_ns, host, fine, subjects, cgroups, gpus)

    def _measured(self, signals: dict[str, float]) -> dict[str, float]:
        if self._lacking.isdisjoint(signals):
            return signals
        return {name: value for name, value in signals.items() if name not in self._lacking}

    def _forget(self) -> None:
        self._levels.clear()
        self._faults.clear()


_LOOK_NS: Final = 10_000_000_000
"""Asking a driver for its speed takes the kernel's lock on all links: not every second."""
_MOST_LINKS: Final = 64
_BYTES_PER_MBIT: Final = 125_000
_LOOPBACK: Final = "lo"

_GETQDISC: Final = 38
_NEWQDISC: Final = 36
_DONE: Final = 3
_ERROR: Final = 2
_DUMP_REQUEST: Final = 0x1 | 0x300
_MESSAGE: Final = struct.Struct("=IHHII")
_TRAFFIC: Final = struct.Struct("=BxxxiIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_KIND: Final = 1
_OPTIONS: Final = 2
_TBF_PARMS: Final = 1
_TBF_RATE64: Final = 4
_RATE_AT: Final = 8
"""Offset of the rate in struct tc_ratespec, which struct tc_tbf_qopt begins with."""
_MOST_BYTES: Final = 1 << 20
_TYPE_MASK: Final = 0x3FFF


class LinkRate:
    """Looks every 10 s; an extra of the framer. What cannot be read is absent."""

    def __init__(
        self,
        folder: Path = Path("/sys/class/net"),
        shapers: Callable[[], dict[int, int]] | None = None,
    ) -> None:
        self._folder = folder
        self._shapers = shapers or shaped_rates
        self._looked_ns: int | None = None
        self._found: dict[str, float] = {}

    def __call__(self, now_ns: int) -> dict[str, float]:
        if self._looked_ns is None or now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            rates = list(self._rates())
            self._found = {"link_bytes_per_s": float(min(rates))} if rates else {}
        return dict(self._found)

    def _rates(self) -> Iterator[int]:
        try:
            links = sorted(self._folder.iterdir())[:_MOST_LINKS]
            shaped = self._shapers()
        except OSError:
            return
        for link in links:
            if link.name == _LOOPBACK or _text(link / "operstate") != "up":
                continue
            index = _number(link / "ifindex")
            speed = _number(link / "speed")
            told = [speed * _BYTES_PER_MBIT] if speed is not None and speed > 0 else []
            told += [shaped[index]] if index in shaped else []
            if told:
                yield min(told)


def shaped_rates() -> dict[int, int]:
    """Ask the kernel for token buckets: bytes/s by interface index. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.settimeout(0.2)
        body = _TRAFFIC.pack(0, 0, 0, 0, 0)
        length = _MESSAGE.size + len(body)
        route.send(_MESSAGE.pack(length, _GETQDISC, _DUMP_REQUEST, 1, 0) + body)
        answers = b""
        while len(answers) < _MOST_BYTES:
            answers += route.recv(1 << 16)
            if any(kind in {_DONE, _ERROR} for kind, _ in _messages(answers)):
                break
    return dict(parse_shapers(answers))


def parse_shapers(answers: bytes) -> Iterator[tuple[int, int]]:
    """Read a dump of queueing disciplines; what does not fit is passed over."""
    for kind, body in _messages(answers):
        if kind != _NEWQDISC or len(body) < _TRAFFIC.size:
            continue
        index = _TRAFFIC.unpack_from(body)[1]
        attributes = _attributes(body[_TRAFFIC.size :])
        if attributes.get(_KIND, b"").rstrip(b"\0") != b"tbf":
            continue
        options = _attributes(attributes.get(_OPTIONS, b""))
        if len(options.get(_TBF_RATE64, b"")) == struct.calcsize("=Q"):
            yield index, struct.unpack("=Q", options[_TBF_RATE64])[0]
        elif len(options.get(_TBF_PARMS, b"")) >= _RATE_AT + 4:
            yield index, struct.unpack_from("=I", options[_TBF_PARMS], _RATE_AT)[0]


def _messages(answers: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _MESSAGE.size <= len(answers):
        length, kind, *_ = _MESSAGE.unpack_from(answers, at)
        if length < _MESSAGE.size or at + length > len(answers):
            return
        yield kind, answers[at + _MESSAGE.size : at + length]
        at += -(-length // 4) * 4


def _attributes(body: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = body[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64).decode("ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def host_framer(watch: Sequence[str] = (), *, faults: bool = False) -> Framer:
    """Make a framer that also asks this host for link rates and the pressure of cgroups."""
    pressure = CgroupPressure.of_host()
    return Framer(watch=watch, extras=(LinkRate(),), faults=faults, pressure=pressure)


def take_drain(framer: Framer, drained: Drained) -> None:
    framer.take(drained.records)
    if drained.look is not None:
        framer.look(drained.look.devices)


EVERY_NS: Final = 1_000_000_000
_NS_PER_S: Final = 1e9


def host_registry(loader: str = "auto") -> SourceRegistry:
    """List the sources that need no GPU: eBPF, pressure, host."""
    registry = SourceRegistry()
    registry.register("ebpf", lambda: EbpfSource(loader), loader)
    registry.register("pressure", PressureSource)
    registry.register("host", HostSource)
    return registry


class LiveFrames(Closing):
    """Runs sources and gives a frame a second; a context, at whose end the sources stop.

    registry   the sources; those that this host lacks are in `absent`, each with its reason
    """

    def __init__(self, registry: SourceRegistry, framer: Framer | None = None) -> None:
        self._registry = registry
        self.framer = framer or host_framer()
        self._rounds = Rounds()
        self.absent: Sequence[UnavailableSource] = ()
        self.cpu_ns = 0
        """What the drains and frames cost so far: CPU time of this thread."""

    def __enter__(self) -> Self:
        running, self.absent = self._registry.start_all()
        self._rounds = Rounds(running)
        self.framer.lack(lacking(self._rounds.lacking))
        return self

    def close(self) -> None:
        self._rounds.stop()
        self._rounds = Rounds()

    @property
    def running(self) -> Sequence[Source]:
        return self._rounds.sources

    @property
    def failing(self) -> dict[str, str]:
        return self._rounds.failing

    def frame(self, now_ns: int | None = None) -> HostSample | None:
        """Drain every source once; the first call sets the base and gives nothing."""
        now_ns = boottime_ns() if now_ns is None else now_ns
        begun_ns = time.thread_time_ns()
        for drained in self._rounds.round(now_ns):
            take_drain(self.framer, drained)
        frame = self.framer.frame(now_ns)
        self.cpu_ns += time.thread_time_ns() - begun_ns
        return frame

    def frames(self, until: Callable[[], bool] = lambda: False) -> Iterator[HostSample]:
        """Give a frame a second, on a grid of whole seconds from now on, until told to end."""
        due_ns = boottime_ns()
        while not until():
            frame = self.frame()
            if frame is not None:
                yield frame
            due_ns = max(due_ns + EVERY_NS, boottime_ns())
            time.sleep(max(0, due_ns - boottime_ns()) / _NS_PER_S)
