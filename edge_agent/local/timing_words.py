"""Whether kernels of a process are timed, in words, and what to do where they are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from collectors.records.basics import ProcessKey
from collectors.records.gpu_time import GpuTimes, TimingState

SAID: Final[Mapping[TimingState, str]] = {
    TimingState.MEASURED: "measured",
    TimingState.STARTING: "no window yet",
    TimingState.OCCUPIED: "another profiler has CUPTI",
    TimingState.REFUSED: "CUPTI refused",
    TimingState.NO_LIBRARY: "the library is not loaded",
    TimingState.SILENT: "the library is loaded and does not reach this agent",
    TimingState.UNKNOWN: "does not report",
}
TIMING_ADVICE: Final[Mapping[TimingState, str]] = {
    TimingState.OCCUPIED: "nothing: it is timed again once the other profiler has left",
    TimingState.REFUSED: "look the code up in CUPTI's results; another CUPTI may do "
    "(POINTILLIST_CUPTI)",
    TimingState.NO_LIBRARY: "start it with what `pointillist agent attach` prints",
    TimingState.SILENT: "check that it may reach the agent's socket, and POINTILLIST_AGENT_UID",
    TimingState.UNKNOWN: "start it with what `pointillist agent attach` prints",
}
_TOOLKITS: Final = {
    18: "11.8", 19: "12.0", 20: "12.2", 21: "12.3", 22: "12.4", 23: "12.5", 24: "12.6",
    26: "12.8", 27: "12.9", 28: "12.9",
}  # fmt: skip
"""Of a CUPTI that numbers its versions from 1; from CUDA 13.0 the number says it."""
_NUMBERED_BY_TOOLKIT: Final = 130_000


def timing_said(state: TimingState, error: int = 0) -> str:
    """Say why a process is not measured, with CUPTI's code where it refused."""
    refused = state is TimingState.REFUSED and error
    return f"{SAID[state]}, code {error}" if refused else SAID[state]


def cupti_name(version: int) -> str:
    """Name a CUPTI by the CUDA toolkit it comes with; "" for none."""
    if version >= _NUMBERED_BY_TOOLKIT:
        return f"{version // 10_000}.{version // 100 % 100}"
    return _TOOLKITS.get(version, f"API {version}" if version else "")


class TimingChange(NamedTuple):
    """A process that can no longer be timed, or is again (`timed`)."""

    timed: bool
    process: str
    said: str


_QUIET: Final = frozenset({TimingState.MEASURED, TimingState.STARTING})


class TimingChanges:
    """Says once when a process cannot be timed and why, and when it is again."""

    def __init__(self) -> None:
        self._before: dict[ProcessKey, TimingState] = {}

    def of(self, times: GpuTimes) -> Iterator[TimingChange]:
        """Yield what changed since the last record."""
        before, self._before = self._before, {p.process: p.state for p in times.processes}
        for process in times.processes:
            was = before.get(process.process, TimingState.STARTING)
            if process.state is not was and not {process.state, was} <= _QUIET:
                name = f"{process.name}[{process.process.pid}]"
                timed = process.state in _QUIET
                yield TimingChange(timed, name, timing_said(process.state, process.error))
