"""Host: CPU, memory, disk and network of this machine, as means of the window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import psutil

from edge_agent.activity import Observation
from wire.catalogue import Catalogue

from .port import SourceUnavailable

MILLION: Final = 1_000_000
SECTIONS: Final = ("host_cpu", "host_memory", "host_disk", "host_network")
_SHORTEST_NS: Final = 100_000_000
_NS_PER_S: Final = 1_000_000_000
_LAYERED_LINKS: Final = ("lo", "ifb", "veth", "br-", "docker", "virbr", "bond", "cni", "tun", "tap")
_LAYERED: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")

_Disk = TypeVar("_Disk")

Levels = dict[tuple[str, str], float]
"""(section, cell) -> level in the unit of the cell's full scale."""


class HostSource:
    """Samples psutil's counters; each drain is one sample of the time since the one before.

    Every sample is in millionths of the cell's full scale, as the catalogue has it.
    """

    name = "host"

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        """Take the cells and full scales from the catalogue (None: the shipped one)."""
        catalogue = catalogue or Catalogue.load()
        self._full_scale = {
            (section.name, coordinate.name): coordinate.full_scale
            for section in catalogue.sections
            if section.name in SECTIONS
            for coordinate in section.coordinates
        }
        self._before: _Counters | None = None
        self._before_ns: int | None = None

    def probe(self) -> str | None:
        """Say why this host's counters cannot be read."""
        try:
            _Counters()
        except (OSError, RuntimeError, NotImplementedError) as error:
            return f"host counters: {error}"
        return None

    def start(self) -> None:
        """Remember the counters' present values."""
        self._before, self._before_ns = _counters(), None

    def drain(self, now_boottime_ns: int) -> Iterable[Observation]:
        """Return one observation per cell for the time since the last call.

        The first call and calls less than 100 ms apart give nothing: ticks are too coarse.
        """
        if self._before is None:
            raise SourceUnavailable("host counters: not started")
        if self._before_ns is None:
            self._before, self._before_ns = _counters(), now_boottime_ns
            return []
        elapsed_ns = now_boottime_ns - self._before_ns
        if elapsed_ns < _SHORTEST_NS:
            return []
        now = _counters()
        levels = now.levels_since(self._before, elapsed_ns / _NS_PER_S)
        self._before, self._before_ns = now, now_boottime_ns
        # The middle of the span: a sample that straddles two windows counts where most of it lies.
        return list(self._observations(levels, now_boottime_ns - elapsed_ns // 2))

    def stop(self) -> None:
        """Forget the counters."""
        self._before = self._before_ns = None

    def _observations(self, levels: Levels, at_ns: int) -> Iterator[Observation]:
        for (section, cell), full_scale in self._full_scale.items():
            level = levels.get((section, cell))
            if level is not None:
                share = min(max(level / full_scale, 0.0), 1.0)
                yield Observation(section, cell, round(share * MILLION), at_ns)


class _Counters:
    """One reading of everything."""

    def __init__(self) -> None:
        # Without `nowrap`: a counter that falls counts as 0, and the bookkeeping costs half a call.
        self.cpu = psutil.cpu_times()
        self.memory = psutil.virtual_memory()
        self.disks = _whole_disks(psutil.disk_io_counters(perdisk=True, nowrap=False) or {})
        self.networks = psutil.net_io_counters(pernic=True, nowrap=False)

    def levels_since(self, before: _Counters, elapsed_s: float) -> Levels:
        """Return every level; a counter that went backwards (a device came back) counts as 0."""
        return {
            **self._cpu_percent(before),
            **self._memory_percent(),
            **self._disk(before, elapsed_s),
            **self._network(before, elapsed_s),
        }

    def _cpu_percent(self, before: _Counters) -> Levels:
        spent = {
            # guest time is part of user time already
            field: max(0.0, getattr(self.cpu, field) - getattr(before.cpu, field))
            for field in self.cpu._fields
            if not field.startswith("guest")
        }
        whole = sum(spent.values())
        if whole <= 0:
            return {}
        parts = {
            "user": ("user", "nice"),
            "system": ("system",),
            "iowait": ("iowait",),
            "interrupt": ("irq", "softirq"),
            "steal": ("steal",),
        }
        return {
            ("host_cpu", cell): 100 * sum(spent.get(f, 0.0) for f in fields) / whole
            for cell, fields in parts.items()
        }

    def _memory_percent(self) -> Levels:
        cached = getattr(self.memory, "cached", 0) + getattr(self.memory, "buffers", 0)
        return {
            ("host_memory", "used"): 100 * self.memory.used / self.memory.total,
            ("host_memory", "cached"): 100 * cached / self.memory.total,
        }

    def _disk(self, before: _Counters, elapsed_s: float) -> Levels:
        busiest_ms = read = written = 0
        for name, now in self.disks.items():
            then = before.disks.get(name, now)
            busy_ms = getattr(now, "busy_time", 0) - getattr(then, "busy_time", 0)
            busiest_ms = max(busiest_ms, busy_ms)
            read += max(0, now.read_bytes - then.read_bytes)
            written += max(0, now.write_bytes - then.write_bytes)
        return {
            ("host_disk", "busy"): 100 * busiest_ms / (1_000 * elapsed_s),
            ("host_disk", "read"): read / elapsed_s,
            ("host_disk", "write"): written / elapsed_s,
        }

    def _network(self, before: _Counters, elapsed_s: float) -> Levels:
        received = sent = 0
        for name, now in self.networks.items():
            if name.startswith(_LAYERED_LINKS):
                continue
            then = before.networks.get(name, now)
            received += max(0, now.bytes_recv - then.bytes_recv)
            sent += max(0, now.bytes_sent - then.bytes_sent)
        return {
            ("host_network", "receive"): received / elapsed_s,
            ("host_network", "transmit"): sent / elapsed_s,
        }


def _counters() -> _Counters:
    try:
        return _Counters()
    except (OSError, RuntimeError, NotImplementedError) as error:
        raise SourceUnavailable(f"host counters: {error}") from None


def _whole_disks(disks: Mapping[str, _Disk]) -> dict[str, _Disk]:
    """Leave out partitions and layered devices: their bytes are those of a disk that is listed."""
    names = [name for name in disks if not name.startswith(_LAYERED)]
    return {
        name: disks[name]
        for name in names
        if not any(name != whole and name.startswith(whole) for whole in names)
    }
