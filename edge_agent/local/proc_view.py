"""This host at a glance, from /proc alone: what `agent top` shows with and without an agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .local_rows import clean_name
from .proc_processes import ProcessSample, process_times

_NS_PER_S: Final = 1_000_000_000
_SECTOR: Final = 512
_MOST_DEVICES: Final = 64
_CPU_FIELDS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_LAYERED: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
MOST_FILE_BYTES: Final = 4 << 20

_Counts = Mapping[str, list[int]]


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
    """One network interface."""

    name: str
    receive_bytes_per_s: float
    transmit_bytes_per_s: float
    drops_per_s: float


@dataclass(frozen=True, slots=True)
class ProcView:
    """What happened between two samples.

    cpu_percent    by kind of time: user, system, iowait, irq, softirq, steal, idle
    cpus_percent   busy share of each CPU
    run_queue      running, blocked, and load averages
    pressure       percent of the last 10 s by resource, "some" and "full"; empty without PSI
    softirqs_per_s by vector
    memory_bytes   total, available, cached, swap_used
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
class _Sample:
    at_ns: int
    stat: _Counts
    softirqs: Mapping[str, int]
    disks: _Counts
    links: _Counts
    processes: Mapping[tuple[int, int], tuple[str, int, int, int]]


class HostSampler:
    """Reads /proc; each view covers the time since the one before."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        processes: int = 12,
    ) -> None:
        self._proc, self._now_ns, self._processes = proc, now_ns, processes
        self._before = self._sample()

    def view(self) -> ProcView:
        """Give what happened since the last call."""
        before, now = self._before, self._sample()
        self._before = now
        span_s = max(now.at_ns - before.at_ns, 1) / _NS_PER_S
        return ProcView(
            cpu_percent=_cpu_kinds(before.stat, now.stat),
            cpus_percent=_cpus(before.stat, now.stat),
            run_queue=self._run_queue(now.stat),
            pressure=self._pressure(),
            softirqs_per_s={
                name: max(0, count - before.softirqs.get(name, count)) / span_s
                for name, count in now.softirqs.items()
            },
            memory_bytes=self._memory(),
            disks=_disks(before.disks, now.disks, span_s),
            links=_links(before.links, now.links, span_s),
            processes=self._busiest(before, now, span_s),
            span_s=span_s,
        )

    def _sample(self) -> _Sample:
        softirqs = _numbers(self._read("softirqs"), ":")
        return _Sample(
            self._now_ns(),
            _numbers(self._read("stat"), " "),
            {name: sum(counts) for name, counts in softirqs.items()},
            _disk_counters(self._read("diskstats")),
            _numbers(self._read("net/dev"), ":"),
            process_times(self._proc),
        )

    def _read(self, name: str) -> str:
        """Give a file's text; one that is missing or not ours to read is empty."""
        try:
            with (self._proc / name).open("rb") as file:
                return file.read(MOST_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def _run_queue(self, stat: _Counts) -> dict[str, float]:
        found = {
            "running": float(stat.get("procs_running", [0])[0]),
            "blocked": float(stat.get("procs_blocked", [0])[0]),
        }
        loads = self._read("loadavg").split()[:3]
        for name, load in zip(("load_1m", "load_5m", "load_15m"), loads, strict=False):
            found[name] = float(load)
        return found

    def _pressure(self) -> dict[str, float]:
        found = {}
        for resource in ("cpu", "memory", "io"):
            for line in self._read(f"pressure/{resource}").splitlines():
                kind, *fields = line.split()
                for one in fields:
                    name, _, value = one.partition("=")
                    if name == "avg10":
                        found[f"{resource}_{kind}"] = float(value)
        return found

    def _memory(self) -> dict[str, int]:
        read = _numbers(self._read("meminfo"), ":")
        kib = {name: values[0] for name, values in read.items()}
        return {
            "total": kib.get("MemTotal", 0) * 1024,
            "available": kib.get("MemAvailable", 0) * 1024,
            "cached": kib.get("Cached", 0) * 1024,
            "swap_used": (kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)) * 1024,
        }

    def _busiest(self, before: _Sample, now: _Sample, span_s: float) -> tuple[ProcessSample, ...]:
        uses = []
        for who, (name, spent_ns, waited_ns, resident) in now.processes.items():
            old = before.processes.get(who)
            if old is None:
                continue
            busy, waited = max(0, spent_ns - old[1]), max(0, waited_ns - old[2])
            per_s = 100 / (_NS_PER_S * span_s)
            uses.append(ProcessSample(who[0], name, busy * per_s, waited * per_s, resident))
        uses.sort(key=lambda use: (-use.cpu_percent, -use.wait_percent, -use.resident_bytes))
        return tuple(uses[: self._processes])


def _numbers(text: str, separator: str) -> dict[str, list[int]]:
    """Read `name SEPARATOR number number ...` lines; what is no number ends the line."""
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        name, split, rest = line.strip().partition(separator)
        numbers: list[int] = []
        for word in rest.split() if split else ():
            if not word.isdecimal():
                break
            numbers.append(int(word))
        if numbers:
            found[clean_name(name)] = numbers
    return found


def _disk_counters(text: str) -> dict[str, list[int]]:
    """Give the counters of whole disks: partitions and layered devices repeat their bytes."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 14 and not words[2].startswith(_LAYERED):
            found[clean_name(words[2])] = [int(word) for word in words[3:14] if word.isdecimal()]
    whole = {
        name: counters
        for name, counters in found.items()
        if not any(name != disk and name.startswith(disk) for disk in found)
    }
    return dict(list(whole.items())[:_MOST_DEVICES])


def _grown(before: list[int] | None, now: list[int]) -> list[int]:
    """Counters that went down belong to a device that came back: they count as nothing."""
    old = before if before is not None and len(before) == len(now) else now
    return [max(0, new - was) for new, was in zip(now, old, strict=True)]


def _cpu_kinds(before: _Counts, now: _Counts) -> dict[str, float]:
    spent = _grown(before.get("cpu"), now.get("cpu", []))[: len(_CPU_FIELDS)]
    whole = sum(spent) or 1
    percent = {name: 100 * ticks / whole for name, ticks in zip(_CPU_FIELDS, spent, strict=False)}
    percent["user"] = percent.get("user", 0.0) + percent.pop("nice", 0.0)
    return percent


def _cpus(before: _Counts, now: _Counts) -> tuple[float, ...]:
    busy = []
    for name, ticks in now.items():
        if name.startswith("cpu") and name != "cpu":
            spent = _grown(before.get(name), ticks)[: len(_CPU_FIELDS)]
            busy.append(100 * (sum(spent) - sum(spent[3:5])) / (sum(spent) or 1))
    return tuple(busy)


def _disks(before: _Counts, now: _Counts, span_s: float) -> tuple[DiskUse, ...]:
    uses = []
    for name, counters in now.items():
        if len(counters) < 11:
            continue
        grown = _grown(before.get(name), counters)
        requests = grown[0] + grown[4]
        wait_ms = (grown[3] + grown[7]) / requests if requests else 0.0
        read, written = grown[2] * _SECTOR / span_s, grown[6] * _SECTOR / span_s
        uses.append(DiskUse(name, read, written, min(100.0, grown[9] / (10 * span_s)), wait_ms))
    uses.sort(key=lambda use: -(use.read_bytes_per_s + use.write_bytes_per_s))
    return tuple(uses)


def _links(before: _Counts, now: _Counts, span_s: float) -> tuple[LinkUse, ...]:
    uses = []
    for name, counters in list(now.items())[:_MOST_DEVICES]:
        if len(counters) >= 16:
            grown = [one / span_s for one in _grown(before.get(name), counters)]
            uses.append(LinkUse(name, grown[0], grown[8], grown[3] + grown[11]))
    uses.sort(key=lambda use: -(use.receive_bytes_per_s + use.transmit_bytes_per_s))
    return tuple(uses)
