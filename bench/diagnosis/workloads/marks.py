"""Calls into the shared object whose functions carry the probes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from bench.diagnosis.shared import StepLog
from collectors.boot_clock import boottime_ns


class StepMarks:
    """Marks the ends of steps of a loop, and logs their times.

    As with the probe, a step is the time between two marks.
    """

    def __init__(self, library: Path, log: StepLog) -> None:
        self._step = ctypes.CDLL(str(library)).pointillist_step
        self._log, self._last_ns = log, 0

    def step(self) -> None:
        """Say that a step has ended."""
        now = boottime_ns()
        self._step()
        if self._last_ns:
            self._log.add(now, now - self._last_ns)
        self._last_ns = now


class RequestMarks:
    """Runs requests inside the probed function, and logs their times."""

    def __init__(self, library: Path, log: StepLog) -> None:
        self._request = ctypes.CDLL(str(library)).pointillist_request
        self._kind = ctypes.CFUNCTYPE(ctypes.c_int)
        self._log = log

    def serve(self, request: Callable[[], int]) -> int:
        """Run one request; its answer is handed on."""
        started = boottime_ns()
        answer = int(self._request(self._kind(request)))
        ended = boottime_ns()
        self._log.add(ended, ended - started)
        return answer
