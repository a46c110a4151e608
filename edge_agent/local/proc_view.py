"""This host at a glance, from /proc alone: what `agent top` shows with and without an agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil

from collectors.host.host_source import CPU_FIELDS, whole_disks

from .local_rows import clean_name

_NS_PER_S: Final = 1_000_000_000
_MOST_DEVICES: Final = 64
MOST_PROCESSES: Final = 20_000
MOST_FILE_BYTES: Final = 4 << 20
_IDLE: Final = slice(CPU_FIELDS.index("idle"), CPU_FIELDS.index("iowait") + 1)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """One whole disk: bytes a second, share of the time busy, mean wait per request."""

    name: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    busy_percent: float
    wait_ms: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    name: str
    receive_bytes_per_s: float
    transmit_bytes_per_s: float
    drops_per_s: float


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process: CPU and time ready but not running, as percent of one CPU."""

    pid: int
    name: str
    cpu_percent: float
    wait_percent: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class ProcView:
    """What happened between two samples: percent by kind of CPU time, busy percent of each CPU,
    pressure of the last 10 s by resource (empty without PSI), softirqs by vector.
    """

    cpu_percent: Mapping[str, float]
    cpus_percent: tuple[float, ...]
    run_queue: Mapping[str, float]
    pressure: Mapping[str, float]
    softirqs_per_s: Mapping[str, float]
    memory_bytes: Mapping[str, int]
    disks: tuple[DiskUse, ...]
    links: tuple[LinkUse, ...]
    processes: tuple[ProcessSample, ...]
    span_s: float


@dataclass(frozen=True, slots=True)
class _Spent:
    name: str
    cpu_s: float
    waited_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters as psutil gives them, the whole host's CPU times before each CPU's."""

    at_ns: int
    cpus: tuple[Any, ...]
    softirqs: Mapping[str, int]
    disks: Mapping[str, Any]
    links: Mapping[str, Any]
    processes: Mapping[psutil.Process, _Spent]


class HostSampler:
    """Reads /proc, or where psutil looks for it; each view covers the time since the one before."""

    def __init__(
        self, now_ns: Callable[[], int] = time.monotonic_ns, *, processes: int = 12
    ) -> None:
        self._now_ns, self._processes = now_ns, processes
        self._before = self._sample()

    def view(self) -> ProcView:
        before, now = self._before, self._sample()
        self._before = now
        span_s = max(now.at_ns - before.at_ns, 1) / _NS_PER_S
        each = zip(before.cpus, now.cpus, strict=False)  # a CPU may come or go
        spent = [_grown(*times)[: len(CPU_FIELDS)] for times in each]
        return ProcView(
            cpu_percent=_cpu_kinds(spent[0]) if spent else {},
            cpus_percent=tuple(_busy_percent(each) for each in spent[1:]),
            run_queue=_run_queue(),
            pressure=_pressure(),
            softirqs_per_s={
                name: max(0, count - before.softirqs.get(name, count)) / span_s
                for name, count in now.softirqs.items()
            },
            memory_bytes=_memory(),
            disks=_disks(before.disks, now.disks, span_s),
            links=_links(before.links, now.links, span_s),
            processes=self._busiest(before, now, span_s),
            span_s=span_s,
        )

    def _sample(self) -> _Sample:
        softirqs = {name: sum(counts) for name, counts in _numbers("softirqs", ":").items()}
        cpus: tuple[Any, ...] = ()
        disks: Mapping[str, Any] = {}
        links: Mapping[str, Any] = {}
        # A file that is missing, not ours to read or not the kernel's leaves its part out.
        with suppress(OSError, ValueError):
            cpus = (psutil.cpu_times(), *psutil.cpu_times(percpu=True))
        with suppress(OSError, ValueError):
            disks = _whole(psutil.disk_io_counters(perdisk=True, nowrap=False))
        with suppress(OSError, ValueError):
            links = psutil.net_io_counters(pernic=True, nowrap=False)
        return _Sample(self._now_ns(), cpus, softirqs, disks, links, _processes())

    def _busiest(self, before: _Sample, now: _Sample, span_s: float) -> tuple[ProcessSample, ...]:
        uses = []
        for process, spent in now.processes.items():
            old = before.processes.get(process)
            if old is None:
                continue
            busy = 100 * max(0.0, spent.cpu_s - old.cpu_s) / span_s
            waited = 100 * max(0.0, spent.waited_s - old.waited_s) / span_s
            resident = spent.resident_bytes
            uses.append(ProcessSample(process.pid, spent.name, busy, waited, resident))
        uses.sort(key=lambda use: (-use.cpu_percent, -use.wait_percent, -use.resident_bytes))
        return tuple(uses[: self._processes])


def _read(name: str) -> str:
    """Give the text of a file of /proc; one that is missing or not ours to read is empty."""
    try:
        with Path(psutil.PROCFS_PATH, name).open("rb") as file:
            return file.read(MOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _numbers(file: str, separator: str) -> dict[str, list[int]]:
    """Read `name SEPARATOR number number ...` lines; what is no number ends the line."""
    found: dict[str, list[int]] = {}
    for line in _read(file).splitlines():
        name, split, rest = line.strip().partition(separator)
        numbers: list[int] = []
        for word in rest.split() if split else ():
            if not word.isdecimal():
                break
            numbers.append(int(word))
        if numbers:
            found[clean_name(name)] = numbers
    return found


def _processes() -> dict[psutil.Process, _Spent]:
    """Give what every process has used; the wait is the main thread's, 0 where it is not kept."""
    found = {}
    listed = []
    with suppress(OSError, IndexError):  # no /proc, and one without a process
        listed = list(islice(psutil.process_iter(), MOST_PROCESSES))
    for process in listed:
        with suppress(psutil.Error, OSError), process.oneshot():
            times, resident = process.cpu_times(), process.memory_info().rss
            words = _read(f"{process.pid}/schedstat").split()
            waited_s = int(words[1]) / _NS_PER_S if len(words) > 1 else 0.0
            name = clean_name(process.name())
            found[process] = _Spent(name, times.user + times.system, waited_s, resident)
    return found


def _run_queue() -> dict[str, float]:
    stat = _numbers("stat", " ")
    found = {name: float(stat.get(f"procs_{name}", [0])[0]) for name in ("running", "blocked")}
    with suppress(OSError):
        loads = (round(load, 2) for load in os.getloadavg())
        found |= zip(("load_1m", "load_5m", "load_15m"), loads, strict=True)
    return found


def _pressure() -> dict[str, float]:
    found = {}
    for resource in ("cpu", "memory", "io"):
        for line in _read(f"pressure/{resource}").splitlines():
            kind, *fields = line.split()
            for field in fields:
                name, _, value = field.partition("=")
                if name == "avg10":
                    found[f"{resource}_{kind}"] = float(value)
    return found


def _memory() -> dict[str, int]:
    kib = {name: values[0] for name, values in _numbers("meminfo", ":").items()}
    return {
        "total": kib.get("MemTotal", 0) * 1024,
        "available": kib.get("MemAvailable", 0) * 1024,
        "cached": kib.get("Cached", 0) * 1024,
        "swap_used": (kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)) * 1024,
    }


def _whole(disks: Mapping[str, Any]) -> dict[str, Any]:
    """Give the counters of whole disks: partitions and layered devices repeat their bytes."""
    names = list(disks)
    places = whole_disks(tuple(os.fsencode(name) for name in names))[:_MOST_DEVICES]
    return {names[place]: disks[names[place]] for place in places}


def _grown(before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> Any:
    """Counters that went down belong to a device that came back: they count as nothing."""
    kind: Any = type(now)
    old = now if before is None else before
    return kind(*(max(0, new - was) for new, was in zip(now, old, strict=True)))


def _cpu_kinds(spent: Iterable[float]) -> dict[str, float]:
    kinds = dict(zip(CPU_FIELDS, spent, strict=True))
    whole = sum(kinds.values()) or 1
    percent = {name: 100 * seconds / whole for name, seconds in kinds.items()}
    percent["user"] += percent.pop("nice")
    return percent


def _busy_percent(spent: tuple[float, ...]) -> float:
    return 100 * (sum(spent) - sum(spent[_IDLE])) / (sum(spent) or 1)


def _disks(before: Mapping[str, Any], now: Mapping[str, Any], span_s: float) -> tuple[DiskUse, ...]:
    uses = []
    for name, counters in now.items():
        grown = _grown(before.get(name), counters)
        requests = grown.read_count + grown.write_count
        wait_ms = (grown.read_time + grown.write_time) / requests if requests else 0.0
        read, written = grown.read_bytes / span_s, grown.write_bytes / span_s
        busy = min(100.0, grown.busy_time / (10 * span_s))
        uses.append(DiskUse(clean_name(name), read, written, busy, wait_ms))
    uses.sort(key=lambda use: -(use.read_bytes_per_s + use.write_bytes_per_s))
    return tuple(uses)


def _links(before: Mapping[str, Any], now: Mapping[str, Any], span_s: float) -> tuple[LinkUse, ...]:
    uses = []
    for name, counters in islice(now.items(), _MOST_DEVICES):
        grown = _grown(before.get(name), counters)
        moved = (grown.bytes_recv, grown.bytes_sent, grown.dropin + grown.dropout)
        uses.append(LinkUse(clean_name(name), *(count / span_s for count in moved)))
    uses.sort(key=lambda use: -(use.receive_bytes_per_s + use.transmit_bytes_per_s))
    return tuple(uses)
