"""The GPU programs' maps, laid out as in bpf/include/gpu.h (a test compares), read as rows.

Counts are of calls seen while probes were attached. Times: CLOCK_BOOTTIME in ns; sizes: bytes.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.binaries.proc_maps import coarse
from collectors.bpf.bpf_maps import PerCpuMap
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Direction, FileGroup, MemoryState, ProbeGroup

from .probe_table import MAX_ELEMENT_SIZES, ArgumentPlace, CallKind, Meaning, ProbeRow, ProbeTable


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """Launches of one kernel by one process.

    kernel         the handle or address that the launch call was given; 0 is OTHER: no room
    shared_bytes   largest dynamic shared memory, of the first launch on each CPU and of one in 64
    caller         where a launch returned to, 0: not read
    """

    process: ProcessKey
    file: int
    kernel: int
    call: str
    launches: int
    blocks: int
    threads: int
    shared_bytes: int
    caller: int = 0


@dataclass(frozen=True, slots=True)
class CallRow:
    """Calls of one kind by one process; `nested` are not in `calls`, `wait_ns` is of `returned`."""

    process: ProcessKey
    file: int
    call: str
    calls: int
    nested: int
    returned: int
    failures: int
    wait_ns: int
    bytes: int


class ErrorRow(NamedTuple):
    process: ProcessKey
    file: int
    call: str
    code: int
    failures: int


class CopyRow(NamedTuple):
    """Copies of one process in one direction; log2_bins are (bin, count) of bytes."""

    process: ProcessKey
    file: int
    direction: Direction
    copies: int
    bytes: int
    log2_bins: tuple[tuple[int, int], ...]


class MemoryRow(NamedTuple):
    """Device memory of one process; `oldest_ns`: when the oldest live allocation was made, or 0."""

    process: ProcessKey
    oldest_ns: int
    state: MemoryState


class CollectiveRow(NamedTuple):
    """Collectives of one kind by one process on one communicator; ns inside the host's calls."""

    process: ProcessKey
    file: int
    communicator: int
    call: str
    calls: int
    bytes: int
    duration_ns: int


class NameEvent(NamedTuple):
    """A process gave a handle a name.

    handle          what later comes as `LaunchRow.kernel`
    name            the kernel's name, or empty where only `host_function` is known
    host_function   address of the host stub, 0: unknown
    """

    process: ProcessKey
    file: int
    call: str
    handle: int
    name: str
    host_function: int


class CallSample(NamedTuple):
    """One call of a process whose sampling is switched on.

    correlation   counts calls of the process; `graph` and `event` are handles, 0: none
    duration_ns   time inside the call, or 0 where the return was not seen
    """

    process: ProcessKey
    thread: int
    file: int
    call: str
    kernel: int
    stream: int
    graph: int
    event: int
    correlation: int
    bytes: int
    stack_id: int
    boottime_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ProbeDrain:
    """Everything since the last drain.

    duty   share of the span, 0..1, during which a group was attached to a file; a group that is
           not named was not attached at all
    lost   counts of what found no room, by what: `launch_rows` (those launches are in kernel 0 of
           process (0, 0) and file 0, as all rows of what found no room), `allocations`,
           `samples`, `names`, ...
    hits   probe hits of a group on a file by process: what the governor needs; those whose rows
           found no room are under file 0 and process (0, 0)
    """

    begun_ns: int
    span_ns: int
    launches: tuple[LaunchRow, ...] = ()
    calls: tuple[CallRow, ...] = ()
    errors: tuple[ErrorRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    names: tuple[NameEvent, ...] = ()
    samples: tuple[CallSample, ...] = ()
    duty: Mapping[FileGroup, float] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    hits: Mapping[tuple[FileGroup, ProcessKey], int] = field(default_factory=dict)


_LARGEST: Final = frozenset({"shared_bytes", "caller"})
_CROWDED: Final = 0.9
_IDLE_DRAINS: Final = 10


class GrowingMap:
    """One bounded map, summed over CPUs; of some columns the largest counts."""

    def __init__(self, source: PerCpuMap, key: np.dtype[np.void], columns: Sequence[str]) -> None:
        self._source, self._key, self._width = source, key, len(columns)
        self._largest = [place for place, name in enumerate(columns) if name in _LARGEST]
        self._keys = np.empty((0, source.key_bytes), np.uint8)
        self._totals = np.empty((0, self._width), np.int64)
        self._idle = np.empty(0, np.int64)
        self._named: tuple[NDArray[np.uint8] | None, set[tuple[int, int]]] = (None, set())

    def grown(self) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Give the keys that grew and their growth: int64[n, columns]. Raises SourceUnavailable."""
        keys, totals = self._read()
        if np.array_equal(keys, self._keys):
            keys = self._keys
        base, idle = self._before(keys)
        deltas = np.maximum(totals - base, 0)
        deltas[:, self._largest] = 0
        changed = deltas.any(axis=1)
        self._keys, self._totals = keys, totals
        self._idle = np.where(changed, 0, idle + 1)
        deltas[:, self._largest] = totals[:, self._largest]
        return keys[changed].view(self._key).ravel(), deltas[changed]

    def rows(self) -> Iterator[tuple[ProcessKey, list[int], list[int]]]:
        """Yield what grew: the process, the rest of the key, and the counts."""
        keys, deltas = self.grown()
        for (start_ns, tgid, *key), counts in zip(keys.tolist(), deltas.tolist(), strict=True):
            yield coarse(ProcessKey(tgid, start_ns)), key, counts

    def forget(self, processes: Collection[tuple[int, int]]) -> None:
        """Remove rows of ended processes (tgid, start_ns), and silent ones of a crowded map."""
        crowded = len(self._keys) > _CROWDED * self._source.capacity
        if not processes and not crowded:
            return
        named = self._keys.view(self._key).ravel()
        gone = np.zeros(len(named), bool)
        for tgid, start_ns in processes:
            gone |= (named["tgid"] == tgid) & (named["start_ns"] == start_ns)
        if crowded:
            gone |= (self._idle >= _IDLE_DRAINS) & (named["tgid"] != 0)
        if not gone.any():
            return
        for key in self._keys[gone]:
            self._source.delete(key.tobytes())
        kept = ~gone
        self._keys, self._totals = self._keys[kept], self._totals[kept]
        self._idle = self._idle[kept]

    def processes(self) -> set[tuple[int, int]]:
        """Give (tgid, start_ns) of every process that has a row."""
        if self._named[0] is not self._keys:
            named = self._keys.view(self._key).ravel()[["tgid", "start_ns"]].tolist()
            self._named = self._keys, {(tgid, start_ns) for tgid, start_ns in named if tgid}
        return self._named[1]

    def _read(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        keys = [np.empty((0, self._source.key_bytes), np.uint8)]
        totals = [np.empty((0, self._width), np.int64)]
        for some, values in self._source.batches():
            summed = values.sum(axis=1).astype(np.int64)
            summed[:, self._largest] = values[:, :, self._largest].max(axis=1, initial=0)
            keys.append(some.copy())
            totals.append(summed)
        return np.concatenate(keys), np.concatenate(totals)

    def _before(self, keys: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if keys is self._keys:
            return self._totals, self._idle
        places = {key.tobytes(): place for place, key in enumerate(self._keys)}
        before = np.array([places.get(key.tobytes(), -1) for key in keys], np.int64)
        known = before >= 0
        totals = np.zeros((len(keys), self._width), np.int64)
        idle = np.zeros(len(keys), np.int64)
        totals[known], idle[known] = self._totals[before[known]], self._idle[before[known]]
        return totals, idle


MAX_FILES: Final = 1024
GROUPS: Final = tuple(ProbeGroup)
KINDS: Final = tuple(CallKind)
DIRECTIONS: Final = tuple(Direction)
SIZE_BINS: Final = 48
OTHER: Final = 0
"""Process, kernel, ... of the row of everything that found no room in a bounded map."""

_PROCESS: Final = [("start_ns", "<u8"), ("tgid", "<u4"), ("file", "<u4")]
PROCESS: Final = np.dtype(_PROCESS)
LAUNCH_KEY: Final = np.dtype([*_PROCESS, ("kernel", "<u8"), ("row", "<u8")])
CALL_KEY: Final = np.dtype([*_PROCESS, ("row", "<u8")])
ERROR_KEY: Final = np.dtype([*_PROCESS, ("row", "<u4"), ("code", "<i4")])
COPY_KEY: Final = np.dtype([*_PROCESS, ("direction", "<u4"), ("bin", "<u4")])
COLLECTIVE_KEY: Final = np.dtype([*_PROCESS, ("communicator", "<u8"), ("row", "<u8")])
ALLOCATION_KEY: Final = np.dtype([*_PROCESS, ("address", "<u8")])

LAUNCH_ROW: Final = ("launches", "blocks", "threads", "shared_bytes", "caller")
CALL_ROW: Final = ("calls", "nested", "returned", "failures", "wait_ns", "bytes", "hits")
ERROR_ROW: Final = ("failures",)
COPY_ROW: Final = ("copies", "bytes")
COLLECTIVE_ROW: Final = ("calls", "bytes", "duration_ns")
MEMORY_ROW: Final = ("live_bytes", "peak_bytes", "allocations", "frees", "untracked", "exec_id")
ALLOCATION_ROW: Final = ("bytes", "boottime_ns", "exec_id")
FRAMES: Final = 4
FRAME_BYTES: Final = 128
THREAD_FIELDS: Final = (16 + FRAMES * FRAME_BYTES) // 8

NAME_EVENT: Final = np.dtype(
    [*_PROCESS, ("handle", "<u8"), ("host", "<u8"), ("row", "<u4"), ("length", "<u4")]
)  # fmt: skip
SAMPLE_EVENT: Final = np.dtype(
    [*_PROCESS, ("kernel", "<u8"), ("stream", "<u8"), ("graph", "<u8"), ("event", "<u8"),
     ("correlation", "<u8"), ("bytes", "<u8"), ("boottime_ns", "<u8"), ("duration_ns", "<u8"),
     ("thread", "<u4"), ("row", "<u4"), ("stack_id", "<i8")]
)  # fmt: skip

LOST: Final = (
    "launch_rows", "call_rows", "error_rows", "copy_rows", "collective_rows", "memory_rows",
    "allocations", "threads", "frames", "names", "samples", "stacks", "unreadable",
)  # fmt: skip
"""What found no room, in the order of `enum lost`."""

_STATUS, _DEVICE, _RETURNS = 1, 2, 4

GROWING: Final = {
    "launches": (LAUNCH_KEY, LAUNCH_ROW),
    "calls": (CALL_KEY, CALL_ROW),
    "errors": (ERROR_KEY, ERROR_ROW),
    "copies": (COPY_KEY, COPY_ROW),
    "collectives": (COLLECTIVE_KEY, COLLECTIVE_ROW),
}
"""The maps that have rows of OTHER: of no process and no file, for what finds no room."""

_LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})
_COLLECTIVES: Final = frozenset({CallKind.COLLECTIVE})
_NOBODY: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    A row of the first five is there once per CPU: 40, 56, 8, 16 and 24 bytes of it.
    stacks                          user stacks of sampled calls, 1 KiB each
    names_bytes, samples_bytes      rings; powers of two, whole pages
    """

    launches: int = 4096
    calls: int = 4096
    errors: int = 1024
    copies: int = 4096
    collectives: int = 1024
    memory: int = 1024
    allocations: int = 65536
    threads: int = 8192
    sampled: int = 256
    stacks: int = 2048
    names_bytes: int = 512 << 10
    samples_bytes: int = 2 << 20


def cookie(file: int, place: int, row: int) -> int:
    return file << 32 | place << 16 | row


def encode_row(row: ProbeRow) -> bytes:
    flags = _STATUS * row.status | _DEVICE * row.device | _RETURNS * row.returns
    head = struct.pack(
        f"<5B3x{MAX_ELEMENT_SIZES}s",
        KINDS.index(row.kind),
        flags,
        DIRECTIONS.index(row.direction),
        GROUPS.index(row.return_group),
        len(row.element_sizes),
        bytes(row.element_sizes),
    )
    return head + b"".join(_encode_place(row.arguments.get(meaning)) for meaning in Meaning)


def _encode_place(place: ArgumentPlace | None) -> bytes:
    if place is None:
        return bytes(4)
    return struct.pack("<BBH", place.slot + 1, place.offset is not None, place.offset or 0)


def other_keys(name: str, table: ProbeTable) -> list[bytes]:
    """Give the keys of OTHER in a growing map: one for each row, or direction and bin of sizes."""

    kinds = {"launches": _LAUNCHES, "collectives": _COLLECTIVES}.get(name, frozenset(CallKind))
    places = [place for place, row in enumerate(table.rows) if row.kind in kinds]
    rest: list[tuple[int, ...]] = [(OTHER, place) for place in places]
    if name == "copies":
        rest = list(product(range(len(DIRECTIONS)), range(SIZE_BINS)))
    elif name in {"calls", "errors"}:
        rest = [(place, 0)[: 1 + (name == "errors")] for place in places]
    return [np.array([(*_NOBODY, *tail)], GROWING[name][0]).tobytes() for tail in rest]


_CallKey = tuple[ProcessKey, int, int]
_NOTHING: Final = dict.fromkeys(CALL_ROW, 0)


class Readout:
    def __init__(
        self, table: ProbeTable, fd: Callable[[str], int], cpus: int, limits: ProbeLimits
    ) -> None:
        self._rows = table.rows
        self._index = {row.id: place for place, row in enumerate(self._rows)}
        self._maps: dict[str, GrowingMap] = {}
        for name, (key, columns) in GROWING.items():
            others = other_keys(name, table)
            capacity = getattr(limits, name) + len(others)
            source = PerCpuMap(fd(name), key.itemsize, len(columns), cpus, capacity)
            for other in others:
                source.set_zero(other)
            self._maps[name] = GrowingMap(source, key, columns)

    def read(self) -> ProbeDrain:
        """Read every map of rows once; times are left out. Raises SourceUnavailable."""
        launches = tuple(
            LaunchRow(process, file, kernel, self._rows[row].id, *counts)
            for process, (file, kernel, row), counts in self._maps["launches"].rows()
        )
        errors = tuple(
            ErrorRow(process, file, self._rows[row].id, code, *counts)
            for process, (file, row, code), counts in self._maps["errors"].rows()
        )
        collectives = tuple(
            CollectiveRow(process, file, communicator, self._rows[row].id, *counts)
            for process, (file, communicator, row), counts in self._maps["collectives"].rows()
        )
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
            0, 0, launches, calls, errors, tuple(self._read_copies()),
            collectives=collectives, hits=self._hits(grown),
        )  # fmt: skip

    def processes(self) -> set[tuple[int, int]]:
        """Give (tgid, start_ns) of every process that has a row."""
        return set(chain.from_iterable(bpf_map.processes() for bpf_map in self._maps.values()))

    def forget(self, processes: set[tuple[int, int]]) -> None:
        """Remove what ended processes left, and make room."""
        for bpf_map in self._maps.values():
            bpf_map.forget(processes)

    def _grown_calls(self, launches: tuple[LaunchRow, ...]) -> dict[_CallKey, dict[str, int]]:
        """Give the growth by process, file and row; launches are counted in rows of their own."""
        grown: dict[_CallKey, dict[str, int]] = {}
        for process, (file, row), counts in self._maps["calls"].rows():
            into = grown.setdefault((process, file, row), dict(_NOTHING))
            for column, count in zip(CALL_ROW, counts, strict=True):
                into[column] += count
        for launch in launches:
            key = (launch.process, launch.file, self._index[launch.call])
            grown.setdefault(key, dict(_NOTHING))["calls"] += launch.launches
        return grown

    def _hits(
        self, grown: Mapping[_CallKey, Mapping[str, int]]
    ) -> dict[tuple[FileGroup, ProcessKey], int]:
        hits: defaultdict[tuple[FileGroup, ProcessKey], int] = defaultdict(int)
        for (process, file, place), counts in grown.items():
            row = self._rows[place]
            entries = counts["calls"] + counts["nested"]
            ends = counts["returned"] + counts["hits"]
            hits[FileGroup(file, row.group), process] += entries
            if ends:
                hits[FileGroup(file, row.return_group), process] += ends
        return dict(hits)

    def _read_copies(self) -> Iterator[CopyRow]:
        gathered: defaultdict[tuple[ProcessKey, int, int], list[tuple[int, int, int]]]
        gathered = defaultdict(list)
        for process, (file, direction, size_bin), (copies, size) in self._maps["copies"].rows():
            gathered[process, file, direction].append((size_bin, copies, size))
        for (process, file, direction), bins in gathered.items():
            yield CopyRow(
                process,
                file,
                DIRECTIONS[direction],
                sum(copies for _, copies, _ in bins),
                sum(size for _, _, size in bins),
                tuple(sorted((size_bin, copies) for size_bin, copies, _ in bins)),
            )
