"""Perf events, by a child that may open them where this process may not.

The kernel asks for CAP_SYS_ADMIN before an event on user space, and where
kernel.perf_event_paranoid is above 2 (Debian's, Ubuntu's) before any. The agent does not keep it. A
child that it begins while it is root keeps that and no other right, opens the kinds of events that
are listed here, on files that the agent has opened, and hands them over.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.interface import SourceUnavailable
from collectors.kernel_files import cpu_numbers
from transport.process.forked import die_with, keep_only
from transport.process.privileges import SYS_ADMIN, hold_only, process_status

from .system_calls import PerfEventAttributes, open_event

SOFTWARE: Final = 1
CPU_CLOCK, DUMMY = 0, 9
_ONLINE: Final = Path("/sys/devices/system/cpu/online")
_UPROBE: Final = Path("/sys/bus/event_source/devices/uprobe/type")
RETURN: Final = 1
_SEMAPHORE_SHIFT: Final = 32
"""In config of the PMU `uprobe`; RETURN is its lowest bit."""

_QUESTION: Final = struct.Struct("<iQ")
"""CPU and number: behind the attributes."""
_ANSWER: Final = struct.Struct("<QI")
_LONGEST_S: Final = 30.0
_MESSAGE: Final = ctypes.sizeof(PerfEventAttributes) + _QUESTION.size
_NO_SAMPLES: Final = (
    "read_format", "branch_sample_type", "sample_regs_user", "sample_stack_user", "bp_type"
)  # fmt: skip
_SAMPLE_TIME: Final = 1 << 2

_openers: Final[list[EventOpener]] = []
"""At most one; where there is none this process opens its events itself."""


def perf_event_open(attributes: PerfEventAttributes, cpu: int, file: int | None = None) -> int:
    """Open an event of every process on one CPU.

    file        what an event of the PMU `uprobe` is on
    Raises      SourceUnavailable, OSError
    """
    if _openers:
        return _openers[0].ask(attributes, cpu, file)
    return _open(attributes, cpu, file)


def open_uprobe(file: int, offset: int, semaphore: int, *, returns: bool) -> int:
    """Open the event of a place in a file. Raises SourceUnavailable, OSError."""
    config = semaphore << _SEMAPHORE_SHIFT | (RETURN if returns else 0)
    place = PerfEventAttributes(type=_uprobe_type(), config=config, config2=offset)
    return perf_event_open(place, min(os.sched_getaffinity(0)), file)


def open_cpu_clocks(period_ns: int) -> list[int]:
    """Open an event on every CPU that is on; the caller closes them. Raises SourceUnavailable."""
    opened: list[int] = []
    try:
        for cpu in cpu_numbers(_ONLINE.read_text(encoding="ascii")):
            clock = PerfEventAttributes(type=SOFTWARE, config=CPU_CLOCK, sample_period=period_ns)
            opened.append(perf_event_open(clock, cpu))
    except (OSError, SourceUnavailable) as error:
        for descriptor in opened:
            os.close(descriptor)
        if isinstance(error, SourceUnavailable):
            raise
        raise SourceUnavailable(f"cannot open a perf event: {why_refused(error)}") from None
    return opened


def why_refused(error: OSError) -> str:
    """Say what a refused event would have taken."""
    if error.errno not in {errno.EACCES, errno.EPERM}:
        return error.strerror or str(error)
    return "expected CAP_PERFMON, and CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2"


def _open(attributes: PerfEventAttributes, cpu: int, file: int | None) -> int:
    path = ctypes.create_string_buffer(f"/proc/self/fd/{file}".encode())
    if file is not None:
        attributes.config1 = ctypes.addressof(path)
    return open_event(attributes, cpu)


def _uprobe_type() -> int:
    return int(_UPROBE.read_text(encoding="ascii"))


class EventOpener:
    """A process that opens perf events for this one, and ends with its socket.

    No signal tells it that this process ended: the kernel sends none from a user to root.
    """

    def __init__(self) -> None:
        """Fork it, as root."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                hold_only(SYS_ADMIN)
                die_with(parent)
                keep_only(its.fileno())
                _serve(its)
            finally:
                os._exit(0)
        its.close()
        mine.settimeout(_LONGEST_S)
        self._socket, self._asking, self._asked = mine, threading.Lock(), 0

    def ask(self, attributes: PerfEventAttributes, cpu: int, file: int | None) -> int:
        """Give the event. Raises OSError as the kernel said, SourceUnavailable."""
        try:
            with self._asking:
                self._asked += 1
                message = bytes(attributes) + _QUESTION.pack(cpu, self._asked)
                socket.send_fds(self._socket, [message], [] if file is None else [file])
                failed, events = self._answer()
        except OSError as error:
            raise SourceUnavailable(f"the process that opens perf events: {error}") from None
        if failed or not events:
            raise OSError(failed, os.strerror(failed))
        return events[0]

    def _answer(self) -> tuple[int, list[int]]:
        """Give (errno, event) of the last question. Raises SourceUnavailable, OSError."""
        while True:
            flags = socket.MSG_CMSG_CLOEXEC
            answer, events, _, _ = socket.recv_fds(self._socket, _ANSWER.size, 1, flags)
            if len(answer) != _ANSWER.size:
                raise SourceUnavailable("the process that opens perf events has ended")
            number, failed = _ANSWER.unpack(answer)
            if number == self._asked:
                return failed, events
            for event in events:  # of a question that did not wait for it
                os.close(event)

    def close(self) -> None:
        """End it: it waits for nothing but this socket."""
        self._socket.close()
        with suppress(ChildProcessError):  # whoever began this process may ignore SIGCHLD
            os.waitpid(self.pid, 0)


def _serve(asked: socket.socket) -> None:
    while True:
        flags = socket.MSG_CMSG_CLOEXEC
        message, files, _, _ = socket.recv_fds(asked, _MESSAGE, 1, flags)
        if len(message) < _QUESTION.size:
            return
        opened: list[int] = []
        failed = 0
        try:
            opened.append(_event_of(message, files))
        except OSError as error:
            failed = error.errno or errno.EINVAL
        number = _QUESTION.unpack_from(message, len(message) - _QUESTION.size)[1]
        socket.send_fds(asked, [_ANSWER.pack(number, failed)], opened)
        for descriptor in (*files, *opened):
            os.close(descriptor)


def _event_of(message: bytes, files: list[int]) -> int:
    """Open what was asked for, of what this process is there for alone. Raises OSError."""
    if len(message) != _MESSAGE:
        raise OSError(errno.EINVAL, f"expected {_MESSAGE} bytes, got {len(message)}")
    attributes = PerfEventAttributes.from_buffer_copy(message)
    cpu, _ = _QUESTION.unpack_from(message, ctypes.sizeof(attributes))
    # Neither registers nor stacks of other users' processes.
    plain = attributes.sample_type in {0, _SAMPLE_TIME}
    plain = plain and not any(getattr(attributes, name) for name in _NO_SAMPLES)
    kind, config = attributes.type, attributes.config
    if plain and not files and kind == SOFTWARE and config in {CPU_CLOCK, DUMMY}:
        return _open(attributes, cpu, None)
    if files and kind == _uprobe_type() and stat.S_ISREG(os.fstat(files[0]).st_mode):
        place = PerfEventAttributes(type=kind, config=config, config2=attributes.config2)
        return _open(place, cpu, files[0])
    raise OSError(errno.EINVAL, "expected a clock, a dummy, or a place in a regular file")


def begin_opener() -> None:
    """Begin the child while this process is root; `perf_event_open` uses it from then on."""
    if not _openers and int(process_status()["CapPrm"], 16) >> SYS_ADMIN & 1:
        _openers.append(EventOpener())


def has_opener() -> bool:
    return bool(_openers)


def opener_is_needed() -> bool:
    """Tell whether the child opens what this process may not, by its own rights."""
    try:
        os.close(_open(PerfEventAttributes(type=SOFTWARE, config=DUMMY), 0, None))
    except OSError:
        return True
    except SourceUnavailable:
        return False  # a machine of which the system calls are not known
    return False


def end_opener() -> None:
    while _openers:
        _openers.pop().close()
