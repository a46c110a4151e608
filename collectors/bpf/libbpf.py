"""A thin binding of the system's libbpf (1.1 or later), and BCC's named events.

A kernel without the PMU `uprobe` (before Linux 4.17) knows a place by a line of `uprobe_events`,
which outlives the descriptor and the process that wrote it. Ours are told by their names.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Final

from collectors.interface import SourceUnavailable
from transport.process.foreign import Signatures, declare, libc
from transport.process.privileges import CAPABILITIES, process_status

from .bcc import tracing
from .system_calls import structure_fields

_LEAST_VERSION: Final = (1, 1)
TP_BTF: Final = 23
NEEDED: Final = ("CAP_BPF", "CAP_PERFMON")
_LOG_LINES: Final = 40
_LINE_BYTES: Final = 512
_VERIFIER_BYTES: Final = 1 << 24
"""How long a verifier's log libbpf asks for; pages that nothing is written to take no memory."""
_VERIFIER: Final = b"PROG LOAD LOG"
_ACCOUNT: Final = (
    "processed ", "verification time", "stack depth", "cur state:", "old state:", "libbpf: prog",
    "-- ",
)  # fmt: skip
_REFUSED: Final = re.compile(r"prog '([^']+)': BPF program load failed: (.+)")
Print = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
RingSample = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_HANDLE: Final = ctypes.c_void_p

SIGNATURES: Final[Signatures] = {
    "libbpf_major_version": (ctypes.c_uint32, ()),
    "libbpf_minor_version": (ctypes.c_uint32, ()),
    "libbpf_set_print": (ctypes.c_void_p, (Print,)),
    "libbpf_find_vmlinux_btf_id": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_int)),
    "bpf_object__open_mem": (_HANDLE, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)),
    "bpf_object__find_program_by_name": (_HANDLE, (_HANDLE, ctypes.c_char_p)),
    "bpf_object__find_map_by_name": (_HANDLE, (_HANDLE, ctypes.c_char_p)),
    "bpf_object__load": (ctypes.c_int, (_HANDLE,)),
    "bpf_object__close": (None, (_HANDLE,)),
    "bpf_program__set_autoload": (ctypes.c_int, (_HANDLE, ctypes.c_bool)),
    "bpf_program__set_expected_attach_type": (ctypes.c_int, (_HANDLE, ctypes.c_int)),
    "bpf_program__attach": (_HANDLE, (_HANDLE,)),
    "bpf_program__attach_perf_event": (_HANDLE, (_HANDLE, ctypes.c_int)),
    "bpf_program__fd": (ctypes.c_int, (_HANDLE,)),
    "bpf_link__destroy": (ctypes.c_int, (_HANDLE,)),
    "bpf_map__fd": (ctypes.c_int, (_HANDLE,)),
    "bpf_map__set_max_entries": (ctypes.c_int, (_HANDLE, ctypes.c_uint32)),
    "bpf_map__set_autocreate": (ctypes.c_int, (_HANDLE, ctypes.c_bool)),
    "bpf_map__initial_value": (ctypes.c_void_p, (_HANDLE, ctypes.POINTER(ctypes.c_size_t))),
    "ring_buffer__new": (_HANDLE, (ctypes.c_int, RingSample, ctypes.c_void_p, ctypes.c_void_p)),
    "ring_buffer__consume": (ctypes.c_int, (_HANDLE,)),
    "ring_buffer__free": (None, (_HANDLE,)),
    "bpf_prog_test_run_opts": (ctypes.c_int, (ctypes.c_int, ctypes.c_void_p)),
}


class RunOptions(ctypes.Structure):
    _fields_ = structure_fields(
        "sz data_in data_out data_size_in:32 data_size_out:32 ctx_in ctx_out ctx_size_in:32 "
        "ctx_size_out:32 retval:32 repeat:32 duration:32 flags:32 cpu:32 batch_size:32"
    )


class ProgramRefused(SourceUnavailable):
    """The verifier took all of an object's programs before this one."""

    def __init__(self, program: str, objection: str) -> None:
        super().__init__(f"Linux {platform.release()} refuses {program}: {objection}")
        self.program = program


class _Log:
    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)
        self.objection = ""
        self.callback = Print(self._say)

    def clear(self) -> None:
        self.lines.clear()
        self.objection = ""

    def _say(self, _level: int, template: bytes, arguments: int) -> int:
        if _VERIFIER in template:
            text = (ctypes.c_char * _VERIFIER_BYTES).from_buffer(mmap.mmap(-1, _VERIFIER_BYTES))
            libc().vsnprintf(text, len(text), template, arguments)
            self.objection = _objection(text.value.decode(errors="replace"))
            return 0
        line = ctypes.create_string_buffer(_LINE_BYTES)
        libc().vsnprintf(line, len(line), template, arguments)
        self.lines.append(line.value.decode(errors="replace").rstrip())
        return 0

    def refusal(self) -> ProgramRefused | None:
        found = next(filter(None, map(_REFUSED.search, self.lines)), None)
        return ProgramRefused(found[1], self.objection or found[2]) if found is not None else None

    def reason(self) -> str:
        telling = [line for line in self.lines if "fail" in line or "Error" in line]
        return (telling or list(self.lines) or ["libbpf gave no reason"])[0]


def _objection(log: str) -> str:
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(_ACCOUNT)), "")


def missing_rights() -> str:
    """Say what a refused bpf(2) would have taken."""
    effective = int(process_status()["CapEff"], 16)
    missing = [name for name in NEEDED if not effective >> CAPABILITIES[name] & 1]
    wanted = f"expected {' and '.join(NEEDED)}"
    if missing:
        return f"{wanted}; this process lacks {' and '.join(missing)}"
    return f"{wanted}; this process has both, but its container or a security module forbids it"


@cache
def _library() -> tuple[ctypes.CDLL, _Log]:
    name = find_library("bpf") or "libbpf.so.1"
    try:
        library = ctypes.CDLL(name, use_errno=True)
        declare(library, SIGNATURES)
    except (OSError, AttributeError) as error:
        raise SourceUnavailable(
            f"expected libbpf 1.1 or later (package libbpf1): {error}"
        ) from None
    version = (library.libbpf_major_version(), library.libbpf_minor_version())
    if version < _LEAST_VERSION:
        raise SourceUnavailable(f"expected libbpf 1.1 or later, found {version[0]}.{version[1]}")
    log = _Log()
    library.libbpf_set_print(log.callback)
    return library, log


def available() -> str | None:
    try:
        _library()
    except SourceUnavailable as error:
        return str(error)
    return None


def kernel_has_hook(tracepoint: str) -> bool:
    """Tell whether the running kernel's BTF knows a tracepoint (tp_btf)."""
    library, _ = _library()
    return bool(library.libbpf_find_vmlinux_btf_id(tracepoint.encode(), TP_BTF) > 0)


class BpfObject:
    """One BPF object: open on construction, then `keep_only`, `load`, `attach`, `close`."""

    def __init__(self, image: bytes) -> None:
        """Parse an object file. Raises SourceUnavailable."""
        self._library, self._log = _library()
        self._links: list[int] = []
        self._image = image  # libbpf refers to it until the object is loaded
        self._log.clear()
        self._library.libbpf_set_print(self._log.callback)  # BCC, in one process, takes it away
        self._object = self._library.bpf_object__open_mem(image, len(image), None)
        if not self._object:
            raise self._failure("open the BPF object")

    def disable(self, programs: Collection[str]) -> None:
        for name in programs:
            self._library.bpf_program__set_autoload(self._find("program", name), False)

    def set_max_entries(self, name: str, entries: int) -> None:
        if self._library.bpf_map__set_max_entries(self._find("map", name), entries):
            raise self._failure(f"resize the map {name}")

    def leave_out_map(self, name: str) -> None:
        """Do not make a map that only disabled programs use."""
        self._library.bpf_map__set_autocreate(self._find("map", name), False)

    def set_initial(self, name: str, content: bytes) -> None:
        """Write a read-only section before the load; its length must match."""
        size = ctypes.c_size_t()
        address = self._library.bpf_map__initial_value(self._find("map", name), ctypes.byref(size))
        if not address or size.value != len(content):
            raise ValueError(f"section {name}: expected {size.value} bytes, got {len(content)}")
        ctypes.memmove(address, content, len(content))

    def expect_attach_type(self, program: str, kind: int) -> None:
        """Say before the load how a program will be attached, where its section cannot."""
        if self._library.bpf_program__set_expected_attach_type(
            self._find("program", program), kind
        ):
            raise self._failure(f"choose how {program} is attached")

    def load(self) -> None:
        """Give maps and programs to the kernel. Raises ProgramRefused, SourceUnavailable."""
        if self._library.bpf_object__load(self._object):
            refusal = self._log.refusal()
            if refusal is not None and ctypes.get_errno() != errno.EPERM:
                raise refusal
            raise self._failure("load the BPF programs")

    def attach(self, program: str) -> None:
        link = self._library.bpf_program__attach(self._find("program", program))
        if not link:
            raise self._failure(f"attach {program}")
        self._links.append(link)

    def attach_events(self, program: str, descriptors: Sequence[int]) -> None:
        """Attach a loaded program to perf events; their descriptors are this object's from now."""
        waiting = list(descriptors)
        try:
            while waiting:
                handle = self._find("program", program)
                link = self._library.bpf_program__attach_perf_event(handle, waiting[0])
                if not link:
                    raise self._failure(f"attach {program}")
                self._links.append(link)
                waiting.pop(0)
        finally:
            for descriptor in waiting:
                os.close(descriptor)

    def run(self, program: str) -> None:
        """Run a `syscall` program once; it must return 0."""
        options = RunOptions()
        options.sz = ctypes.sizeof(options)
        fd = self._library.bpf_program__fd(self._find("program", program))
        failed = self._library.bpf_prog_test_run_opts(fd, ctypes.byref(options))
        if failed:
            raise self._failure(f"run {program}")
        returned = ctypes.c_int32(options.retval).value
        if returned:
            raise SourceUnavailable(f"{program}: expected 0, the kernel said {returned}")

    def map_fd(self, name: str) -> int:
        return int(self._library.bpf_map__fd(self._find("map", name)))

    def program_fd(self, name: str) -> int:
        return int(self._library.bpf_program__fd(self._find("program", name)))

    def close(self) -> None:
        while self._links:
            self._library.bpf_link__destroy(self._links.pop())
        if self._object:
            self._library.bpf_object__close(self._object)
            self._object = None

    def _find(self, kind: str, name: str) -> int:
        find = getattr(self._library, f"bpf_object__find_{kind}_by_name")
        handle: int | None = find(self._object, name.encode())
        if not handle:
            raise ValueError(f"the BPF object has no {name}")
        return handle

    def _failure(self, deed: str) -> SourceUnavailable:
        number = ctypes.get_errno()
        if number == errno.EPERM:
            return SourceUnavailable(f"cannot {deed}: {missing_rights()}")
        return SourceUnavailable(f"cannot {deed}: {os.strerror(number)}: {self._log.reason()}")


class Ring:
    def __init__(self, fd: int) -> None:
        """Map a ring by its descriptor. Raises SourceUnavailable."""
        self._library, _ = _library()
        self._records: list[bytes] = []
        self._callback = RingSample(self._take)
        self._ring = self._library.ring_buffer__new(fd, self._callback, None, None)
        if not self._ring:
            reason = os.strerror(ctypes.get_errno())
            raise SourceUnavailable(f"cannot map a ring buffer: {reason}")

    def read(self) -> list[bytes]:
        """Take every record that is there, in order."""
        self._library.ring_buffer__consume(self._ring)
        taken, self._records = self._records, []
        return taken

    def close(self) -> None:
        if self._ring:
            self._library.ring_buffer__free(self._ring)
            self._ring = None

    def _take(self, _context: int, record: int, size: int) -> int:
        self._records.append(ctypes.string_at(record, size))
        return 0


_FILE: Final = "uprobe_events"
_OURS: Final = re.compile(r"^[pr]:(uprobes/gpu_[pr]_\d+_[0-9a-f]+_(\d+)_bcc_\2) ", re.MULTILINE)
"""BCC adds `_bcc_` and the process id to a name."""


def event_name(file: int, offset: int, returns: bool) -> str:
    """Name a place for BCC; no other of this process has the name."""
    return f"gpu_{'r' if returns else 'p'}_{file}_{offset:x}_{os.getpid()}"


def remove(names: Collection[str], folder: Path | None = None) -> None:
    left = {f"uprobes/{name}_bcc_{os.getpid()}" for name in names}
    _remove([event for event, _ in listed(folder) if event in left], folder)


def remove_stale(folder: Path | None = None) -> None:
    """Remove what a loader left that was killed; what somebody uses the kernel keeps."""
    stale = [event for event, pid in listed(folder) if not Path(f"/proc/{pid}").exists()]
    _remove(stale, folder)


def listed(folder: Path | None = None) -> Iterator[tuple[str, int]]:
    """Give the events that are ours, each with the process that made it."""
    path = _path(folder)
    text = ""
    if path is not None:
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
    for found in _OURS.finditer(text):
        yield found[1], int(found[2])


def _remove(events: Collection[str], folder: Path | None) -> None:
    path = _path(folder)
    if path is None or not events:
        return
    with suppress(OSError):
        # Not open(..., "a"), which seeks to the end, where this file has none.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            for event in events:
                with suppress(OSError):  # one that is in use must not keep the others
                    os.write(fd, f"-:{event}\n".encode())
        finally:
            os.close(fd)


def _path(folder: Path | None) -> Path | None:
    folder = folder or tracing()
    return folder / _FILE if folder is not None else None
