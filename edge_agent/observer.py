"""The port through which a running agent shows itself on its own host; nothing flows back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from collectors.rounds import Drained

from .host_diagnosis import Diagnosed
from .sending.effects import AgentTally
from .windows.window_accumulator import ClosedWindow


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What an agent counts; names and numbers, nothing measured.

    tally          as it stood
    next_send_ms   when the next record leaves, milliseconds since 1970
    """

    sources: tuple[str, ...]
    tally: AgentTally
    spool_records: int
    spool_bytes: int
    queued: int
    next_send_ms: int | None
    transport_up: bool


class Observer(Protocol):
    """Called by the loop; no method blocks for long, and none raises."""

    def started(self) -> None:
        """The loop begins."""
        ...

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        """A source handed out records."""
        ...

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:
        """Diagnosis looked at all that was drained."""
        ...

    def closed(self, window: ClosedWindow, now_boottime_ns: int) -> None:
        """A window has ended: what was measured in it, whether it was reported or not."""
        ...

    def stepped(self, now_ms: int) -> None:
        """The loop went round once; about once a second."""
        ...

    def stopping(self) -> None:
        """The loop has ended; what is open is still there."""
        ...


class NullObserver:
    """Nobody looks."""

    def started(self) -> None:
        return

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:  # noqa: ARG002
        return

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:  # noqa: ARG002
        return

    def closed(self, window: ClosedWindow, now_boottime_ns: int) -> None:  # noqa: ARG002
        return

    def stepped(self, now_ms: int) -> None:  # noqa: ARG002
        return

    def stopping(self) -> None:
        return


class Observers:
    """Several, each told everything in this order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def started(self) -> None:
        for observer in self._observers:
            observer.started()

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        for observer in self._observers:
            observer.drained(drained, now_boottime_ns)

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:
        for observer in self._observers:
            observer.diagnosed(found, now_boottime_ns)

    def closed(self, window: ClosedWindow, now_boottime_ns: int) -> None:
        for observer in self._observers:
            observer.closed(window, now_boottime_ns)

    def stepped(self, now_ms: int) -> None:
        for observer in self._observers:
            observer.stepped(now_ms)

    def stopping(self) -> None:
        for observer in self._observers:
            observer.stopping()
