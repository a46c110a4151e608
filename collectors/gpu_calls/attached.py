"""What is attached where, and for which share of the time: links by file and group, any thread."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from collectors.boot_clock import boottime_ns
from collectors.bpf.bpf_maps import set_element
from collectors.bpf.libbpf import UprobeLink
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from . import readout as layout
from .probe_plan import Attachment

_ENTRIES: Final = {ProbeGroup.LAUNCH: "gpu_launch", ProbeGroup.OTHER: "gpu_count"}
_MOST_FILES_EVER: Final = 1 << 31
_MOST_CLOSING: Final = 32


class DutyClock:
    """Adds up the time for which each group was attached.

    A group counts from the middle of its entries' attaching to the beginning of their detaching.
    """

    def __init__(self, now_ns: int) -> None:
        """Begin the first span."""
        self._begun_ns = now_ns
        self._since: dict[FileGroup, int] = {}
        self._spent_ns: dict[FileGroup, int] = {}

    def attached(self, file_group: FileGroup, now_ns: int) -> None:
        self._since[file_group] = now_ns

    def detached(self, file_group: FileGroup, now_ns: int) -> None:
        self._spend(file_group, self._since.pop(file_group), now_ns)

    def take(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        """End the span: (begun_ns, span_ns, share of it by group); the next begins."""
        begun_ns, span_ns = self._begun_ns, max(1, now_ns - self._begun_ns)
        for file_group, since in self._since.items():
            self._spend(file_group, since, now_ns)
        spent_ns, self._spent_ns, self._begun_ns = self._spent_ns, {}, now_ns
        return begun_ns, span_ns, {g: min(1.0, ns / span_ns) for g, ns in spent_ns.items()}

    def _spend(self, file_group: FileGroup, since_ns: int, now_ns: int) -> None:
        spent_ns = max(0, now_ns - max(since_ns, self._begun_ns))
        self._spent_ns[file_group] = self._spent_ns.get(file_group, 0) + spent_ns


class Attached:
    """Links of loaded programs.

    program_fd  gives a program's descriptor by its name
    returns_fd  the map that tells programs which attaching of return probes is in force
    pid         the process for which alone files are probed, 0: all
    """

    def __init__(self, program_fd: Callable[[str], int], returns_fd: int, pid: int = 0) -> None:
        self._program_fd, self._returns_fd, self._pid = program_fd, returns_fd, pid
        self._links: dict[FileGroup, list[UprobeLink]] = {}
        self._places: dict[int, int] = {}
        self._mark = 0
        self._duty = DutyClock(boottime_ns())
        self._changing = threading.Lock()
        self._telling = threading.Lock()

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        """Probe a file for every process. Raises SourceUnavailable; then nothing was attached."""
        if not 1 <= file < _MOST_FILES_EVER:
            raise ValueError(f"expected a file of 1 or more, got {file}")
        groups = {FileGroup(file, attachment.group) for attachment in attachments}
        with self._changing:
            taken = groups & self._links.keys()
            if taken:
                raise ValueError(f"expected groups that are not attached yet, got {sorted(taken)}")
            place = self._place(file)
            try:
                # Returns first: a call that is entered then is sure to be seen returning.
                for attachment in sorted(
                    attachments, key=lambda attachment: not attachment.returns
                ):
                    self._link(FileGroup(file, attachment.group), place, path, attachment)
            except BaseException:
                for file_group in groups & self._links.keys():
                    self._unlink(file_group)
                raise
            finally:
                self._leave_place(file)

    def detach(self, file_group: FileGroup) -> None:
        with self._changing:
            if file_group in self._links:
                self._unlink(file_group)
                self._leave_place(file_group.file)

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        """Stop probing several groups: they wait for the kernel's grace periods together."""
        with self._changing:
            wanted = sorted(self._links.keys() & set(file_groups))
            if not wanted:
                return
            with ThreadPoolExecutor(min(len(wanted), _MOST_CLOSING)) as pool:
                list(pool.map(self._unlink, wanted))
            for file_group in wanted:
                self._leave_place(file_group.file)

    def groups(self) -> frozenset[FileGroup]:
        return frozenset(list(self._links))

    def take_duty(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        """Give (begun_ns, span_ns, share of the span by group) since the last call."""
        with self._telling:
            return self._duty.take(now_ns)

    def close(self) -> None:
        with self._changing:
            links = [link for of_group in self._links.values() for link in of_group]
            self._links.clear()
            if links:
                # Each waits for the kernel's grace periods: together they wait once.
                with ThreadPoolExecutor(min(len(links), _MOST_CLOSING)) as pool:
                    list(pool.map(UprobeLink.close, links))

    def _link(self, file_group: FileGroup, place: int, path: str, attachment: Attachment) -> None:
        name = "gpu_return" if attachment.returns else _ENTRIES.get(attachment.group, "gpu_entry")
        begun_ns = boottime_ns()
        link = UprobeLink(
            self._program_fd(name),
            path,
            attachment.offsets,
            [layout.cookie(file_group.file, place, row) for row in attachment.rows],
            semaphores=attachment.semaphores,
            returns=attachment.returns,
            pid=self._pid,
        )
        # Its places begin to count one after the other: on average in the middle.
        with self._telling:
            self._duty.attached(file_group, (begun_ns + boottime_ns()) // 2)
        self._links.setdefault(file_group, []).append(link)
        if attachment.returns:
            self._mark = self._mark % 0xFFFFFFFF + 1
            self._set_mark(file_group, self._mark)

    def _unlink(self, file_group: FileGroup) -> None:
        """End the links of a group, its entries first; from several threads at once."""
        self._set_mark(file_group, 0)
        links = self._links.pop(file_group)
        with self._telling:
            self._duty.detached(file_group, boottime_ns())
        for link in reversed(links):
            link.close()

    def _set_mark(self, file_group: FileGroup, mark: int) -> None:
        group = layout.GROUPS.index(file_group.group)
        index = self._places[file_group.file] * len(layout.GROUPS) + group
        set_element(self._returns_fd, struct.pack("<I", index), struct.pack("<I", mark))

    def _place(self, file: int) -> int:
        """Give a file a place among those attached. Raises SourceUnavailable."""
        if file not in self._places:
            free = set(range(layout.MAX_FILES)) - set(self._places.values())
            if not free:
                raise SourceUnavailable(f"expected at most {layout.MAX_FILES} files, got one more")
            self._places[file] = min(free)
        return self._places[file]

    def _leave_place(self, file: int) -> None:
        if not any(link.file == file for link in self._links):
            self._places.pop(file, None)
