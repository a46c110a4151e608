"""What the probes counted since the last drain: the rows that loaders yield and sources read.

Counts are of calls seen while probes were attached. Times: CLOCK_BOOTTIME in ns; sizes: bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Direction, FileGroup, MemoryState


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """Launches of one kernel by one process.

    kernel         the handle or address that the launch call was given; 0 is OTHER: no room
    call           id of the table's row, e.g. `cudart.launch`
    shared_bytes   largest dynamic shared memory, of the first launch on each CPU and of one in 64
    """

    process: ProcessKey
    file: int
    kernel: int
    call: str
    launches: int
    blocks: int
    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class CallRow:
    """Calls of one kind by one process.

    nested      entries inside a probed call of the same kind and thread: not in `calls`
    returned    calls whose return was seen; `wait_ns` is the sum over these
    """

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
    """Device memory of one process: a state, not a growth but for what was not tracked.

    oldest_ns     when the oldest allocation still live was made, 0: none; its age is not yet known
    """

    process: ProcessKey
    oldest_ns: int
    state: MemoryState


class CollectiveRow(NamedTuple):
    """Collectives of one kind by one process on one communicator.

    bytes         count of elements times the type's size, summed
    duration_ns   time inside the host's call, summed over calls whose return was seen
    """

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
    module          name or path of a loaded module or library, for such calls only
    """

    process: ProcessKey
    file: int
    call: str
    handle: int
    name: str
    host_function: int
    module: str


class CallSample(NamedTuple):
    """One call of a process whose sampling is switched on.

    correlation   counts calls of the process; `graph` and `event` are handles, 0: none
    stack_id      of the user stack, or -1
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
