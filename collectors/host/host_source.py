"""Host: CPU, memory, disk and network of this machine, as means of the window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from collectors.port import SourceUnavailable
from collectors.records.activity import Observation
from wire.catalogue import Catalogue

from .host_counters import CPU_FIELDS, CounterFiles, HostCounters

MILLION: Final = 1_000_000
SECTIONS: Final = ("host_cpu", "host_memory", "host_disk", "host_network")
_SHORTEST_NS: Final = 100_000_000
_NS_PER_S: Final = 1_000_000_000
_CPU_CELLS: Final = ("user", "system", "iowait", "interrupt", "steal")

Levels = dict[tuple[str, str], float]
"""(section, cell) -> level in the unit of the cell's full scale."""


class HostSource:
    """Samples the counters of /proc; each drain is one sample of the time since the one before.

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
        self._files: CounterFiles | None = None
        self._before: HostCounters | None = None
        self._before_ns: int | None = None

    def probe(self) -> str | None:
        """Say why this host's counters cannot be read."""
        try:
            files = CounterFiles()
        except OSError as error:
            return f"host counters: {error}"
        try:
            files.read()
        except (OSError, ValueError) as error:
            return f"host counters: {error}"
        finally:
            files.close()
        return None

    def start(self) -> None:
        """Begin with the next drain. Raises SourceUnavailable."""
        try:
            self._files, self._before_ns = self._files or CounterFiles(), None
        except OSError as error:
            raise SourceUnavailable(f"host counters: {error}") from None

    def drain(self, now_boottime_ns: int) -> Iterable[Observation]:
        """Return one observation per cell for the time since the last call.

        The first call and calls less than 100 ms apart give nothing: ticks are too coarse.
        """
        if self._files is None:
            raise SourceUnavailable("host counters: not started")
        before, before_ns = self._before, self._before_ns
        if before_ns is not None and now_boottime_ns - before_ns < _SHORTEST_NS:
            return []
        try:
            now = self._files.read()
        except (OSError, ValueError) as error:
            raise SourceUnavailable(f"host counters: {error}") from None
        self._before, self._before_ns = now, now_boottime_ns
        if before is None or before_ns is None:
            return []
        elapsed_ns = now_boottime_ns - before_ns
        levels = levels_of(now, before, elapsed_ns / _NS_PER_S)
        # The middle of the span: a sample that straddles two windows counts where most of it lies.
        return list(self._observations(levels, now_boottime_ns - elapsed_ns // 2))

    def stop(self) -> None:
        """Let the files go."""
        if self._files is not None:
            self._files.close()
        self._files = self._before = self._before_ns = None

    def _observations(self, levels: Levels, at_ns: int) -> Iterator[Observation]:
        for (section, cell), full_scale in self._full_scale.items():
            level = levels.get((section, cell))
            if level is not None:
                share = min(max(level / full_scale, 0.0), 1.0)
                yield Observation(section, cell, round(share * MILLION), at_ns)


def levels_of(now: HostCounters, before: HostCounters, elapsed_s: float) -> Levels:
    """Return every level; a counter that went backwards (a device came back) counts as 0."""
    levels = _cpu_percent(now.cpu, before.cpu)
    memory = now.memory
    levels["host_memory", "used"] = 100 * memory.used / memory.total
    levels["host_memory", "cached"] = 100 * memory.cached / memory.total
    busiest_ms = read = written = 0
    for disk, (bytes_read, bytes_written, busy_ms) in now.disks.items():
        then = before.disks.get(disk)
        if then is not None:
            read += max(0, bytes_read - then[0])
            written += max(0, bytes_written - then[1])
            busiest_ms = max(busiest_ms, busy_ms - then[2])
    levels["host_disk", "busy"] = 100 * busiest_ms / (1_000 * elapsed_s)
    levels["host_disk", "read"] = read / elapsed_s
    levels["host_disk", "write"] = written / elapsed_s
    received = sent = 0
    for link, (bytes_received, bytes_sent) in now.links.items():
        was = before.links.get(link)
        if was is not None:
            received += max(0, bytes_received - was[0])
            sent += max(0, bytes_sent - was[1])
    levels["host_network", "receive"] = received / elapsed_s
    levels["host_network", "transmit"] = sent / elapsed_s
    return levels


def _cpu_percent(now: tuple[int, ...], before: tuple[int, ...]) -> Levels:
    spent = [max(0, ticks - then) for ticks, then in zip(now, before, strict=True)]
    whole = sum(spent)
    if not whole:
        return {}
    parts = dict(zip(CPU_FIELDS, spent, strict=True))
    parts["user"] += parts["nice"]
    parts["interrupt"] = parts["irq"] + parts["softirq"]
    return {("host_cpu", cell): 100 * parts[cell] / whole for cell in _CPU_CELLS}
