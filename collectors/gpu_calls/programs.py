"""Loads the GPU programs through libbpf, attaches them by file and drains what they counted."""

from __future__ import annotations

import platform
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

import bpf
from collectors.binaries.proc_maps import coarse, process_key
from collectors.boot_clock import boottime_ns
from collectors.bpf.bpf_maps import PerCpuMap, possible_cpus, set_element
from collectors.bpf.libbpf import BpfObject, Ring, available
from collectors.bpf.system_calls import VMLINUX
from collectors.bpf.uprobes import (
    LINKS,
    Linked,
    UprobeWay,
    expect_way,
    filters_processes,
    uprobe_way,
)
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, MemoryState, ProbeGroup

from . import readout as layout
from .probe_plan import Attachment
from .probe_table import ProbeTable
from .readout import (
    GROWING,
    CallSample,
    MemoryRow,
    NameEvent,
    ProbeDrain,
    ProbeLimits,
    Readout,
    other_keys,
)

_Process = tuple[int, int]


class DeviceMemory:
    def __init__(self, fd: Callable[[str], int], limits: ProbeLimits) -> None:
        width = layout.PROCESS.itemsize
        self._memory = PerCpuMap(fd("memory"), width, len(layout.MEMORY_ROW), 1, limits.memory)
        self._allocations = PerCpuMap(
            fd("allocations"),
            layout.ALLOCATION_KEY.itemsize,
            len(layout.ALLOCATION_ROW),
            1,
            limits.allocations,
        )
        self._before: dict[_Process, list[int]] = {}
        self._oldest: dict[tuple[int, int, int], int] = {}

    def read(self) -> tuple[MemoryRow, ...]:
        """Give the state of every process that allocated. Raises SourceUnavailable."""
        now = self._processes()
        if now != self._before:
            self._oldest = self._find_oldest()
        rows = []
        for (start_ns, tgid), counts in now.items():
            live, peak, allocations, frees, untracked, exec_id = counts
            before = self._before.get((start_ns, tgid), [0] * len(counts))
            oldest_ns = self._oldest.get((start_ns, tgid, exec_id), 0)
            process = coarse(ProcessKey(tgid, start_ns))
            state = MemoryState(live, peak, allocations, frees, 0, untracked - before[4])
            rows.append(MemoryRow(process, oldest_ns, state))
        self._before = now
        return tuple(rows)

    def processes(self) -> set[_Process]:
        """Give (tgid, start_ns) of every process that allocated."""
        return {(tgid, start_ns) for start_ns, tgid in self._before}

    def forget(self, processes: set[_Process]) -> None:
        """Remove processes that have ended, and what they had not freed."""
        ended = {(start_ns, tgid) for tgid, start_ns in processes} & self._before.keys()
        if not ended:
            return
        for start_ns, tgid in ended:
            key = np.array([(start_ns, tgid, 0)], layout.PROCESS)
            self._memory.delete(key.tobytes())
            del self._before[start_ns, tgid]
        for keys, _ in self._live():
            of_ended = [(k["start_ns"], k["tgid"]) in ended for k in keys]
            for key in keys[np.array(of_ended, bool)]:
                self._allocations.delete(key.tobytes())

    def _processes(self) -> dict[_Process, list[int]]:
        found: dict[_Process, list[int]] = {}
        for keys, values in self._memory.batches():
            named = keys.copy().view(layout.PROCESS).ravel()
            for (start_ns, tgid, _), row in zip(
                named.tolist(), values[:, 0].astype(np.int64).tolist(), strict=True
            ):
                found[start_ns, tgid] = row
        return found

    def _live(self) -> list[tuple[NDArray[np.void], NDArray[np.int64]]]:
        return [
            (
                keys.copy().view(layout.ALLOCATION_KEY).ravel(),
                values[:, 0].astype(np.int64),
            )
            for keys, values in self._allocations.batches()
        ]

    def _find_oldest(self) -> dict[tuple[int, int, int], int]:
        oldest: dict[tuple[int, int, int], int] = {}
        for keys, values in self._live():
            for (start_ns, tgid, _, _), (_, made_ns, exec_id) in zip(
                keys.tolist(), values.tolist(), strict=True
            ):
                key = (start_ns, tgid, exec_id)
                oldest[key] = min(made_ns, oldest.get(key, made_ns))
        return oldest


def name_events(records: Iterable[bytes], table: ProbeTable) -> Iterator[NameEvent]:
    head = layout.NAME_EVENT.itemsize
    for record in records:
        fields = np.frombuffer(record, layout.NAME_EVENT, 1)[0].tolist()
        start_ns, tgid, file, handle, host, row, length = fields
        text = record[head : head + length].decode("utf-8", errors="replace")
        yield NameEvent(
            coarse(ProcessKey(tgid, start_ns)),
            file,
            table.rows[row].id,
            handle,
            text,
            host,
        )


def call_samples(records: Iterable[bytes], table: ProbeTable) -> Iterator[CallSample]:
    for record in records:
        fields = np.frombuffer(record, layout.SAMPLE_EVENT, 1)[0].tolist()
        start_ns, tgid, file, kernel, stream, graph, event, correlation = fields[:8]
        size, boottime_ns, duration_ns, thread, row, stack_id = fields[8:]
        yield CallSample(
            coarse(ProcessKey(tgid, start_ns)), thread, file, table.rows[row].id, kernel, stream,
            graph, event, correlation, size, stack_id, boottime_ns, duration_ns,
        )  # fmt: skip


_MOST_FILES_EVER: Final = 1 << 31
_NEVER_NS: Final = 1 << 62


_Link = TypeVar("_Link")


class AttachedGroups(ABC, Generic[_Link]):
    """The half of loaded programs that attaches; a loader says how one attachment is linked."""

    def __init__(self) -> None:
        self._links: dict[FileGroup, list[_Link]] = {}
        self._begun_ns = boottime_ns()
        self._since: dict[FileGroup, int] = {}
        self._spent_ns: dict[FileGroup, int] = {}
        self._changing = threading.Lock()
        self._telling = threading.Lock()

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        """Probe a file for every process, those that are yet to start included; from any thread.

        Raises          SourceUnavailable; then none of them is attached
        """
        if not 1 <= file < _MOST_FILES_EVER:
            raise ValueError(f"expected a file of 1 or more, got {file}")
        groups = {FileGroup(file, attachment.group) for attachment in attachments}
        with self._changing:
            taken = groups & self._links.keys()
            if taken:
                raise ValueError(f"expected groups that are not attached yet, got {sorted(taken)}")
            try:
                # Returns first: a call that is entered then is sure to be seen returning.
                for one in sorted(attachments, key=lambda attachment: not attachment.returns):
                    self._attach(FileGroup(file, one.group), path, one)
            except BaseException:
                self._detach(groups & self._links.keys())
                raise

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        """Stop probing groups, all at once; one that is not attached is no error."""
        with self._changing:
            self._detach(self._links.keys() & set(file_groups))

    @property
    def attached(self) -> frozenset[FileGroup]:
        return frozenset(list(self._links))

    def _hold(self, file_group: FileGroup, link: _Link, begun_ns: int) -> None:
        # Its places begin to count one after the other: on average in the middle.
        with self._telling:
            self._since[file_group] = (begun_ns + boottime_ns()) // 2
        self._links.setdefault(file_group, []).append(link)

    def _release(self, file_group: FileGroup) -> list[_Link]:
        links = self._links.pop(file_group)
        with self._telling:
            self._spend(file_group, self._since.pop(file_group), boottime_ns())
        return links

    def _stop_counting(self, file_group: FileGroup) -> None:
        """End a group's duty before its links are let go."""
        now_ns = boottime_ns()
        with self._telling:
            self._spend(file_group, self._since[file_group], now_ns)
            self._since[file_group] = _NEVER_NS

    def _take_duty(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        """End the span: (begun_ns, span_ns, share of it by group); the next begins."""
        with self._telling:
            begun_ns, span_ns = self._begun_ns, max(1, now_ns - self._begun_ns)
            for file_group, since in self._since.items():
                self._spend(file_group, since, now_ns)
            spent_ns, self._spent_ns, self._begun_ns = self._spent_ns, {}, now_ns
        return begun_ns, span_ns, {g: min(1.0, ns / span_ns) for g, ns in spent_ns.items()}

    def _spend(self, file_group: FileGroup, since_ns: int, now_ns: int) -> None:
        spent_ns = max(0, now_ns - max(since_ns, self._begun_ns))
        self._spent_ns[file_group] = self._spent_ns.get(file_group, 0) + spent_ns

    @abstractmethod
    def _attach(self, file_group: FileGroup, path: str, attachment: Attachment) -> None:
        """Link, and `_hold` each link as soon as it is there."""

    @abstractmethod
    def _detach(self, groups: Collection[FileGroup]) -> None:
        """`_release` groups and end their links."""


_MACHINES: Final = ("x86_64", "aarch64")
_PROGRAMS: Final = ("gpu_launch", "gpu_entry", "gpu_count", "gpu_return")
_SIZED: Final = (
    "launches", "calls", "errors", "copies", "collectives", "memory", "allocations", "threads",
    "sampled", "stacks",
)  # fmt: skip
_STACK_DEPTH: Final = 127
_ENTRIES: Final = {ProbeGroup.LAUNCH: "gpu_launch", ProbeGroup.OTHER: "gpu_count"}
_MOST_CLOSING: Final = 32
_GATED: Final = ProbeGroup.LAUNCH
"""In turns by perf events, too: counting ends at once, and its places are let go after it."""

ADVICE: Final = (
    "use a kernel with BTF (CONFIG_DEBUG_INFO_BTF), Linux 5.15 or later; without it "
    'loader = "bcc" counts calls as root, and costs more'
)


def unavailable() -> str | None:
    """Say in one line why these programs cannot serve here, or None."""
    if platform.machine() not in _MACHINES:
        return f"expected x86_64 or aarch64, this is {platform.machine()}"
    if not VMLINUX.exists():
        return f"the kernel has no BTF: {VMLINUX} does not exist"
    reason = available()
    if reason is None:
        try:
            uprobe_way()
        except SourceUnavailable as error:
            return str(error)
    return reason


class GpuPrograms(AttachedGroups[Linked]):
    def __init__(
        self,
        table: ProbeTable,
        limits: ProbeLimits | None = None,
        only: int = 0,
        way: UprobeWay | None = None,
    ) -> None:
        """Load. Raises SourceUnavailable.

        only    a process whose calls alone are of interest, 0: none. Others are not probed at all
                where the kernel's links tell processes apart
        way     None: the kernel's own
        """
        super().__init__()
        limits = limits or ProbeLimits()
        reason = unavailable()
        if reason:
            raise SourceUnavailable(reason)
        self._table = table
        self._cpus = possible_cpus()
        self._lost = np.zeros(len(layout.LOST), np.int64)
        self._sampled: set[int] = set()
        self._rings: list[Ring] = []
        self._way = way or uprobe_way()
        self._object = _load(table, limits, self._way)
        self._pid = only if only and filters_processes() else 0
        self._places: dict[int, int] = {}
        self._heat: dict[int, int] = {}
        self._mark = 0
        try:
            self._start(limits)
        except BaseException:
            self.close()
            raise

    @property
    def few_places(self) -> bool:
        """Tell whether each place takes long to let go."""
        return self._way is UprobeWay.EVENTS

    def sample(self, process: ProcessKey, on: bool, stacks: bool = False) -> None:
        """Switch the single calls of a process on or off, with the user's stacks or without."""
        key = struct.pack("<I", process.pid)
        if on:
            set_element(self._object.map_fd("sampled"), key, struct.pack("<QQ", 0, stacks))
            self._sampled.add(process.pid)
        else:
            PerCpuMap(self._object.map_fd("sampled"), 4, 2, 1).delete(key)
            self._sampled.discard(process.pid)
        count = struct.pack("<Q", len(self._sampled))
        set_element(self._object.map_fd("controls"), bytes(4), count)

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """Give the addresses of a sampled stack, the innermost first; empty where it is gone."""
        stacks = PerCpuMap(self._object.map_fd("stacks"), 4, _STACK_DEPTH, 1)
        try:
            addresses = stacks.value(struct.pack("<i", stack_id))[0].tolist()
        except FileNotFoundError:
            return ()
        return tuple(address for address in addresses if address)

    def drain(self, now_ns: int) -> ProbeDrain:
        """Give everything since the last drain. Raises SourceUnavailable."""
        processes = self._readout.processes() | self._memory.processes()
        ended = {process for process in processes if not _lives(*process)}
        counted = self._readout.read()
        if self.few_places:
            self._heat = dict(self._hits_of(counted))
        memory = self._memory.read()
        names = tuple(name_events(self._rings[0].read(), self._table))
        samples = tuple(call_samples(self._rings[1].read(), self._table))
        begun_ns, span_ns, duty = self._take_duty(now_ns)
        self._forget(ended)
        return replace(
            counted, begun_ns=begun_ns, span_ns=span_ns, memory=memory, names=names,
            samples=samples, duty=duty, lost=self._take_lost(),
        )  # fmt: skip

    def close(self) -> None:
        self.detach_all(self.attached)
        while self._rings:
            self._rings.pop().close()
        self._object.close()

    def _start(self, limits: ProbeLimits) -> None:
        fd = self._object.map_fd
        for place, row in enumerate(self._table.rows):
            set_element(fd("rows"), struct.pack("<I", place), layout.encode_row(row))
        self._readout = Readout(self._table, fd, self._cpus, limits)
        self._memory = DeviceMemory(fd, limits)
        self._threads = PerCpuMap(fd("threads"), 4, layout.THREAD_FIELDS, 1)
        self._losses = PerCpuMap(fd("losses"), 4, len(layout.LOST), self._cpus)
        self._rings = [Ring(fd("names")), Ring(fd("samples"))]

    def _attach(self, file_group: FileGroup, path: str, attachment: Attachment) -> None:
        name = "gpu_return" if attachment.returns else _ENTRIES.get(attachment.group, "gpu_entry")
        place, begun_ns = self._place(file_group.file), boottime_ns()
        link = LINKS[self._way](
            self._object.program_fd(name),
            path,
            attachment.offsets,
            [layout.cookie(file_group.file, place, row) for row in attachment.rows],
            semaphores=attachment.semaphores,
            returns=attachment.returns,
            pid=self._pid,
        )
        gated = self.few_places and attachment.group is _GATED
        self._hold(file_group, link, boottime_ns() if gated else begun_ns)
        if attachment.returns or gated:
            self._mark = self._mark % 0xFFFFFFFF + 1
            self._set_mark(file_group, self._mark)

    def _detach(self, groups: Collection[FileGroup]) -> None:
        for file_group in groups:
            self._set_mark(file_group, 0)
            if self.few_places and file_group.group is _GATED:
                self._stop_counting(file_group)
        if groups:  # each waits for the kernel's grace periods: together they wait once
            with ThreadPoolExecutor(min(len(groups), _MOST_CLOSING)) as pool:
                list(pool.map(self._unlink, groups))
        attached = {file_group.file for file_group in self._links}
        self._places = {file: p for file, p in self._places.items() if file in attached}

    def _unlink(self, file_group: FileGroup) -> None:
        for link in reversed(self._release(file_group)):
            link.close(self._heat)

    def _hits_of(self, drain: ProbeDrain) -> Iterator[tuple[int, int]]:
        """Yield cookies of places, each with how often it was hit."""
        index = {row.id: number for number, row in enumerate(self._table.rows)}
        for call in drain.calls:
            place = self._places.get(call.file)
            if place is not None and call.call in index:
                yield layout.cookie(call.file, place, index[call.call]), call.calls + call.nested

    def _set_mark(self, file_group: FileGroup, mark: int) -> None:
        """Tell programs which attaching of return probes is in force, 0: none."""
        group = layout.GROUPS.index(file_group.group)
        index = self._places[file_group.file] * len(layout.GROUPS) + group
        key, value = struct.pack("<I", index), struct.pack("<I", mark)
        set_element(self._object.map_fd("returns"), key, value)

    def _place(self, file: int) -> int:
        """Give a file a place among those attached. Raises SourceUnavailable."""
        if file not in self._places:
            free = set(range(layout.MAX_FILES)) - set(self._places.values())
            if not free:
                raise SourceUnavailable(f"expected at most {layout.MAX_FILES} files, got one more")
            self._places[file] = min(free)
        return self._places[file]

    def _forget(self, ended: set[tuple[int, int]]) -> None:
        self._readout.forget(ended)
        if not ended:
            return
        self._memory.forget(ended)
        tgids = {tgid for tgid, _ in ended}
        for keys, values in self._threads.batches():
            of = (values[:, 0, 1] & np.uint64(0xFFFFFFFF)).tolist()
            for key, tgid in zip(keys, of, strict=True):
                if tgid in tgids:
                    self._threads.delete(key.tobytes())
        for tgid in tgids & self._sampled:
            self.sample(ProcessKey(tgid, 0), False)

    def _take_lost(self) -> dict[str, int]:
        totals = self._losses.value(bytes(4)).sum(axis=0).astype(np.int64)
        grown, self._lost = totals - self._lost, totals
        return {name: n for name, n in zip(layout.LOST, grown.tolist(), strict=True) if n}


def _load(table: ProbeTable, limits: ProbeLimits, way: UprobeWay) -> BpfObject:
    image = files(bpf).joinpath(f"objects/gpu.{platform.machine()}.bpf.o").read_bytes()
    program = BpfObject(image)
    try:
        for name in _SIZED:
            others = len(other_keys(name, table)) if name in GROWING else 0
            program.set_max_entries(name, getattr(limits, name) + others)
        program.set_max_entries("names", limits.names_bytes)
        program.set_max_entries("samples", limits.samples_bytes)
        expect_way(program, _PROGRAMS, way)
        if way is UprobeWay.EVENTS:
            program.set_initial(".rodata.gate", struct.pack("=I", layout.GROUPS.index(_GATED)))
        program.load()
    except BaseException:
        program.close()
        raise
    return program


def _lives(tgid: int, start_ns: int) -> bool:
    there = process_key("/proc", tgid, ended=True)
    return there == coarse(ProcessKey(tgid, start_ns))
