"""Discovery in a thread of its own: a file is found, and attached, within milliseconds."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from .discovery import Discovery, Event
from .found_files import FileFound, FileGone

_QUIET_S: Final = 0.005
"""Least time from one wake-up to the next: at 1,000 processes a second, 200 wake-ups."""
_LONGEST_WAIT_S: Final = 1.0
MOST_EVENTS: Final = 65_536


class DiscoveryThread:
    """Polls when a record arrives, at most 200 times a second, and at least once a second.

    on_file   called in the thread with each FileFound and FileGone as it happens: attaches and
              detaches. It must not raise.
    """

    def __init__(
        self, discovery: Discovery, on_file: Callable[[FileFound | FileGone], None]
    ) -> None:
        self._discovery = discovery
        self._on_file = on_file
        self._events: deque[Event] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
        self.lock = threading.Lock()
        self.events_dropped = 0
        self.cpu_ns = 0

    def start(self) -> None:
        """Walk /proc here and now, then watch."""
        self._poll()
        self._thread.start()

    def take(self) -> list[Event]:
        """Give the events since the last call, those of files too."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        """End the thread and close what it watches; a second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._discovery.close()

    def _run(self) -> None:
        waiting = select.poll()
        for fd in self._discovery.fds:
            waiting.register(fd, select.POLLIN)
        while not self._stopping.is_set():
            waiting.poll(_LONGEST_WAIT_S * 1000)
            self._poll()
            self._stopping.wait(_QUIET_S)
            self.cpu_ns = time.thread_time_ns()

    def _poll(self) -> None:
        with self.lock:
            events = self._discovery.poll(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        for event in events:
            if isinstance(event, FileFound | FileGone):
                self._on_file(event)
            if len(self._events) < MOST_EVENTS:
                self._events.append(event)
            else:
                self.events_dropped += 1
