"""Signals of the host and of its cgroups: those that are watched, and the busiest."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from collectors.bpf.cgroup_names import hierarchy_of
from collectors.ebpf.ebpf_tables import OTHER
from collectors.host.pressure import stall_totals
from collectors.interface import SourceUnavailable
from collectors.records.activity import HostTable, Observation

from .signals import SIGNALS, Columns, Scope, SignalTable

_MEANS: Final = {
    "send_queue_bytes": ("net_send_queue_bytes", "net_sends"),
    "srtt_us": ("net_srtt_us", "net_srtts"),
}
"""Signal -> column of sums, column of how many were added up."""

_PRESSURE: Final = {
    ("cpu", "some_ns"), ("cpu", "full_ns"), ("memory", "some_ns"), ("memory", "full_ns"),
    ("io", "some_ns"), ("io", "full_ns"), ("irq", "full_ns"),
}  # fmt: skip

_LEVELS: Final = {
    ("host_cpu", "steal"): "steal_percent",
    ("host_cpu", "iowait"): "iowait_percent",
    ("host_memory", "used"): "memory_used_percent",
    ("host_memory", "cached"): "memory_cached_percent",
}
"""Observations in millionths of 100 %."""

_FAULTS: Final = {
    "system_memory": "memory",
    "cpu": "processor",
    "ssd": "disk",
    "nic": "network",
    "network_switch_or_cable": "network",
    "power_supply": "power",
    "faulty_gpu": "gpu",
    "gpu_hbm3_memory": "gpu",
    "gpu_sram_memory": "gpu",
    "gpu_system_processor": "gpu",
    "gpu_thermal_interface_and_sensor": "gpu",
}
FAULT_KINDS: Final = (*dict.fromkeys(_FAULTS.values()), "other")


class HostSignals:
    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._wanted = [
            (signal.name, signal.total, signal.minus, signal.per_column)
            for signal in table.values()
            if signal.total and Scope.HOST in signal.scopes
        ]
        self._busiest = [one for one in table.values() if one.busiest]
        self._layout: tuple[str, ...] | None = None

    def of(self, tables: Mapping[str, HostTable]) -> dict[str, float]:
        """Give what the tables say of the host; without a table its signals are absent."""
        found: dict[str, float] = {}
        cpu = tables.get("cpu")
        if cpu is not None:
            found |= self._of_cpus(cpu)
            found |= _of_disks(tables.get("device"), cpu.span_ns)
            most, peers = 0, tables.get("peer")
            if peers is not None:
                most = int(peers.values[:, peers.columns.index("retransmits")].max())
            found["worst_peer_retransmits_per_s"] = most * 1e9 / cpu.span_ns
        if "pressure" in tables:
            found |= pressure_signals(tables["pressure"])
        return found

    def _of_cpus(self, cpu: HostTable) -> dict[str, float]:
        if cpu.columns != self._layout:
            self._layout = cpu.columns
            self._columns = Columns(cpu.columns, self._wanted)
            self._at = {name: place for place, name in enumerate(cpu.columns)}
            self._parts = np.array(
                [[c.startswith(one.busiest) for one in self._busiest] for c in cpu.columns],
                np.int64,
            )
        sums = cpu.values.sum(axis=0)
        rates = self._columns.rates(sums, cpu.span_ns).tolist()
        found = dict(zip(self._columns.names, rates, strict=True))
        per_s = 1e9 / cpu.span_ns
        largest = (cpu.values @ self._parts).max(axis=0).tolist()
        for one, value in zip(self._busiest, largest, strict=True):
            found[one.name] = float(value) * one.per_column * per_s
        for name, (column, counted) in _MEANS.items():
            count = int(sums[self._at[counted]]) if counted in self._at else 0
            if count and column in self._at:
                found[name] = int(sums[self._at[column]]) / count
        return found


def observed(observations: Iterable[Observation]) -> dict[str, float]:
    return {
        _LEVELS[observation.section, observation.cell]: observation.value / 10_000
        for observation in observations
        if (observation.section, observation.cell) in _LEVELS
    }


def fault_signals(observations: Iterable[Observation], span_ns: int) -> dict[str, float]:
    """Give new hardware faults by kind, zeros included; asked where a source of faults runs."""
    counts = dict.fromkeys(FAULT_KINDS, 0)
    for observation in observations:
        counts[_FAULTS.get(observation.cell, "other")] += 1
    return {f"faults_{kind}_per_s": count * 1e9 / span_ns for kind, count in counts.items()}


def pressure_signals(table: HostTable) -> dict[str, float]:
    per_s = 1e3 / table.span_ns
    return {
        f"pressure_{row}_{column.removesuffix('_ns')}_ms_per_s": value * per_s
        for row, values in zip(table.rows, table.values.tolist(), strict=True)
        for column, value in zip(table.columns, values, strict=True)
        if (row, column) in _PRESSURE
    }


def _of_disks(table: HostTable | None, span_ns: int) -> dict[str, float]:
    """Give the device whose requests took longest in all; no request has no latency."""
    if table is None:
        return {"worst_disk_ms_per_s": 0.0}
    total, requests, bins = _disk_columns(table.columns)
    worst: list[int] = table.values[table.values[:, total].argmax()].tolist()
    total_ms = worst[total] / 1e6
    found = {"worst_disk_ms_per_s": total_ms * 1e9 / span_ns}
    asked = sum(worst[place] for place in requests)
    if asked:
        found["worst_disk_latency_ms"] = total_ms / asked
    below = list(accumulate(worst[place] for place in bins))
    if below and below[-1]:
        found["worst_disk_latency_p99_ms"] = 2.0 ** (bisect_left(below, 0.99 * below[-1]) + 1) / 1e3
    return found


@lru_cache(maxsize=1)
def _disk_columns(columns: tuple[str, ...]) -> tuple[int, list[int], list[int]]:
    """Give the places of the whole time, of the counts of requests, and of the latencies' bins."""
    requests = [columns.index(name) for name in ("reads", "writes", "others")]
    bins = [at for at, name in enumerate(columns) if name.startswith("latency_log2_us_")]
    return columns.index("total_ns"), requests, bins


MOST_BUSY: Final = 8
"""Cgroups that are named beside the subjects' own."""

_WATCHED_BY: Final = "sleep_ms_per_s"
"""A cgroup of which this is zero is not watched: a task that runs sleeps too."""

_RANKS: Final = (
    (4, ("cpu_ms_per_s",)),
    (2, ("block_read_bytes_per_s", "block_write_bytes_per_s")),
    (2, ("net_send_bytes_per_s", "net_receive_bytes_per_s")),
    (2, ("page_faults_per_s",)),
    (2, ("reclaim_ms_per_s",)),
)
"""How many of the first by which sum."""

Wanted = tuple[str, str, str, float]
"""A signal, its column, what is taken off first, and a factor: as `Columns` has them."""


class _Plan:
    """What is where in one layout.

    ranks   how many of the first by which columns of `names`, where the layout has one
    quota   columns of periods with a quota, and of those in which it ran out; None: there are none
    """

    def __init__(self, columns: tuple[str, ...], wanted: Iterable[Wanted]) -> None:
        self.columns = Columns(columns, wanted)
        self.names = self.columns.names
        self.ranks = [
            (count, [self.names.index(name) for name in names if name in self.names])
            for count, names in _RANKS
        ]
        quota = ("quota_periods", "throttled_periods")
        known = set(quota) <= set(columns)
        self.quota = [columns.index(name) for name in quota] if known else None


class _Rates:
    """One table's rates: float64[rows, names]."""

    def __init__(self, plan: _Plan, table: HostTable) -> None:
        self.plan, self.rows = plan, table.rows
        self.places = {name: place for place, name in enumerate(table.rows)}
        self.values = plan.columns.rates(table.values, table.span_ns)

    def of(self, cgroup: str) -> dict[str, float]:
        place = self.places.get(cgroup)
        if place is None:
            return dict.fromkeys(self.plan.names, 0.0)
        return dict(zip(self.plan.names, self.values[place].tolist(), strict=True))

    def first(self, rank: int) -> list[str]:
        """Give the first cgroups of a rank, the largest first; zeros and OTHER have none."""
        count, places = self.plan.ranks[rank]
        sums = self.values[:, places].sum(axis=1) if len(places) > 1 else self.values[:, places[0]]
        order = np.argsort(-sums, kind="stable")[: count + 1].tolist()
        found = [self.rows[place] for place in order if sums[place] > 0]
        return [cgroup for cgroup in found if cgroup != OTHER][:count]


class CgroupSignals:
    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._wanted = [
            (signal.name, signal.column, signal.minus, signal.per_column)
            for signal in table.values()
            if signal.column and signal.scopes & {Scope.CGROUP, Scope.SUBJECT}
        ]
        self._no_cgroup = {
            name for name, signal in table.items() if Scope.CGROUP not in signal.scopes
        }
        self._of_watched = {name for name, signal in table.items() if signal.watched}
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._tables: list[_Rates] = []
        self._quota: dict[str, float] = {}

    def read(self, tables: Mapping[str, HostTable]) -> None:
        found = [tables[name] for name in ("cgroup", "block_cgroup") if name in tables]
        self._tables = [_Rates(self._plan(table), table) for table in found]
        self._quota = self._throttled_percent(tables["cgroup"]) if "cgroup" in tables else {}

    def names(self) -> Collection[str]:
        return self._tables[0].places.keys() if self._tables else ()

    def of(self, cgroup: str) -> dict[str, float]:
        """Give everything that is known of a cgroup, as for a subject."""
        found: dict[str, float] = {}
        for table in self._tables:
            found |= table.of(cgroup)
        if not found.get(_WATCHED_BY):
            found = {name: value for name, value in found.items() if name not in self._of_watched}
        if cgroup in self._quota:
            found["throttled_periods_percent"] = self._quota[cgroup]
        return found

    def busiest(self, own: Iterable[str]) -> dict[str, dict[str, float]]:
        """Give the signals of scope `cgroup` of the busiest and of `own`."""
        chosen = dict.fromkeys(own)
        room = len(chosen) + MOST_BUSY
        for rank in range(len(_RANKS)):
            table = next((t for t in self._tables if t.plan.ranks[rank][1]), None)
            for cgroup in table.first(rank) if table is not None else ():
                if len(chosen) < room:
                    chosen[cgroup] = None
        hidden = self._no_cgroup
        return {c: {n: v for n, v in self.of(c).items() if n not in hidden} for c in chosen}

    def _plan(self, table: HostTable) -> _Plan:
        plan = self._plans.get(table.columns)
        if plan is None:
            plan = self._plans[table.columns] = _Plan(table.columns, self._wanted)
        return plan

    def _throttled_percent(self, table: HostTable) -> dict[str, float]:
        """Give, of cgroups with a quota, the share of periods in which it ran out."""
        quota = self._plan(table).quota
        if quota is None:
            return {}
        periods = table.values[:, quota[0]]
        out = table.values[:, quota[1]]
        return {
            table.rows[place]: min(100.0, 100.0 * float(out[place]) / float(periods[place]))
            for place in np.flatnonzero(periods).tolist()
        }


_PLACE_FRESH_NS: Final = 5_000_000_000
"""A process is put into its cgroup after it started: it is asked again."""
_MOST_PROCESSES: Final = 4_096
_LONGEST: Final = 16_384
_FIELDS: Final = 3


class ProcessPlace(NamedTuple):
    """A process's cgroup in the CPU hierarchy, as table `cgroup` names it, and its program."""

    cgroup: str
    program: str


Look = Callable[[int], ProcessPlace | None]


class Places:
    """Remembers a process for 5 s; one that ended keeps its last place while it is asked for."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or place_of
        self._known: dict[int, tuple[ProcessPlace, int]] = {}

    def of(self, pid: int, now_ns: int) -> ProcessPlace | None:
        known = self._known.get(pid)
        if known is not None and now_ns - known[1] <= _PLACE_FRESH_NS:
            return known[0]
        found = self._look(pid) or (known[0] if known else None)
        if found is None:
            return None
        if len(self._known) >= _MOST_PROCESSES:
            self._known.clear()
        self._known[pid] = (found, now_ns)
        return found


def place_of(pid: int, proc: Path = Path("/proc")) -> ProcessPlace | None:
    try:
        cgroups = _text(proc / str(pid) / "cgroup")
        program = _text(proc / str(pid) / "comm").rstrip("\n")
    except OSError:
        return None
    return ProcessPlace(cpu_cgroup(cgroups), program)


def cpu_cgroup(text: str) -> str:
    """Find the CPU controller's path in /proc/PID/cgroup: cgroup v1's, else the unified one."""
    unified = "/"
    for line in text.splitlines():
        row = line.split(":", _FIELDS - 1)
        if len(row) == _FIELDS and "cpu" in row[1].split(","):
            return row[2]
        if len(row) == _FIELDS and row[0] == "0":
            unified = row[2]
    return unified


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LONGEST).decode("utf-8", errors="replace")


_RESOURCES: Final = ("cpu", "memory", "io")
_LONGEST_FILE: Final = 4_096
_FRESH_NS: Final = 5_000_000_000
_MOST_CGROUPS: Final = 256

_Stalls = dict[str, tuple[int, int]]


class CgroupPressure:
    """Asked each second of the subjects' cgroups; the first answer about one is its base."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._before: dict[str, tuple[int, _Stalls, dict[str, float]]] = {}

    @classmethod
    def of_host(cls) -> CgroupPressure:
        """Use the hierarchy of this host's CPU controller, where that is the unified one."""
        try:
            found = hierarchy_of("cpu")
        except SourceUnavailable:
            return cls(None)
        return cls(Path(found.path) if found.unified else None)

    def signals(self, cgroup: str, now_ns: int) -> dict[str, float]:
        """Give what a cgroup was stalled for since the last question, in ms/s."""
        if self._root is None:
            return {}
        stalls = self._read(cgroup)
        before = self._before.get(cgroup)
        if before is not None and now_ns <= before[0]:
            return dict(before[2])  # two subjects of one cgroup
        base = before if before and now_ns - before[0] <= _FRESH_NS else None
        found = _grown(stalls, base[1], now_ns - base[0]) if base else {}
        if len(self._before) >= _MOST_CGROUPS:
            self._before.clear()
        self._before[cgroup] = (now_ns, stalls, found)
        return dict(found)

    def _read(self, cgroup: str) -> _Stalls:
        stalls: _Stalls = {}
        for resource in _RESOURCES:
            file = f"{self._root}{cgroup.rstrip('/')}/{resource}.pressure"
            try:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                stalls[resource] = stall_totals(os.read(fd, _LONGEST_FILE), file)
            except (OSError, SourceUnavailable):
                continue  # removed while it was read, or switched off
            finally:
                os.close(fd)
        return stalls


def _grown(now: _Stalls, base: _Stalls, span_ns: int) -> dict[str, float]:
    return {
        f"pressure_{resource}_{kind}_ms_per_s": max(0, later - earlier) * 1e3 / span_ns
        for resource in now.keys() & base.keys()
        for kind, later, earlier in zip(
            ("some", "full"), now[resource], base[resource], strict=True
        )
    }
