"""A trace's GPU events in small groups, and the file that keeps them for the next pass."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from collectors.port import SourceUnavailable
from collectors.records.activity import log2_bin
from kernels.launches.kineto import GpuEvent

_SLOT_NS = 100_000_000
_MOST_NAMES = 1 << 16
_SPOOL_GROUPS = 8_192
_SPOOLED = np.dtype(
    [
        ("first", "<i8"),
        ("last", "<i8"),
        ("gpu_time", "<i8"),
        ("count", "<u4"),
        ("name", "<u4"),
        ("device", "<i4"),
        ("duration_bin", "i1"),
        ("size_bin", "i1"),
    ]
)


@dataclass(slots=True)
class LaunchGroup:
    """Launches of one kernel on one device within a slot of 100 ms: one duration bin, one size.

    first_ns, last_ns   start of the first and end of the last launch, since the trace's first event
    size_bin            log2 bin of a copy's bytes, -1 for all else
    """

    first_ns: int
    last_ns: int
    gpu_time_ns: int
    count: int
    kernel: str
    device: int
    duration_bin: int
    size_bin: int


def slots(events: Iterator[GpuEvent]) -> Iterator[LaunchGroup]:
    """Gather events into groups, slot by slot, each slot's by first launch.

    One bin each per group, so that time by duration and by size is exact downstream.
    """
    slot, gathered = 0, dict[tuple[str, int, int, int], LaunchGroup]()
    origin_ns: int | None = None
    for event in events:
        origin_ns = event.start_ns if origin_ns is None else origin_ns
        start_ns = max(event.start_ns - origin_ns, slot * _SLOT_NS)
        if start_ns // _SLOT_NS > slot:
            yield from sorted(gathered.values(), key=lambda group: group.first_ns)
            gathered.clear()
            slot = start_ns // _SLOT_NS
        _gather(gathered, event, start_ns)
    yield from sorted(gathered.values(), key=lambda group: group.first_ns)


def _gather(
    gathered: dict[tuple[str, int, int, int], LaunchGroup], event: GpuEvent, start_ns: int
) -> None:
    size_bin = -1 if event.copy_bytes is None else log2_bin(event.copy_bytes)
    key = (event.name, event.device, log2_bin(event.duration_ns), size_bin)
    group = gathered.get(key)
    if group is None:
        group = gathered[key] = LaunchGroup(start_ns, start_ns, 0, 0, *key)
    group.last_ns = max(group.last_ns, start_ns + event.duration_ns)
    group.gpu_time_ns += event.duration_ns
    group.count += 1


class ReplaySpool:
    """The groups of the first pass in an unlinked temporary file: later passes parse nothing."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="pointillist-replay-")  # noqa: SIM115 (closed by close)
        self._pending: list[tuple[int, ...]] = []
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def append(self, group: LaunchGroup) -> None:
        """Keep one group."""
        name = self._name_id(group.kernel)
        times = (group.first_ns, group.last_ns, group.gpu_time_ns)
        bins = (group.duration_bin, group.size_bin)
        self._pending.append((*times, group.count, name, group.device, *bins))
        if len(self._pending) >= _SPOOL_GROUPS:
            self._flush()

    def groups(self) -> Iterator[LaunchGroup]:
        """Yield what was kept, in order."""
        self._flush()
        offset = 0
        while True:
            self._file.seek(offset)
            block = self._file.read(_SPOOL_GROUPS * _SPOOLED.itemsize)
            if not block:
                return
            offset += len(block)
            for first, last, time, count, name, device, length, size in np.frombuffer(
                block, _SPOOLED
            ).tolist():
                yield LaunchGroup(first, last, time, count, self._names[name], device, length, size)

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()

    def _name_id(self, name: str) -> int:
        """Number a name; a trace of endless new names folds the rest into one."""
        known = self._ids.get(name)
        if known is not None:
            return known
        if len(self._names) >= _MOST_NAMES:
            return self._name_id(self._names[-1])
        self._names.append(name if len(self._names) < _MOST_NAMES - 1 else "(more kernels)")
        self._ids[self._names[-1]] = len(self._names) - 1
        return len(self._names) - 1

    def _flush(self) -> None:
        if not self._pending:
            return
        try:
            self._file.seek(0, 2)
            self._file.write(np.array(self._pending, dtype=_SPOOLED).tobytes())
            self._file.flush()
        except OSError as error:
            raise SourceUnavailable(f"replay spool: {error.strerror or error}") from None
        self._pending.clear()
