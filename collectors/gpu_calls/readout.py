"""Reads what the GPU programs counted: growth of the maps as rows of a ProbeDrain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np

from collectors.bpf.bpf_maps import PerCpuMap
from collectors.records.gpu_calls import FileGroup
from collectors.records.process import ProcessKey  # fmt: skip

from . import map_layout as layout
from .counts import CallRow, CollectiveRow, CopyRow, ErrorRow, LaunchRow, ProbeDrain
from .growth import GrowingMap
from .map_layout import ProbeLimits, other_keys
from .probe_table import ProbeTable

_CallKey = tuple[ProcessKey, int, int]
_NOTHING: Final = dict.fromkeys(layout.CALL_ROW, 0)


class Readout:
    """The growing maps of loaded programs."""

    def __init__(
        self, table: ProbeTable, fd: Callable[[str], int], cpus: int, limits: ProbeLimits
    ) -> None:
        def growing(
            name: str,
            key: np.dtype[np.void],
            columns: tuple[str, ...],
            largest: tuple[str, ...] = (),
        ) -> GrowingMap:
            others = other_keys(name, table)
            capacity = getattr(limits, name) + len(others)
            source = PerCpuMap(fd(name), key.itemsize, len(columns), cpus, capacity)
            for other in others:
                source.set_zero(other)
            return GrowingMap(source, key, columns, largest)

        self._rows = table.rows
        self._index = {row.id: place for place, row in enumerate(self._rows)}
        self._launches = growing(
            "launches", layout.LAUNCH_KEY, layout.LAUNCH_ROW, ("shared_bytes",)
        )
        self._calls = growing("calls", layout.CALL_KEY, layout.CALL_ROW)
        self._errors = growing("errors", layout.ERROR_KEY, layout.ERROR_ROW)
        self._copies = growing("copies", layout.COPY_KEY, layout.COPY_ROW)
        self._collectives = growing("collectives", layout.COLLECTIVE_KEY, layout.COLLECTIVE_ROW)
        self._maps = {
            "launches": self._launches,
            "calls": self._calls,
            "errors": self._errors,
            "copies": self._copies,
            "collectives": self._collectives,
        }

    def read(self) -> ProbeDrain:
        """Read every map once; times and what is in no map of rows are left out.

        Raises      SourceUnavailable
        """
        launches = tuple(self._read_launches())
        grown = self._grown_calls(launches)
        calls = tuple(
            CallRow(
                process, file, self._rows[row].id,
                calls=c["calls"], nested=c["nested"], returned=c["returned"],
                failures=c["failures"], wait_ns=c["wait_ns"], bytes=c["bytes"],
            )
            for (process, file, row), c in grown.items()
        )  # fmt: skip
        return ProbeDrain(
            0, 0, launches, calls, tuple(self._read_errors()), tuple(self._read_copies()),
            collectives=tuple(self._read_collectives()), hits=self._hits(grown),
        )  # fmt: skip

    def processes(self) -> set[tuple[int, int]]:
        """Give (tgid, start_ns) of every process that has a row."""
        return set(chain.from_iterable(bpf_map.processes() for bpf_map in self._maps.values()))

    def forget(self, processes: set[tuple[int, int]]) -> None:
        """Remove what ended processes left, and make room."""
        for bpf_map in self._maps.values():
            bpf_map.forget(processes)

    def _read_launches(self) -> Iterator[LaunchRow]:
        keys, growth = self._launches.grown()
        for (start_ns, tgid, file, kernel, row), counts in zip(
            keys.tolist(), growth.tolist(), strict=True
        ):
            process = layout.process_key(tgid, start_ns)
            yield LaunchRow(process, file, kernel, self._rows[row].id, *counts)

    def _grown_calls(self, launches: tuple[LaunchRow, ...]) -> dict[_CallKey, dict[str, int]]:
        """Give the growth by process, file and row; launches are counted in rows of their own."""
        grown: dict[_CallKey, dict[str, int]] = {}
        keys, growth = self._calls.grown()
        for (start_ns, tgid, file, row), counts in zip(keys.tolist(), growth.tolist(), strict=True):
            key = (layout.process_key(tgid, start_ns), file, row)
            into = grown.setdefault(key, dict(_NOTHING))
            for column, count in zip(layout.CALL_ROW, counts, strict=True):
                into[column] += count
        for launch in launches:
            key = (launch.process, launch.file, self._index[launch.call])
            grown.setdefault(key, dict(_NOTHING))["calls"] += launch.launches
        return grown

    def _hits(
        self, grown: Mapping[_CallKey, Mapping[str, int]]
    ) -> dict[tuple[FileGroup, ProcessKey], int]:
        """Count probe hits by what they were counted as: nothing is added to a hit for it."""
        hits: defaultdict[tuple[FileGroup, ProcessKey], int] = defaultdict(int)
        for (process, file, place), counts in grown.items():
            row = self._rows[place]
            entries = counts["calls"] + counts["nested"]
            ends = counts["returned"] + counts["hits"]
            hits[FileGroup(file, row.group), process] += entries
            if ends:
                hits[FileGroup(file, row.return_group), process] += ends
        return dict(hits)

    def _read_errors(self) -> Iterator[ErrorRow]:
        keys, growth = self._errors.grown()
        for (start_ns, tgid, file, row, code), (failures,) in zip(
            keys.tolist(), growth.tolist(), strict=True
        ):
            process = layout.process_key(tgid, start_ns)
            yield ErrorRow(process, file, self._rows[row].id, code, failures)

    def _read_copies(self) -> Iterator[CopyRow]:
        """Gather the bins of one process, file and direction."""
        gathered: defaultdict[tuple[ProcessKey, int, int], list[tuple[int, int, int]]]
        gathered = defaultdict(list)
        keys, growth = self._copies.grown()
        for (start_ns, tgid, file, direction, size_bin), (copies, size) in zip(
            keys.tolist(), growth.tolist(), strict=True
        ):
            key = (layout.process_key(tgid, start_ns), file, direction)
            gathered[key].append((size_bin, copies, size))
        for (process, file, direction), bins in gathered.items():
            yield CopyRow(
                process,
                file,
                layout.DIRECTIONS[direction],
                sum(copies for _, copies, _ in bins),
                sum(size for _, _, size in bins),
                tuple(sorted((size_bin, copies) for size_bin, copies, _ in bins)),
            )

    def _read_collectives(self) -> Iterator[CollectiveRow]:
        keys, growth = self._collectives.grown()
        for (start_ns, tgid, file, communicator, row), counts in zip(
            keys.tolist(), growth.tolist(), strict=True
        ):
            process = layout.process_key(tgid, start_ns)
            yield CollectiveRow(process, file, communicator, self._rows[row].id, *counts)
