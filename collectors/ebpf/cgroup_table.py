"""The map of cgroups as a table: rows by path, and room where a directory is gone."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

import numpy as np

from collectors.bpf.cgroup_names import CgroupNames
from collectors.records.activity import HostTable

from .ebpf_tables import GrowingTable, Rows


class CgroupTable:
    """A growing table keyed by cgroup id: names them, and forgets those whose directory is gone."""

    def __init__(self, table: GrowingTable, names: CgroupNames) -> None:
        self._table = table
        self._names = names
        self._searched: set[int] = set()
        self._named: dict[bytes, int] | None = None
        """Keys that all have names: as long as the map has these, none is looked for."""
        self._asked: tuple[Collection[str], set[int]] = ((), set())

    def name_of(self, cgroup: int) -> str:
        """Name a cgroup, looking for it once more where it is unknown."""
        name = self._names.name(cgroup)
        if name is None and cgroup not in self._searched:
            self._scan()
            self._searched |= {cgroup}
            name = self._names.name(cgroup)
        return name or f"gone:{cgroup}"

    def ids(self, names: Collection[str]) -> set[int]:
        """Give the ids of cgroups that were seen, by name."""
        if self._asked[0] != names:
            self._asked = names, self._names.ids(names)
        return self._asked[1]

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
        gone = self._unnamed(now)
        table = self._table.grown(now, self._name, boottime_ns, span_ns)
        if self._names.cut_short:
            self._table.forget_idle()  # what has no name may be there all the same
        else:
            self._table.forget(struct.pack("<Q", one) for one in gone)
        return table

    def _unnamed(self, now: Rows) -> set[int]:
        """Look for names where one is missing; give the ids of what has none."""
        if now.places is self._named:
            return set()
        ids = set(np.frombuffer(b"".join(now.places), "<u8").tolist()) - {0}
        if not self._names.knows_all(ids - self._searched):
            self._scan()
            self._searched = self._names.unknown(ids)
        gone = self._names.unknown(ids)
        self._named = now.places if not gone else None
        return gone

    def _scan(self) -> None:
        self._names.scan()
        self._named, self._asked = None, ((), set())

    def _name(self, key: bytes) -> str:
        cgroup = int.from_bytes(key, "little")
        return self._names.name(cgroup) or f"gone:{cgroup}"
