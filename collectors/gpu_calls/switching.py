"""Switches links at the edges of the governor's windows, so that what is wanted is attached.

Files are attached as they are found, groups as the governor switches them, from any thread.

The stall of a place is the time that its part of the attaching call took, by the number of probed
places: while it runs, a thread of the target that faults or maps memory waits for it. The grace
periods of detaching stop nobody and are left out (measured on a stub that only calls: attaching and
detaching together held it up for about as long as attaching took).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from collectors.boot_clock import boottime_ns
from collectors.port import SourceUnavailable
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from .found_files import FileFound
from .periods import PeriodKeeper
from .probe_plan import Attachment

_SMOOTHING: Final = 0.5

_SECOND: Final = 1_000_000_000
_LONGEST_WAIT_S: Final = 15.0


class Links(Protocol):
    """The part of `GpuPrograms` that attaches."""

    @property
    def attached(self) -> frozenset[FileGroup]: ...
    def attach(self, file: int, path: str, attachments: Sequence[Attachment], /) -> None: ...
    def detach_all(self, file_groups: Collection[FileGroup], /) -> None: ...


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    attachments: tuple[Attachment, ...]

    def groups(self) -> frozenset[ProbeGroup]:
        return frozenset(attachment.group for attachment in self.attachments)


class Switchboard:
    """Every probed file, and which groups are wanted on all of them."""

    def __init__(self, links: Links, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Begin without files, every group wanted."""
        self._links, self._clock = links, clock
        self._files: dict[int, _File] = {}
        self._wanted = frozenset(ProbeGroup)
        self._refused: set[FileGroup] = set()
        self._stalls: dict[FileGroup, int] = {}
        self._one_at_a_time = threading.Lock()
        self.failures: Counter[str] = Counter()
        """Attachings that the kernel refused, by the reason's first words."""

    def add(self, found: FileFound) -> None:
        """Take in a file and attach what is wanted now."""
        with self._one_at_a_time:
            self._files[found.file] = _File(found.open_path, found.plan.attachments)
            self._attach(found.file, self._wanted)

    def remove(self, file: int) -> None:
        """Detach from a file and forget it."""
        with self._one_at_a_time:
            self._files.pop(file, None)
            self._links.detach_all(
                [file_group for file_group in self._links.attached if file_group.file == file]
            )
            self._refused = {file_group for file_group in self._refused if file_group.file != file}
            self._stalls = {
                file_group: ns for file_group, ns in self._stalls.items() if file_group.file != file
            }

    def follow(self, wanted: frozenset[ProbeGroup]) -> None:
        """Attach and detach until exactly these groups are attached wherever they can be.

        A file that is found meanwhile waits for one system call, not for all.
        """
        with self._one_at_a_time:
            self._wanted = wanted
            surplus = [
                file_group
                for file_group in self._links.attached
                if file_group.file in self._files and file_group.group not in wanted
            ]
            if surplus:
                self._links.detach_all(surplus)
        for file in self.files:
            with self._one_at_a_time:
                if file in self._files:
                    self._attach(file, wanted)

    @property
    def files(self) -> tuple[int, ...]:
        """Indices of the files."""
        return tuple(self._files)

    def places(self) -> dict[FileGroup, int]:
        """Give each place that can be attached, with the stall of switching it once."""
        with self._one_at_a_time:
            return {
                FileGroup(file, group): self._stalls.get(FileGroup(file, group), 0)
                for file, known in self._files.items()
                for group in known.groups()
            }

    def _attach(self, file: int, wanted: frozenset[ProbeGroup]) -> None:
        """Attach the groups that are missing, together: a call's entry and return begin at once."""
        attached = self._links.attached
        missing = [
            attachment
            for attachment in self._files[file].attachments
            if attachment.group in wanted
            and FileGroup(file, attachment.group) not in attached
            and FileGroup(file, attachment.group) not in self._refused
        ]
        if not missing:
            return
        begun_ns = self._clock()
        try:
            self._links.attach(file, self._files[file].path, missing)
        except SourceUnavailable as error:
            self._refused |= {FileGroup(file, attachment.group) for attachment in missing}
            self.failures[str(error).rpartition(": ")[2]] += 1
            return
        self._note_stall(file, missing, self._clock() - begun_ns)

    def _note_stall(self, file: int, attached: Sequence[Attachment], took_ns: int) -> None:
        whole = sum(len(attachment.offsets) for attachment in attached)
        taken: Counter[FileGroup] = Counter()
        for attachment in attached:
            taken[FileGroup(file, attachment.group)] += took_ns * len(attachment.offsets) // whole
        for place, took in taken.items():
            before = self._stalls.get(place, took)
            self._stalls[place] = round(before + _SMOOTHING * (took - before))


class SwitchingThread:
    """Sleeps until the next edge; `wake` when the period changed elsewhere.

    calibrate  measures what a hit costs, in about a second: done once, when there is a probed
               file, on a thread of its own, so that a burst is cut off meanwhile
    """

    def __init__(
        self, keeper: PeriodKeeper, board: Switchboard, calibrate: Callable[[], None]
    ) -> None:
        self._keeper, self._board = keeper, board
        self._calibration = threading.Thread(
            target=calibrate, name="probe-calibration", daemon=True
        )
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="probe-switching", daemon=True)
        self.cpu_ns = 0

    def start(self) -> None:
        """Begin to switch."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether it runs; where it does not, nobody keeps the probes within their budget."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Look at the period again."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; a second call does nothing."""
        self._stopping = True
        self._wake.set()
        for thread in (self._thread, self._calibration):
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wanted, next_ns = self._keeper.wanted(boottime_ns())
            switching = self._keeper.switching(wanted, boottime_ns())
            self._board.follow(wanted)
            if switching:
                self._keeper.switched(wanted, boottime_ns())
            if not self._calibration.ident and self._board.files:
                self._calibration.start()
            self.cpu_ns = time.thread_time_ns()
            wait_s = min((next_ns - boottime_ns()) / _SECOND, _LONGEST_WAIT_S)
            if wait_s > 0.0 and not self._stopping:
                self._wake.wait(wait_s)
