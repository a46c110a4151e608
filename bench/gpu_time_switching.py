"""How fast the library begins and ends recording, for any reason, in a program that launches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.gpu_time.listener import Listener, Reporter
from collectors.gpu_time.segment import RecordingState, SegmentUnsettled
from scripts.gpu_time.listening import OFF, ON
from tests.gpu_time_kit import Program, program, until

SWITCHES: Final = 12
LEASE_MS: Final = 900
_LONG_MS: Final = 60_000


class Switched:
    """A launching program, and the agent that asks it; times by cause, in seconds."""

    def __init__(self, path: Path, one: Program) -> None:
        self._path, self._listener = path, Listener(path)
        one.tell(f"threaded varied {1 << 40} 1 1000 200")
        self._reporter = self._met()
        self.times: dict[str, list[float]] = {}

    def asked(self, begin: str, end: str) -> None:
        """Ask for recording and for its end."""
        self._timed(begin, RecordingState.ON, lambda: self._reporter.lease(ON, _LONG_MS))
        self._ended(end, lambda: self._reporter.lease(OFF, _LONG_MS))

    def lapsed(self, end: str) -> None:
        """Ask for recording, and no more: from the last word of an agent that hangs."""
        self._reporter.lease(ON, LEASE_MS)
        self._until(RecordingState.ON)
        self._ended(end, lambda: self._reporter.lease(ON, LEASE_MS))

    def gone(self, end: str, begin: str) -> None:
        """End the agent while it records, and start another."""
        self._reporter.lease(ON, _LONG_MS)
        self._until(RecordingState.ON)
        self._ended(end, self._leave)
        self._timed(begin, RecordingState.ON, self._return)

    def close(self) -> None:
        """Let the program go."""
        self._reporter.close()
        self._listener.close()

    def _leave(self) -> None:
        self._reporter.hang_up()
        self._listener.close()

    def _return(self) -> None:
        self._reporter.segment.close()
        self._listener = Listener(self._path)
        self._reporter = self._met()
        self._reporter.lease(ON, _LONG_MS)

    def _met(self) -> Reporter:
        found: list[Reporter] = []

        def meet() -> bool:
            found.extend(self._listener.accept())
            return bool(found)

        until(meet)
        return found[0]

    def _timed(self, cause: str, state: RecordingState, change: Callable[[], object]) -> None:
        begun_s = time.monotonic()
        change()
        self._until(state)
        self.times.setdefault(cause, []).append(time.monotonic() - begun_s)

    def _ended(self, cause: str, change: Callable[[], object]) -> None:
        """Time an end of recording, and from there until CUPTI has left."""
        detaches = self._header("detaches")
        self._timed(cause, RecordingState.OFF, change)
        left_s = until(lambda: self._header("detaches") > detaches)
        self.times.setdefault("left", []).append(left_s)

    def _until(self, state: RecordingState) -> None:
        until(lambda: self._header("state") == state)

    def _header(self, field: str) -> int:
        while True:
            with suppress(SegmentUnsettled):
                return self._reporter.segment.read().header[field]


def measure() -> dict[str, list[float]]:
    """Give seconds by cause: `on...` until it records, `off...` until it does not, `left` later."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpu-time.sock"
        with program(path) as one:
            switched = Switched(path, one)
            for _ in range(SWITCHES):
                switched.asked("on_asked", "off_asked")
                switched.lapsed("off_lapsed")
                switched.gone("off_agent_gone", "on_agent_back")
            switched.close()
    return switched.times
