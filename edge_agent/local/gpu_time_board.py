"""GPU time of the last seconds, for `agent top`: in memory, bounded, never on disk.

A process's numbers come from window to window, and each stands for the time since the one before.
So rates are sums over the time that they stand for, each process over its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

import numpy as np

from collectors.records.estimated_time import EstimatedTime, summed
from collectors.records.gpu_time import GpuTimes, TimedKernel, TimedProcess, TimingState
from collectors.records.process import ProcessKey

from .local_rows import clean_name
from .timing_words import cupti_name, said

SHOWN_KERNELS: Final = 40
SHOWN_PROCESSES: Final = 64
_SPAN_NS: Final = 10_000_000_000
_MOST_RECORDS: Final = 64
"""Of one process: ten seconds of one that is recorded all the time have eight to ten."""
_PARTS: Final = (
    "busy", "compute", "copy", "collective", "copy_beside", "collective_beside", "kernels_beside",
)  # fmt: skip
"""What is told of a GPU, as shares of the time."""


class _Process:
    """The last records of one process in which a window ended."""

    def __init__(self) -> None:
        self.records: deque[TimedProcess] = deque(maxlen=_MOST_RECORDS)

    def add(self, process: TimedProcess) -> None:
        self.records.append(process)
        span_ns = sum(record.span_ns for record in self.records)
        while span_ns - self.records[0].span_ns >= _SPAN_NS:
            span_ns -= self.records.popleft().span_ns

    @property
    def span_s(self) -> float:
        return sum(record.span_ns for record in self.records) / 1e9

    @property
    def recorded_share(self) -> float:
        """How much of the time was recorded."""
        spans = sum(record.span_ns for record in self.records)
        return sum(record.recorded_ns for record in self.records) / max(spans, 1)

    @property
    def time(self) -> EstimatedTime:
        """Give the time of all of its work."""
        return summed(record.time for record in self.records)

    def families(self) -> Mapping[str, EstimatedTime]:
        """Give it by family."""
        found: dict[str, list[EstimatedTime]] = defaultdict(list)
        for family in chain.from_iterable(record.families for record in self.records):
            found[family.family].append(family.time)
        return {name: summed(times) for name, times in found.items()}

    def kernels(self) -> Iterable[TimedKernel]:
        """Give each kernel of each GPU once, added up."""
        found: dict[tuple[int, str, str], list[TimedKernel]] = defaultdict(list)
        for kernel in chain.from_iterable(record.kernels for record in self.records):
            found[kernel.gpu, kernel.kernel, kernel.family].append(kernel)
        return [added(kernels) for kernels in found.values()]

    def shares(self) -> Mapping[int, np.ndarray[Any, np.dtype[np.float64]]]:
        """Give what its work covered of each GPU, as shares of the time."""
        found: dict[int, Any] = {}
        for device in chain.from_iterable(record.devices for record in self.records):
            grown = np.array(device[1:]) / (self.span_s * 1e9)
            found[device.gpu] = found.get(device.gpu, 0.0) + grown
        return found


def added(kernels: list[TimedKernel]) -> TimedKernel:
    """Add up one kernel's estimates from different windows."""
    delays = [kernel for kernel in kernels if kernel.delay_ns is not None]
    launches = sum(kernel.launches for kernel in delays)
    delay_ns = sum((kernel.delay_ns or 0.0) * kernel.launches for kernel in delays)
    return kernels[0]._replace(
        launches=sum(kernel.launches for kernel in kernels),
        time=summed(kernel.time for kernel in kernels),
        bytes=sum(kernel.bytes for kernel in kernels),
        delay_ns=delay_ns / launches if launches else None,
    )


class GpuTimeBoard:
    """Keeps what was last said of each process, and ten seconds of its work."""

    def __init__(self) -> None:
        self._latest: GpuTimes | None = None
        self._processes: dict[ProcessKey, _Process] = {}

    def add(self, times: GpuTimes) -> None:
        """Take a record; processes that it does not name have ended."""
        self._latest, before, self._processes = times, self._processes, {}
        for process in times.processes[:SHOWN_PROCESSES]:
            kept = self._processes[process.process] = before.get(process.process) or _Process()
            if process.span_ns:
                kept.add(process)

    def view(self, now_ns: int) -> dict[str, Any] | None:
        """Give rates by GPU, process and kernel, as a JSON document; None where nothing is new."""
        times = self._latest
        if times is None or now_ns - times.boottime_ns - times.span_ns > _SPAN_NS:
            return None
        told = [
            (process, self._processes[process.process])
            for process in times.processes[:SHOWN_PROCESSES]
        ]
        kernels = sorted(
            (_kernel(process, kernel, kept.span_s) for process, kept in told
             for kernel in kept.kernels()),
            key=lambda kernel: -kernel["gpu_ms_per_s"],
        )  # fmt: skip
        processes = [_process(process, kept) for process, kept in told]
        return {
            "gpus": _gpus(times, [(process, kept.shares()) for process, kept in told]),
            "processes": sorted(processes, key=lambda p: (-p["gpu_ms_per_s"], p["pid"])),
            "processes_in_all": len(times.processes),
            "families": _families(kept for _, kept in told),
            "kernels": kernels[:SHOWN_KERNELS],
            "kernels_in_all": len(kernels),
            "refused": dict(times.refused),
        }


def _process(process: TimedProcess, kept: _Process) -> dict[str, Any]:
    kernels, gpus = list(kept.kernels()), process.gpus or tuple(sorted(kept.shares()))
    return {
        "pid": process.process.pid,
        "process": clean_name(process.name),
        "application": process.application,
        "container": clean_name(process.container),
        "gpus": list(gpus),
        "state": process.state.value,
        "said": said(process.state, process.error),
        "cupti": cupti_name(process.cupti),
        "span_s": kept.span_s,
        "recorded_share": kept.recorded_share if kept.records else None,
        **_time(kept.time, sum(kernel.launches for kernel in kernels), kept.span_s),
        "lost": sum(record.lost for record in kept.records),
    }


def _kernel(process: TimedProcess, kernel: TimedKernel, span_s: float) -> dict[str, Any]:
    return {
        "pid": process.process.pid,
        "process": clean_name(process.name),
        "gpu": kernel.gpu,
        "kernel": clean_name(kernel.kernel),
        "family": kernel.family,
        **_time(kernel.time, kernel.launches, span_s),
        "mean_us": max(kernel.time.value_ns, 0.0) / 1e3 / kernel.launches
        if kernel.launches > 0
        else None,
        "delay_us": None if kernel.delay_ns is None else kernel.delay_ns / 1e3,
        "bytes_per_s": kernel.bytes / span_s,
    }


def _time(time: EstimatedTime, launches: float, span_s: float) -> dict[str, float | None]:
    """Give rates, and half of the 95 % interval where one is known."""
    if not span_s:
        return {"gpu_ms_per_s": 0.0, "error_ms_per_s": None, "launches_per_s": 0.0}
    return {**_time_rate(time, span_s), "launches_per_s": launches / span_s}


def _time_rate(time: EstimatedTime, span_s: float) -> dict[str, float | None]:
    error_ns = time.error_ns
    return {
        "gpu_ms_per_s": time.value_ns / 1e6 / span_s,
        "error_ms_per_s": None if error_ns is None else error_ns / 1e6 / span_s,
    }


def _families(told: Iterable[_Process]) -> list[dict[str, Any]]:
    """Give each family's time and its share of all; processes know nothing of each other."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kept in told:
        for family, time in kept.families().items():
            found[family].append(_time_rate(time, kept.span_s))
    rates = {family: sum(of["gpu_ms_per_s"] for of in parts) for family, parts in found.items()}
    whole = sum(rates.values()) or 1.0
    return [
        {"family": family, "gpu_ms_per_s": rate, "error_ms_per_s": _joint(found[family]),
         "share": rate / whole}
        for family, rate in sorted(rates.items(), key=lambda item: -item[1])
    ]  # fmt: skip


def _joint(parts: list[dict[str, Any]]) -> float | None:
    """Give half of the interval of a sum of what is independent; None where a part has none."""
    errors = [part["error_ms_per_s"] for part in parts]
    return None if None in errors else float(np.hypot.reduce(errors))


def _gpus(
    times: GpuTimes, told: list[tuple[TimedProcess, Mapping[int, Any]]]
) -> list[dict[str, Any]]:
    return [_gpu(gpu, times, told) for gpu in range(times.gpus)]


def _gpu(
    gpu: int, times: GpuTimes, told: list[tuple[TimedProcess, Mapping[int, Any]]]
) -> dict[str, Any]:
    """Give one GPU: what its processes covered, added up, and which of them are not measured."""
    shares = sum((of[gpu] for _, of in told if gpu in of), np.zeros(len(_PARTS)))
    users = [process for process, of in told if gpu in process.gpus or gpu in of]
    missing = [process for process in users if process.state is not TimingState.MEASURED]
    return {
        "gpu": gpu,
        "covered": gpu in times.covered,
        "known": gpu in times.known,
        "processes": len(users),
        "not_measured": [
            {"pid": process.process.pid, "process": clean_name(process.name),
             "state": process.state.value, "said": said(process.state, process.error)}
            for process in missing
        ],
        **dict(zip(_PARTS, shares.tolist(), strict=True)),
    }  # fmt: skip
