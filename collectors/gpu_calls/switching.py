"""The thread that switches links at the edges of the governor's windows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from collectors.boot_clock import boottime_ns

from .periods import PeriodKeeper
from .switchboard import Switchboard

_SECOND: Final = 1_000_000_000
_LONGEST_WAIT_S: Final = 15.0


class SwitchingThread:
    """Sleeps until the next edge; `wake` when the period changed elsewhere.

    calibrate  measures what a hit costs, in about a second: done once, when there is a probed file
               and no window to be kept
    """

    def __init__(
        self, keeper: PeriodKeeper, board: Switchboard, calibrate: Callable[[], None]
    ) -> None:
        self._keeper, self._board, self._calibrate = keeper, board, calibrate
        self._calibrated = False
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
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wanted, next_ns = self._keeper.wanted(boottime_ns())
            self._board.follow(wanted)
            if not self._calibrated and self._board.files and not self._keeper.period.in_turns:
                self._calibrated = True
                self._calibrate()
                continue
            self.cpu_ns = time.thread_time_ns()
            wait_s = min((next_ns - boottime_ns()) / _SECOND, _LONGEST_WAIT_S)
            if wait_s > 0.0 and not self._stopping:
                self._wake.wait(wait_s)
