"""Uprobes of many places: one uprobe_multi link where the kernel makes such, else an event each.

Which it is a kernel says when it is asked; nothing stays attached.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Final

from collectors.interface import SourceUnavailable

from .bpf_maps import LINK_CREATE, bpf_descriptor
from .libbpf import BpfObject, missing_rights
from .perf_events import end_opener, open_uprobe, opener_is_needed
from .system_calls import structure_fields

UPROBE_MULTI: Final = 48
"""BPF_TRACE_UPROBE_MULTI: attach type of the programs and of their links."""
PERF_EVENT: Final = 41
"""BPF_PERF_EVENT."""
RETURN: Final = 1
_MAX_PLACES: Final = 4096
_EVERY_PROCESS, _NOBODY = 0, -1

PROG_LOAD: Final = 5
KPROBE: Final = 2
_LICENSE: Final = b"GPL\0"
_NOTHING: Final = bytes.fromhex("b700000000000000 9500000000000000")
"""return 0;"""
_ASKS_FOR_COOKIE: Final = bytes.fromhex("85000000ae000000 9500000000000000")
"""return bpf_get_attach_cookie(context);"""


class UprobeWay(StrEnum):
    """How the programs are attached."""

    MULTI = "uprobe_multi"
    EVENTS = "perf events"


class ProgramLoad(ctypes.Structure):
    _fields_ = structure_fields(
        "prog_type:32 insn_cnt:32 insns license log_level:32 log_size:32 log_buf kern_version:32 "
        "prog_flags:32 prog_name prog_name_rest prog_ifindex:32 expected_attach_type:32"
    )


class LinkCreate(ctypes.Structure):
    _fields_ = structure_fields(
        "prog_fd:32 target_fd:32 attach_type:32 flags:32 path offsets ref_ctr_offsets cookies "
        "count:32 multi_flags:32 pid:32 unused:32"
    )


class EventLinkCreate(ctypes.Structure):
    _fields_ = structure_fields("prog_fd:32 target_fd:32 attach_type:32 flags:32 cookie")


def _load(code: bytes, attach_type: int = 0) -> int:
    """Load a few instructions as a program of uprobes. Raises OSError."""
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(_LICENSE)
    attributes = ProgramLoad(
        prog_type=KPROBE,
        insn_cnt=len(code) // 8,
        insns=ctypes.addressof(instructions),
        license=ctypes.addressof(license_text),
        expected_attach_type=attach_type,
    )
    return bpf_descriptor(PROG_LOAD, attributes)


def _answer(pid: int) -> int:
    """Give the errno of an uprobe_multi link to a folder, which no kernel makes. Raises OSError."""
    path, number = ctypes.create_string_buffer(b"/"), ctypes.c_uint64(0)
    program = _load(_NOTHING, UPROBE_MULTI)
    attributes = LinkCreate(
        prog_fd=program,
        attach_type=UPROBE_MULTI,
        path=ctypes.addressof(path),
        offsets=ctypes.addressof(number),
        count=1,
        pid=pid & 0xFFFFFFFF,
    )
    try:
        os.close(bpf_descriptor(LINK_CREATE, attributes))
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(program)
    return 0


@cache
def uprobe_way() -> UprobeWay:
    """Find out how this kernel attaches. Raises SourceUnavailable."""
    try:
        # A kernel that makes such links looks at the path, and refuses a folder as no file.
        if _answer(_EVERY_PROCESS) == errno.EBADF:
            return UprobeWay.MULTI
        os.close(_load(_ASKS_FOR_COOKIE))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise SourceUnavailable(f"cannot load a BPF program: {missing_rights()}") from None
        line = "expected uprobe_multi links (Linux 6.6), or attach cookies of perf events (5.15)"
        raise SourceUnavailable(f"{line}: {platform.release()} has neither") from None
    return UprobeWay.EVENTS


@cache
def filters_processes() -> bool:
    """Tell whether a link's filter passes a process; older kernels passed one thread of it alone.

    Those that were mended refuse a pid that nobody can have before they look at the path.
    """
    return uprobe_way() is UprobeWay.MULTI and _answer(_NOBODY) == errno.EINVAL


class UprobeLink:
    """Places of one file, all attached and all let go by one system call."""

    def __init__(
        self,
        program_fd: int,
        path: str,
        offsets: Sequence[int],
        cookies: Sequence[int],
        *,
        semaphores: Sequence[int] = (),
        returns: bool = False,
        pid: int = 0,
    ) -> None:
        """Attach to offsets of a file, each with its cookie. Raises SourceUnavailable."""
        count = len(offsets)
        if not 1 <= count <= _MAX_PLACES or len(cookies) != count:
            raise ValueError(f"expected 1 to {_MAX_PLACES} offsets, each with a cookie")
        numbers = ctypes.c_uint64 * count
        name = ctypes.create_string_buffer(os.fsencode(path))
        places, given = numbers(*offsets), numbers(*cookies)
        counters = numbers(*semaphores) if any(semaphores) else None
        attributes = LinkCreate(
            prog_fd=program_fd,
            attach_type=UPROBE_MULTI,
            path=ctypes.addressof(name),
            offsets=ctypes.addressof(places),
            ref_ctr_offsets=ctypes.addressof(counters) if counters else 0,
            cookies=ctypes.addressof(given),
            count=count,
            multi_flags=RETURN if returns else 0,
            pid=pid,
        )
        try:
            self._fd = bpf_descriptor(LINK_CREATE, attributes)
        except OSError as error:
            raise SourceUnavailable(_reason(path, error)) from None

    def close(self, _heat: Mapping[int, int] | None = None) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _reason(path: str, error: OSError) -> str:
    if error.errno in {errno.EPERM, errno.EACCES}:
        return f"cannot attach to {path}: expected CAP_BPF, CAP_PERFMON and a file we may look up"
    return f"cannot attach to {path}: {error.strerror}"


class EventLinks:
    """The same places, each by a perf event: attached in a millisecond, let go in a hundred."""

    def __init__(
        self,
        program_fd: int,
        path: str,
        offsets: Sequence[int],
        cookies: Sequence[int],
        *,
        semaphores: Sequence[int] = (),
        returns: bool = False,
        pid: int = 0,
    ) -> None:
        """Attach to offsets of a file in every process, each with its cookie.

        Raises      SourceUnavailable; ValueError for one process alone
        """
        if pid:
            raise ValueError(f"expected every process, got {pid}")
        self._links: list[tuple[int, int]] = []
        counters = semaphores or (0,) * len(offsets)
        try:
            # Not one that waits for a writer; the kernel takes regular files alone.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                for offset, counter, given in zip(offsets, counters, cookies, strict=True):
                    event = open_uprobe(file, offset, counter, returns=returns)
                    made = EventLinkCreate(program_fd, event, PERF_EVENT, 0, given)
                    try:
                        self._links.append((given, bpf_descriptor(LINK_CREATE, made)))
                    finally:
                        os.close(event)  # the link holds it
            finally:
                os.close(file)
        except OSError as error:
            self.close()
            forbidden = error.errno in {errno.EPERM, errno.EACCES}
            why = "this kernel asks for CAP_SYS_ADMIN" if forbidden else error.strerror
            raise SourceUnavailable(f"cannot attach to {path}: {why}") from None
        except BaseException:
            self.close()
            raise

    def close(self, heat: Mapping[int, int] | None = None) -> None:
        """Let go, one after the other: the places of the most hits, by cookie, first."""
        hits = heat or {}
        self._links.sort(key=lambda link: hits.get(link[0], 0))
        while self._links:
            os.close(self._links.pop()[1])


Linked = UprobeLink | EventLinks
LINKS: Final[Mapping[UprobeWay, type[UprobeLink] | type[EventLinks]]] = {
    UprobeWay.MULTI: UprobeLink,
    UprobeWay.EVENTS: EventLinks,
}


def expect_way(program: BpfObject, names: Sequence[str], way: UprobeWay) -> None:
    """Say before the load how the programs will be attached."""
    if way is UprobeWay.MULTI:
        for name in names:
            program.expect_attach_type(name, UPROBE_MULTI)


def end_needless_opener() -> str:
    """End the child that opens perf events where this process needs none; else say what for."""
    try:
        if uprobe_way() is UprobeWay.EVENTS:
            return "this kernel attaches by perf events"
    except SourceUnavailable:
        pass  # the source says it
    if opener_is_needed():
        return "kernel.perf_event_paranoid is above 2"
    end_opener()
    return ""
