"""Loads the GPU programs through libbpf, attaches them by file and drains what they counted.

Reads the programs' account of device memory: live and peak bytes, the oldest live allocation.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import bpf
from collectors.bpf.bpf_maps import PerCpuMap, possible_cpus, set_element
from collectors.bpf.libbpf import UPROBE_MULTI, BpfObject, Ring, available, expect_links
from collectors.bpf.system_calls import VMLINUX, kernel_version
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, MemoryState

from . import readout as layout
from .attached import Attached
from .counts import CallSample, MemoryRow, NameEvent, ProbeDrain
from .probe_plan import Attachment
from .probe_table import ProbeTable
from .readout import GROWING, ProbeLimits, Readout, other_keys

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
        """Give the state of every process that allocated. Raises SourceUnavailable.

        The table of live allocations is walked only when something was allocated or freed.
        """
        now = self._processes()
        if now != self._before:
            self._oldest = self._find_oldest()
        rows = []
        for (start_ns, tgid), counts in now.items():
            live, peak, allocations, frees, untracked, exec_id = counts
            before = self._before.get((start_ns, tgid), [0] * len(counts))
            oldest_ns = self._oldest.get((start_ns, tgid, exec_id), 0)
            process = layout.process_key(tgid, start_ns)
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
        start_ns, tgid, file, handle, host, row, is_module, length = fields
        text = record[head : head + length].decode("utf-8", errors="replace")
        yield NameEvent(
            layout.process_key(tgid, start_ns),
            file,
            table.rows[row].id,
            handle,
            "" if is_module else text,
            host,
            text if is_module else "",
        )


def call_samples(records: Iterable[bytes], table: ProbeTable) -> Iterator[CallSample]:
    for record in records:
        fields = np.frombuffer(record, layout.SAMPLE_EVENT, 1)[0].tolist()
        start_ns, tgid, file, kernel, stream, graph, event, correlation = fields[:8]
        size, boottime_ns, duration_ns, thread, row, stack_id = fields[8:]
        yield CallSample(
            layout.process_key(tgid, start_ns), thread, file, table.rows[row].id, kernel, stream,
            graph, event, correlation, size, stack_id, boottime_ns, duration_ns,
        )  # fmt: skip


_LEAST_KERNEL: Final = (6, 6)
_FILTERS_PROCESSES: Final = (6, 10)
_MACHINES: Final = ("x86_64", "aarch64")
_PROGRAMS: Final = ("gpu_launch", "gpu_entry", "gpu_count", "gpu_return")
_SIZED: Final = (
    "launches", "calls", "errors", "copies", "collectives", "memory", "allocations", "threads",
    "sampled", "stacks",
)  # fmt: skip
_STACK_DEPTH: Final = 127


ADVICE: Final = (
    "use Linux 6.6 or later with BTF; before that, "
    'loader = "bcc" counts calls as root, and costs more'
)
"""What to do where `unavailable` gives a reason."""


def unavailable(release: str | None = None) -> str | None:
    """Say in one line why these programs cannot serve here, or None.

    release     of the kernel, as uname gives it: the running one's
    """
    if platform.machine() not in _MACHINES:
        return f"expected x86_64 or aarch64, this is {platform.machine()}"
    if kernel_version(release) < _LEAST_KERNEL:
        return (
            f"expected Linux 6.6 or later (uprobe_multi), this is {release or platform.release()}"
        )
    if not VMLINUX.exists():
        return f"the kernel has no BTF: {VMLINUX} does not exist"
    return available()


class GpuPrograms:
    def __init__(self, table: ProbeTable, limits: ProbeLimits | None = None, only: int = 0) -> None:
        """Load. Raises SourceUnavailable.

        only    a process whose calls alone are of interest, 0: none. From Linux 6.10 others are
                not probed at all; before, the kernel's filter passes one thread and is not used
        """
        limits = limits or ProbeLimits()
        reason = unavailable()
        if reason:
            raise SourceUnavailable(reason)
        self._table = table
        self._cpus = possible_cpus()
        self._lost = np.zeros(len(layout.LOST), np.int64)
        self._sampled: set[int] = set()
        self._rings: list[Ring] = []
        self._object = _load(table, limits)
        pid = only if kernel_version() >= _FILTERS_PROCESSES else 0
        self._attached = Attached(self._object.program_fd, self._object.map_fd("returns"), pid)
        try:
            self._start(limits)
        except BaseException:
            self.close()
            raise

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        """Probe a file for every process, those that are yet to start included; from any thread.

        file            index under which its counts come: 1 or more
        attachments     of groups that are not attached to this file yet
        Raises          SourceUnavailable; then none of them is attached
        """
        self._attached.attach(file, path, attachments)

    def detach(self, file_group: FileGroup) -> None:
        self._attached.detach(file_group)

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        self._attached.detach_all(file_groups)

    @property
    def attached(self) -> frozenset[FileGroup]:
        return self._attached.groups()

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
        ended = {process for process in self._processes() if not _lives(*process)}
        counted = self._readout.read()
        memory = self._memory.read()
        names = tuple(name_events(self._rings[0].read(), self._table))
        samples = tuple(call_samples(self._rings[1].read(), self._table))
        begun_ns, span_ns, duty = self._attached.take_duty(now_ns)
        self._forget(ended)
        return replace(
            counted, begun_ns=begun_ns, span_ns=span_ns, memory=memory, names=names,
            samples=samples, duty=duty, lost=self._take_lost(),
        )  # fmt: skip

    def close(self) -> None:
        self._attached.close()
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

    def _processes(self) -> set[tuple[int, int]]:
        return self._readout.processes() | self._memory.processes()

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


def _load(table: ProbeTable, limits: ProbeLimits) -> BpfObject:
    image = files(bpf).joinpath(f"objects/gpu.{platform.machine()}.bpf.o").read_bytes()
    program = BpfObject(image)
    try:
        for name in _SIZED:
            others = len(other_keys(name, table)) if name in GROWING else 0
            program.set_max_entries(name, getattr(limits, name) + others)
        program.set_max_entries("names", limits.names_bytes)
        program.set_max_entries("samples", limits.samples_bytes)
        for name in _PROGRAMS:
            program.expect_attach_type(name, UPROBE_MULTI)
        program.load()
        expect_links(program.program_fd(_PROGRAMS[0]))
    except BaseException:
        program.close()
        raise
    return program


def _lives(tgid: int, start_ns: int) -> bool:
    """Tell whether the process is there, and no other under its number."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{tgid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(status.rpartition(")")[2].split()[19])
        return ticks == layout.start_ticks(start_ns)
    return False
