"""Turns maps that only grow into what grew since the last drain, under names people know."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.activity import HostTable

from . import ebpf_layout as layout
from .bpf_maps import PerCpuMap
from .cgroup_names import CgroupNames

OTHER: Final = "OTHER"
"""The row of everything that found no room in a bounded map."""

_IDLE_DRAINS: Final = 600
"""A peer or device that stayed silent for ten minutes makes room."""

Rows = dict[bytes, NDArray[np.int64]]


class GrowingTable:
    """One bounded map: each call of `grown` gives what came since the last.

    columns     names of the columns that are published; what follows them is the program's own
    latest      columns in which each CPU holds its last sight of one value: the largest counts
    """

    def __init__(
        self,
        name: str,
        source: PerCpuMap,
        columns: tuple[str, ...],
        latest: Iterable[str] = (),
    ) -> None:
        self.name = name
        self._source = source
        self._columns = columns
        self._latest = [columns.index(column) for column in latest]
        self._other = bytes(source.key_bytes)
        self._places: dict[bytes, int] = {}
        self._before = np.zeros((0, len(columns)), np.int64)
        self._idle = np.zeros(0, np.int64)

    def read(self) -> Rows:
        """Give the present rows: int64[columns] per key."""
        rows: Rows = {}
        width = len(self._columns)
        for keys, values in self._source.batches():
            totals = values[:, :, :width].sum(axis=1).astype(np.int64)
            if self._latest:
                totals[:, self._latest] = values[:, :, self._latest].max(axis=1)
            rows.update(zip(map(bytes, keys), totals, strict=True))
        return rows

    def add(self, now: Rows, key: bytes, values: Mapping[str, int]) -> None:
        """Add to columns of a row, made where the map has room for it; else to those of OTHER."""
        if key not in now and len(now) >= self._source.capacity:
            key = self._other
        row = now.setdefault(key, np.zeros(len(self._columns), np.int64))
        for column, value in values.items():
            row[self._columns.index(column)] += value

    def grown(
        self,
        now: Rows,
        name_of: Callable[[bytes], str],
        boottime_ns: int,
        span_ns: int,
    ) -> HostTable | None:
        """Give the rows that changed; None where nothing did. `now` becomes the next base."""
        if not now:
            self._places = {}
            return None
        rows = np.array(list(now.values()), np.int64)
        before, idle = self._bases(now)
        growth = np.maximum(rows - before, 0)
        # A task that just left its CPU can take a moment of its time back: wait for it.
        self._before = np.maximum(rows, before)
        grew = growth.any(axis=1)
        self._idle = np.where(grew, 0, idle + 1)
        places = np.flatnonzero(grew)
        if not len(places):
            return None
        keys = list(now)
        found = [keys[place] for place in places.tolist()]
        names = tuple(OTHER if key == self._other else name_of(key) for key in found)
        values = growth[places]
        if len(set(names)) < len(names):
            names, values = _joined(names, values)
        return HostTable(self.name, names, self._columns, values, boottime_ns, span_ns)

    def _bases(self, now: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give each row's last value and for how long it has been silent: 0 for a new one."""
        if list(self._places) == list(now):
            return self._before, self._idle
        before = np.zeros((len(now), len(self._columns)), np.int64)
        idle = np.zeros(len(now), np.int64)
        for place, key in enumerate(now):
            known = self._places.get(key)
            if known is not None:
                before[place], idle[place] = self._before[known], self._idle[known]
        self._places = {key: place for place, key in enumerate(now)}
        return before, idle

    def forget(self, keys: Iterable[bytes]) -> None:
        """Make room: remove rows whose last growth has been handed out."""
        for key in list(keys):
            if key != self._other:
                self._source.delete(key)
                self._places.pop(key, None)

    def forget_idle(self) -> None:
        """Remove the rows that have been silent for long."""
        if len(self._idle) and int(self._idle.max()) >= _IDLE_DRAINS:
            places = self._places.items()
            self.forget([key for key, place in places if self._idle[place] >= _IDLE_DRAINS])


def _joined(
    names: tuple[str, ...], values: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Add up rows of one name."""
    rows: dict[str, NDArray[np.int64]] = {}
    for name, row in zip(names, values, strict=True):
        rows[name] = rows[name] + row if name in rows else row
    return tuple(rows), np.stack(list(rows.values()))


class CgroupTable:
    """A growing table keyed by cgroup id: names them, and forgets those whose directory is gone."""

    def __init__(self, table: GrowingTable, names: CgroupNames) -> None:
        self._table = table
        self._names = names
        self._searched: set[int] = set()

    def name_of(self, cgroup: int) -> str:
        """Name a cgroup, looking for it once more where it is unknown."""
        if not self._names.knows_all({cgroup} - self._searched):
            self._names.scan()
            self._searched |= {cgroup}
        return self._name(struct.pack("<Q", cgroup))

    def ids(self, names: Collection[str]) -> set[int]:
        """Give the ids of cgroups that were seen, by name."""
        return self._names.ids(names)

    def grown(
        self,
        boottime_ns: int,
        span_ns: int,
        kept_back: Iterable[tuple[int, dict[str, int]]] = (),
    ) -> HostTable | None:
        """Give what grew, with what CPUs keep back for the cgroups that run on them."""
        now = self._table.read()
        for cgroup, values in kept_back:
            self._table.add(now, cgroup.to_bytes(8, "little"), values)
        ids = set(np.frombuffer(b"".join(now), "<u8").tolist()) - {0}
        if not self._names.knows_all(ids - self._searched):
            self._names.scan()
            self._searched = self._names.unknown(ids)
        table = self._table.grown(now, self._name, boottime_ns, span_ns)
        if self._names.cut_short:
            self._table.forget_idle()  # what has no name may be there all the same
            return table
        gone = self._names.unknown(ids)
        if gone:
            self._table.forget(struct.pack("<Q", one) for one in gone)
        return table

    def _name(self, key: bytes) -> str:
        cgroup = int.from_bytes(key, "little")
        return self._names.name(cgroup) or f"gone:{cgroup}"


@lru_cache(maxsize=256)
def device_name(key: bytes) -> str:
    """Name a block device by major and minor: `vda`, else `254:0`."""
    number = int.from_bytes(key, "little")
    device = f"{number >> 20}:{number & 0xFFFFF}"
    link = Path(f"/sys/dev/block/{device}")
    return link.resolve().name if link.exists() else device


def peer_name(key: bytes) -> str:
    """Write a peer's address; one mapped from IPv4 as IPv4."""
    address = ipaddress.IPv6Address(key)
    return str(address.ipv4_mapped or address)


def cpu_table(grown: NDArray[np.uint64], boottime_ns: int, span_ns: int) -> HostTable:
    """Give the totals' growth by CPU from uint64[cpus, CPU_STATE_FIELDS]."""
    values = grown[:, : len(layout.TOTALS)].astype(np.int64)
    rows = tuple(f"cpu{number}" for number in range(len(values)))
    return HostTable("cpu", rows, layout.TOTALS, values, boottime_ns, span_ns)


def cost_table(
    grown: NDArray[np.uint64], timer: tuple[int, int], boottime_ns: int, span_ns: int
) -> HostTable:
    """Give what the programs themselves cost: hits, those that were timed, and their time.

    timer   (callbacks, nanoseconds of all of them): every callback is timed
    """
    start, count = len(layout.TOTALS), len(layout.PROGRAMS)
    parts = grown[:, start : start + 3 * count].sum(axis=0).reshape(3, count).T.astype(np.int64)
    ticks, ticks_ns = timer
    values = np.vstack([parts, [[ticks, ticks, ticks_ns]]])
    rows = (*layout.PROGRAMS, "on_tick")
    columns = ("hits", "timed_hits", "timed_ns")
    return HostTable("bpf_cost", rows, columns, values, boottime_ns, span_ns)
