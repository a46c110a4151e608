"""Faults that no class names: the right answer is `unknown`.

Stops are held out altogether: no method is trained or tuned on them. A held interpreter is for
tuning the rejection.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from bench.diagnosis.faults.fault import Fault


class ProcessStops(Fault):
    """The job's process is stopped and continued by signals, as by a debugger."""

    cause = "unknown"
    injector = "process_stops"
    counter = "stops"
    least = 0.5
    stops: Final = ((15.0, 250.0), (30.0, 200.0), (80.0, 250.0))

    def meter(self) -> float:
        return self.work.knobs["stops"]

    def inject(self) -> None:
        stop_ms, every_ms = self.stops[self.intensity]
        pid, folder = self.work.main.pid, self.work.folder
        self.load("stops", folder, pid, stop_ms, every_ms, self.seed)

    def withdraw(self) -> None:
        # Its last stop may have been cut off before the process went on.
        os.kill(self.work.main.pid, signal.SIGCONT)


class HeldInterpreter(Fault):
    """A second thread of the job holds the interpreter's lock."""

    cause = "unknown"
    injector = "held_interpreter"
    counter = "held_s"
    least = 0.05
    holds_ms: Final = (4.0, 10.0, 30.0)

    def meter(self) -> float:
        return self.work.knobs["held_s"]

    def inject(self) -> None:
        self.work.knobs["hold_ms"] = self.holds_ms[self.intensity]

    def withdraw(self) -> None:
        self.work.knobs["hold_ms"] = 0
