"""Looks beside the agent's loop: a sensor behind a slow bus, or a drive that hangs, holds a thread.

A look that does not end is not waited for: nothing new is begun, and it is counted as late.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from .port import Finding

LATE_NS: Final = 30_000_000_000

Look = Callable[[], Sequence[Finding]]
Starter = Callable[[Callable[[], None]], None]


def in_a_thread(work: Callable[[], None]) -> None:
    """Run work beside; a daemon, as a thread that hangs in the kernel must not hold the exit."""
    threading.Thread(target=work, name="faults", daemon=True).start()


class Sweeper:
    """One look at a time."""

    def __init__(self, look: Look, start: Starter = in_a_thread) -> None:
        self._look = look
        self._start = start
        self._lock = threading.Lock()
        self._found: Sequence[Finding] | None = None
        self._failure: Exception | None = None
        self._begun_ns: int | None = None
        self.late = 0
        """Looks that did not end in time."""

    def begin(self, now_ns: int) -> None:
        """Begin a look, unless one still runs."""
        if self._begun_ns is not None:
            self.late += now_ns - self._begun_ns > LATE_NS
            return
        self._begun_ns = now_ns
        self._start(self._work)

    def take(self) -> Sequence[Finding] | None:
        """Give a look that has ended, once; None while there is none. Raises what the look did."""
        with self._lock:
            found, self._found = self._found, None
            failure, self._failure = self._failure, None
            if found is not None or failure is not None:
                self._begun_ns = None
        if failure is not None:
            raise failure
        return found

    def _work(self) -> None:
        found: Sequence[Finding] | None = None
        failure: Exception | None = None
        try:
            found = self._look()
        except Exception as error:  # noqa: BLE001 (handed over, and raised where it is taken)
            failure = error
        with self._lock:
            self._found, self._failure = found, failure
