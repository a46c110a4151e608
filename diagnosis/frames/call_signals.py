"""Signals from the calls of GPU libraries, by process; and who else is on a subject's GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from collectors.devices.device_port import ProcessUse
from collectors.records.gpu_calls import Direction, GpuCalls, ProbeGroup, ProcessCalls

from .gpu_signals import share

_COPIES: Final = {
    Direction.HOST_TO_DEVICE: "copy_to_device_bytes_per_s",
    Direction.DEVICE_TO_HOST: "copy_to_host_bytes_per_s",
}
_SHORTEST_FRESH_NS: Final = 2_500_000_000
LAUNCHES: Final = "gpu_launches_per_s"


@dataclass(frozen=True, slots=True)
class Caller:
    """A process that called a GPU library, and its signals."""

    pid: int
    start_ns: int
    name: str
    signals: Mapping[str, float]


class CallSignals:
    """Keeps the last record: it stands until the next one, and not for long after."""

    def __init__(self) -> None:
        self._callers: dict[int, Caller] = {}
        self._ends_ns = self._fresh_ns = 0

    def take(self, calls: GpuCalls) -> None:
        """Take one record. It covers one drain, or a governor's period of some seconds."""
        if calls.span_ns <= 0:
            return
        self._callers = {
            process.process.pid: Caller(
                process.process.pid,
                process.process.start_ns,
                process.identity.name,
                _signals(process, calls),
            )
            for process in calls.processes
        }
        self._ends_ns = calls.boottime_ns + calls.span_ns
        self._fresh_ns = max(_SHORTEST_FRESH_NS, 2 * calls.span_ns)

    def callers(self, now_ns: int) -> Mapping[int, Caller]:
        """Give the processes that called lately, by pid."""
        return self._callers if now_ns - self._ends_ns <= self._fresh_ns else {}


def summed(callers: Iterable[Caller]) -> dict[str, float]:
    """Add the signals of several processes up."""
    found: dict[str, float] = {}
    for caller in callers:
        for name, value in caller.signals.items():
            found[name] = found.get(name, 0.0) + value
    return found


def on_gpus(
    callers: Mapping[int, Caller], users: Mapping[int, Mapping[int, ProcessUse]]
) -> dict[int, dict[str, float]]:
    """Give what was copied to and from each GPU; a process on several shares alike."""
    places: dict[int, list[int]] = {}
    for gpu, pids in users.items():
        for pid in pids:
            places.setdefault(pid, []).append(gpu)
    found: dict[int, dict[str, float]] = {
        gpu: dict.fromkeys(_COPIES.values(), 0.0) for gpu in users if callers
    }
    for pid, gpus in places.items():
        signals = callers[pid].signals if pid in callers else {}
        for gpu in gpus if signals else ():
            for name in _COPIES.values():
                found[gpu][name] += signals.get(name, 0.0) / len(gpus)
    return found


def sharing(
    own: Collection[int],
    gpus: Iterable[int],
    users: Mapping[int, Mapping[int, ProcessUse]],
    callers: Mapping[int, Caller],
) -> dict[str, float]:
    """Tell a subject's processes from the others on its GPUs; the GPU with most of each counts."""
    found: dict[str, float] = {}
    for gpu in gpus:
        here = users.get(gpu, {})
        for name, mine in (("gpu_own_percent", True), ("gpu_others_percent", False)):
            shares = [share(use) for pid, use in here.items() if (pid in own) is mine]
            told = [known for known in shares if known is not None]
            if len(told) == len(shares) and (here or mine):
                found[name] = max(found.get(name, 0.0), sum(told))
        if callers:
            others = sum(
                callers[pid].signals[LAUNCHES] for pid in here if pid in callers and pid not in own
            )
            before = found.get("gpu_others_launches_per_s", 0.0)
            found["gpu_others_launches_per_s"] = max(before, others)
    return found


def _signals(process: ProcessCalls, calls: GpuCalls) -> dict[str, float]:
    """Give one process's rates: what was seen over the share that was seen."""
    per_s = 1e9 / calls.span_ns
    found = {LAUNCHES: process.launches.value * per_s}
    if calls.share(ProbeGroup.SYNCHRONISE) > 0:
        found["gpu_wait_ms_per_s"] = 1e3 * process.wait_share(calls.span_ns)
    copied = calls.share(ProbeGroup.COPY)
    if copied > 0:
        found |= dict.fromkeys(_COPIES.values(), 0.0)
        for copy in process.copies:
            if copy.direction in _COPIES:
                found[_COPIES[copy.direction]] += copy.bytes / copied * per_s
    seen = calls.share(ProbeGroup.COLLECTIVE)
    if seen > 0:
        found["collectives_per_s"] = sum(c.calls.value for c in process.collectives) * per_s
        found["collective_bytes_per_s"] = sum(c.bytes for c in process.collectives) / seen * per_s
        found["collective_ms_per_s"] = (
            sum(c.duration_ns for c in process.collectives) / seen * per_s / 1e6
        )
    found["gpu_failed_calls_per_s"] = sum(error.failures for error in process.errors) * per_s
    if process.memory is not None:
        found["gpu_memory_live_bytes"] = float(process.memory.live_bytes)
    return found
