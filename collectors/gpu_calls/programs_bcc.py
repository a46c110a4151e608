"""Counts GPU calls through BCC, as root: for kernels without BTF.

Its perf events hand no cookie to a program, so the finished code is loaded for each place with the
place's number in it. Detaching takes a tenth of a second: groups are never switched in turns.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Final, NamedTuple

import bpf
from collectors.binaries.proc_maps import process_key
from collectors.boot_clock import boottime_ns
from collectors.bpf import bcc, libbpf
from collectors.bpf.bpf_maps import PerCpuMap, possible_cpus, set_element
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup

from . import readout as layout
from .probe_plan import Attachment
from .probe_table import CallKind, ProbeTable
from .programs import AttachedGroups
from .readout import CallRow, ErrorRow, GrowingMap, LaunchRow, ProbeDrain, ProbeLimits, other_keys

SENTINEL: Final = 0x5EED_0BCC_9ACE_D00D
"""Stands in the compiled code where a place's number goes."""

_INSTRUCTION: Final = 8
_LOAD_64: Final = 0x18
"""ld_imm64: two instructions, each with half of the number in its last four bytes."""


def at_place(code: bytes, place: int) -> bytes:
    """Put a place's number for the sentinel. Raises ValueError unless that is there once."""
    low, high = SENTINEL & 0xFFFFFFFF, SENTINEL >> 32
    found = [
        at
        for at in range(0, len(code) - _INSTRUCTION, _INSTRUCTION)
        if code[at] == _LOAD_64
        and struct.unpack_from("<I", code, at + 4)[0] == low
        and struct.unpack_from("<I", code, at + 12)[0] == high
    ]
    if len(found) != 1:
        raise ValueError(f"expected one place in the BPF code, got {len(found)}")
    changed = bytearray(code)
    struct.pack_into("<I", changed, found[0] + 4, place & 0xFFFFFFFF)
    struct.pack_into("<I", changed, found[0] + 12, place >> 32)
    return bytes(changed)


_MACHINES: Final = {"x86_64": "ARGUMENTS_X86_64", "aarch64": "ARGUMENTS_ARM64"}
_COLUMNS: Final = ("calls", "nested", "returned", "failures", "bytes", "hits")
_LOST: Final = ("call_rows", "error_rows")
KPROBE: Final = 2
ENTRY, RETURN = 0, 1
_ANY_ATTACHMENT, _EVERY_PROCESS, _NO_COUNTER = -1, -1, 0
_LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})


def unavailable() -> str | None:
    if platform.machine() not in _MACHINES:
        return f"expected x86_64 or aarch64, this is {platform.machine()}"
    if os.geteuid():
        return "expected root: perf events on user space need CAP_SYS_ADMIN"
    return bcc.unavailable()


class _Place(NamedTuple):
    program_fd: int
    event_fd: int
    event: str


class GpuPrograms(AttachedGroups[_Place]):
    def __init__(self, table: ProbeTable, limits: ProbeLimits | None = None) -> None:
        """Compile, in about a second. Raises SourceUnavailable."""
        super().__init__()
        reason = unavailable()
        if reason:
            raise SourceUnavailable(reason)
        libbpf.remove_stale()
        limits = limits or ProbeLimits()
        self._table = table
        self._starts: dict[int, int] = {}
        self._lost = (0,) * len(_LOST)
        others = {name: other_keys(name, table) for name in ("launches", "calls", "errors")}
        others["calls"] = _widened(others["calls"])
        sizes = {
            "calls": limits.launches + limits.calls + len(others["calls"]),
            "errors": limits.errors + len(others["errors"]),
        }
        self._program = bcc.compile_program(source_text(), _flags(sizes, limits))
        try:
            self._start(sizes, others)
        except BaseException:
            self.close()
            raise

    def drain(self, now_ns: int) -> ProbeDrain:
        """Give everything since the last drain. Raises SourceUnavailable."""
        launches, calls, hits = self._read_calls()
        errors = tuple(self._read_errors())
        ended = {
            process
            for process in self._calls.processes()
            if process_key("/proc", process[0], ended=True) is None
        }
        for growing in (self._calls, self._errors):
            growing.forget(ended)
        for pid, _ in ended:
            self._starts.pop(pid, None)
        begun_ns, span_ns, duty = self._take_duty(now_ns)
        return ProbeDrain(
            begun_ns,
            span_ns,
            launches=launches,
            calls=calls,
            errors=errors,
            duty=duty,
            lost=self._take_lost(),
            hits=hits,
        )

    def close(self) -> None:
        self.detach_all(self.attached)
        program, self._program = self._program, None
        if program is not None:
            program.cleanup()

    def _start(self, sizes: dict[str, int], others: dict[str, list[bytes]]) -> None:
        program = self._program

        def fd(name: str) -> int:
            return int(program[name.encode()].map_fd)

        for index, row in enumerate(self._table.rows):
            set_element(fd("rows"), struct.pack("<I", index), layout.encode_row(row))
        cpus = possible_cpus()
        calls = PerCpuMap(
            fd("calls"), layout.LAUNCH_KEY.itemsize, len(_COLUMNS), cpus, sizes["calls"]
        )
        errors = PerCpuMap(fd("errors"), layout.ERROR_KEY.itemsize, 1, cpus, sizes["errors"])
        for source, keys in ((calls, others["calls"]), (errors, others["errors"])):
            for key in keys:
                source.set_zero(key)
        self._calls = GrowingMap(calls, layout.LAUNCH_KEY, _COLUMNS)
        self._errors = GrowingMap(errors, layout.ERROR_KEY, layout.ERROR_ROW)
        self._losses = PerCpuMap(fd("losses"), 4, 1, cpus)
        self._code = {
            ENTRY: program.dump_func(b"on_entry"),
            RETURN: program.dump_func(b"on_return"),
        }

    def _attach(self, file_group: FileGroup, path: str, attachment: Attachment) -> None:
        begun_ns = boottime_ns()
        for offset, row, semaphore in zip(
            attachment.offsets, attachment.rows, attachment.semaphores, strict=True
        ):
            if not semaphore:  # BCC counts up a semaphore in one process only
                place = self._attach_one(path, offset, file_group.file, row, attachment.returns)
                self._hold(file_group, place, begun_ns)

    def _detach(self, groups: Collection[FileGroup]) -> None:
        places = [place for file_group in groups for place in self._release(file_group)]
        if not places:
            return
        # Each waits for the kernel's grace periods: together they wait once.
        with ThreadPoolExecutor(min(len(places), 64)) as pool:
            list(pool.map(os.close, (place.event_fd for place in places)))
        for place in places:
            os.close(place.program_fd)
        libbpf.remove([place.event for place in places])

    def _attach_one(self, path: str, offset: int, file: int, row: int, returns: bool) -> _Place:
        kind = RETURN if returns else ENTRY
        code = at_place(self._code[kind], layout.cookie(file, 0, row))
        library, module = bcc.library(), self._program.module
        name = b"on_return" if returns else b"on_entry"
        program_fd = library.bcc_func_load(
            module, KPROBE, name, ctypes.create_string_buffer(code, len(code)), len(code),
            library.bpf_module_license(module), library.bpf_module_kern_version(module),
            0, None, 0, None, _ANY_ATTACHMENT,
        )  # fmt: skip
        if program_fd < 0:
            reason = os.strerror(ctypes.get_errno())
            raise SourceUnavailable(f"cannot load a BCC program: {reason}")
        event = libbpf.event_name(file, offset, returns)
        event_fd = library.bpf_attach_uprobe(
            program_fd, kind, event.encode(), os.fsencode(path), offset, _EVERY_PROCESS, _NO_COUNTER
        )
        if event_fd < 0:
            os.close(program_fd)
            libbpf.remove([event])
            raise SourceUnavailable(f"cannot attach to {path} through BCC: see the kernel's log")
        return _Place(program_fd, event_fd, event)

    def _read_calls(
        self,
    ) -> tuple[tuple[LaunchRow, ...], tuple[CallRow, ...], dict[tuple[FileGroup, ProcessKey], int]]:
        launches: list[LaunchRow] = []
        summed: defaultdict[tuple[ProcessKey, int, int], list[int]]
        summed = defaultdict(lambda: [0] * len(_COLUMNS))
        hits: defaultdict[tuple[FileGroup, ProcessKey], int] = defaultdict(int)
        for key, (file, kernel, index), counts in self._calls.rows():
            row, process = self._table.rows[index], self._process(key.pid)
            into = summed[process, file, index]
            into[:] = [a + b for a, b in zip(into, counts, strict=True)]
            if row.kind in _LAUNCHES and counts[0]:
                launches.append(LaunchRow(process, file, kernel, row.id, counts[0], 0, 0, 0))
        calls = []
        for (process, file, index), counts in summed.items():
            row, (n, nested, returned, failures, size, other) = self._table.rows[index], counts
            calls.append(CallRow(process, file, row.id, n, nested, returned, failures, 0, size))
            hits[FileGroup(file, row.group), process] += n + nested
            if returned + other:
                hits[FileGroup(file, row.return_group), process] += returned + other
        return tuple(launches), tuple(calls), dict(hits)

    def _read_errors(self) -> list[ErrorRow]:
        return [
            ErrorRow(self._process(key.pid), file, self._table.rows[index].id, code, *failures)
            for key, (file, index, code), failures in self._errors.rows()
        ]

    def _process(self, tgid: int) -> ProcessKey:
        if not tgid:
            return ProcessKey(0, 0)
        there = process_key("/proc", tgid, ended=True)
        if there is not None:
            self._starts[tgid] = there.start_ns
        return ProcessKey(tgid, self._starts.get(tgid, 0))

    def _take_lost(self) -> dict[str, int]:
        totals = tuple(
            int(self._losses.value(struct.pack("<I", place)).sum()) for place in range(len(_LOST))
        )
        grown = {
            name: new - old
            for name, new, old in zip(_LOST, totals, self._lost, strict=True)
            if new > old
        }
        self._lost = totals
        return grown


def source_text() -> str:
    folder = files(bpf)
    texts = [
        "#include <uapi/linux/ptrace.h>\n",
        folder.joinpath("include/gpu.h").read_text(encoding="utf-8"),
        "#define READ_USER(to, bytes, from) bpf_probe_read_user(to, bytes, (const void *)(from))\n",
        folder.joinpath("include/arguments.h").read_text(encoding="utf-8"),
        folder.joinpath("bcc/gpu.c").read_text(encoding="utf-8"),
    ]
    return "".join(texts)


def _flags(sizes: dict[str, int], limits: ProbeLimits) -> list[str]:
    return [
        f"-D{_MACHINES[platform.machine()]}",
        f'-DPROGRAM_PLACE="{SENTINEL:#x}"',
        f"-DCALL_ROWS={sizes['calls']}",
        f"-DERROR_ROWS={sizes['errors']}",
        f"-DTHREAD_ROWS={limits.threads}",
        "-w",
    ]


def _widened(keys: list[bytes]) -> list[bytes]:
    """Give keys of calls the kernel that launches have: none."""
    head = layout.PROCESS.itemsize
    return [key[:head] + bytes(8) + key[head:] for key in keys]
