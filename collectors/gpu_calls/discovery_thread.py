"""Discovery in a thread of its own: a file is found, and attached, within milliseconds."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from collectors.binaries.cpu_share import CpuShare
from collectors.boot_clock import boottime_ns
from collectors.port import SourceUnavailable

from .discovery import Discovery, Event
from .found_files import FileFound, FileGone

_GATHER_S: Final = 0.002
"""One program's start tells of itself in ten records within milliseconds: read together they cost
half as much (0.3 to 0.4 ms a start instead of 0.7), and the first is seen 2 ms later."""
_GATHER_FIRST_S: Final = 0.05
"""While nothing is probed: loading the programs for the first file takes longer still, and a host
where scripts start programs all the time pays for a few wake-ups a second instead of tens."""
_QUIET_S: Final = 0.005
_SWARM: Final = 50
_PER_S: Final = 100
"""Records come in swarms, and a wake-up costs 0.1 ms: fifty follow at once, so that one program's
start is seen as it happens; after that one in 5 ms, and a hundred a second are earned back."""
_LONGEST_WAIT_S: Final = 1.0
_LONGEST_REST_S: Final = 15.0
"""While no process is followed: what begins tells of itself, and nothing can end."""
MOST_EVENTS: Final = 65_536


class DiscoveryThread:
    """Polls when a record arrives, in the long run at most 200 times a second and a tenth of a CPU.

    on_file   called in the thread with each FileFound and FileGone as it happens: attaches and
              detaches. It must not raise.
    """

    def __init__(
        self, discovery: Discovery, on_file: Callable[[FileFound | FileGone], None]
    ) -> None:
        self.discovery = discovery
        self._on_file = on_file
        self._events: deque[Event] = deque()
        self._stopping = threading.Event()
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
        self.lock = threading.Lock()
        self._failure: str | None = None
        self.events_dropped = 0
        self.paused = 0
        """How often it stood still, because its share of the CPU was used up."""
        self.cpu_ns = 0

    def start(self) -> None:
        """Walk /proc here and now, then watch."""
        self._poll()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether it runs: where it does not, no file is found any more."""
        return self._thread.is_alive()

    def take(self) -> list[Event]:
        """Give the events since the last call, those of files too.

        Raises  SourceUnavailable once the thread has ended by itself: silence would be a zero
        """
        if self._failure is not None and not self._events:
            raise SourceUnavailable(f"discovery ended: {self._failure}")
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        """End the thread and close what it watches; a second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.eventfd_write(self._ending, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._ending)
        self.discovery.close()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 (told where the events are taken)
            self._failure = type(error).__name__  # its text may hold names of what runs here

    def _watch(self) -> None:
        waiting = select.poll()
        for fd in (self._ending, *self.discovery.fds):
            waiting.register(fd, select.POLLIN)
        credit, credited_s = float(_SWARM), time.monotonic()
        share = CpuShare(time.monotonic(), time.thread_time())
        while not self._stopping.is_set():
            wait_s = _LONGEST_WAIT_S if self.discovery.follows else _LONGEST_REST_S
            if waiting.poll(wait_s * 1000) and not self._stopping.is_set():
                time.sleep(_GATHER_S if self.discovery.found.holds else _GATHER_FIRST_S)
            self._poll()
            now_s = time.monotonic()
            credit = min(_SWARM, credit + (now_s - credited_s) * _PER_S) - 1
            credited_s = now_s
            if credit < 0:
                credit = 0.0
                time.sleep(_QUIET_S)
            self.cpu_ns = time.thread_time_ns()
            # Records that find no room meanwhile are counted, and a walk finds what they told.
            pause_s = share.pause_s(time.monotonic(), time.thread_time())
            if pause_s:
                self.paused += 1
                self._stopping.wait(pause_s)

    def _poll(self) -> None:
        with self.lock:
            events = self.discovery.poll(boottime_ns())
        for event in events:
            if isinstance(event, FileFound | FileGone):
                self._on_file(event)
            if len(self._events) < MOST_EVENTS:
                self._events.append(event)
            else:
                self.events_dropped += 1
