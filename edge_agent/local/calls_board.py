"""GPU calls of the last seconds, for `agent top`: in memory, bounded, never on disk."""

from __future__ import annotations

from collections import deque
from math import isfinite
from typing import Any, Final

from collectors.records.gpu_calls import (
    CopyCalls,
    CountedCalls,
    Direction,
    GovernorState,
    GpuCalls,
    KernelCalls,
    ProcessCalls,
)
from collectors.records.process import ProcessKey

from .local_rows import CallsRow, GovernorRow, clean_name
from .merged_calls import merge

SHOWN_KERNELS: Final = 40
SHOWN_PROCESSES: Final = 40
SHOWN_COLLECTIVES: Final = 20
SHOWN_ERRORS: Final = 4
_SPAN_NS: Final = 10_000_000_000
_STALE_SPANS: Final = 2
"""A record of a long governor period is shown until the one after it should have come."""
_MOST_RECORDS: Final = 64
_NS_PER_S: Final = 1_000_000_000


class CallsBoard:
    """Keeps the records that end in the last ten seconds, or the last one while it is fresh."""

    def __init__(self) -> None:
        self._records: deque[GpuCalls] = deque(maxlen=_MOST_RECORDS)
        self._state: GovernorState | None = None

    def add(self, row: CallsRow | GovernorRow) -> None:
        """Take a row as it comes."""
        if isinstance(row, GovernorRow):
            self._state = row.state
            return
        self._records.append(row.calls)
        oldest_ns = _end_ns(row.calls) - _SPAN_NS
        while len(self._records) > 1 and _end_ns(self._records[0]) <= oldest_ns:
            self._records.popleft()

    def view(self, now_ns: int) -> dict[str, Any]:
        """Give rates by kernel, process, direction and communicator, as a JSON document."""
        state = self._state
        if state is not None and now_ns > state.boottime_ns + _STALE_SPANS * state.span_ns:
            state = None
        fresh = [
            record for record in self._records if now_ns <= _end_ns(record) + _patience_ns(record)
        ]
        view: dict[str, Any] = {"governor": _governor(state) if state else None}
        return view | _rates(merge(fresh)) if fresh else view


def _end_ns(calls: GpuCalls) -> int:
    return calls.boottime_ns + calls.span_ns


def _patience_ns(calls: GpuCalls) -> int:
    return max(_SPAN_NS, _STALE_SPANS * calls.span_ns)


def _rates(calls: GpuCalls) -> dict[str, Any]:
    span_s = max(calls.span_ns, 1) / _NS_PER_S
    names = {process.process: clean_name(process.identity.name) for process in calls.processes}
    kernels = sorted(calls.kernels, key=lambda kernel: -kernel.launches.value)
    processes = sorted(calls.processes, key=_weight)
    families: dict[str, float] = {}
    for kernel in kernels:
        families[kernel.family] = families.get(kernel.family, 0.0) + kernel.launches.value / span_s
    return {
        "span_s": span_s,
        "kernels": [_kernel(kernel, names, span_s) for kernel in kernels[:SHOWN_KERNELS]],
        "kernels_in_all": len(kernels),
        "families": [
            {"family": family, "launches_per_s": rate}
            for family, rate in sorted(families.items(), key=lambda item: -item[1])
        ],
        "processes": [_process(process, calls.span_ns) for process in processes[:SHOWN_PROCESSES]],
        "processes_in_all": len(processes),
        "copies": _all_copies(processes, span_s),
        "collectives": _collectives(processes, span_s),
    }


def _weight(process: ProcessCalls) -> tuple[float, int]:
    return -process.launches.value, -process.memory.live_bytes if process.memory else 0


def _rate(counted: CountedCalls, span_s: float, name: str = "launches") -> dict[str, Any]:
    """Give calls a second, half of the 95 % interval, its ends or bounds, and the sampling rate.

    What is not known is None: of a one-sided bound half an interval and the upper end.
    """
    error = counted.error / span_s
    low, high = (end / span_s for end in counted.interval)
    return {
        f"{name}_per_s": counted.value / span_s,
        "error_per_s": error if isfinite(error) else None,
        "low_per_s": low,
        "high_per_s": high if isfinite(high) else None,
        "share": counted.share,
    }


def _kernel(kernel: KernelCalls, names: dict[ProcessKey, str], span_s: float) -> dict[str, Any]:
    seen = max(kernel.launches.seen, 1)
    return {
        "pid": kernel.process.pid,
        "process": names.get(kernel.process, ""),
        "kernel": clean_name(kernel.kernel),
        "family": kernel.family,
        **_rate(kernel.launches, span_s),
        "blocks_per_launch": kernel.blocks / seen,
        "threads_per_launch": kernel.threads / seen,
    }


def _process(process: ProcessCalls, span_ns: int) -> dict[str, Any]:
    places = {name: clean_name(text) for name, text in process.identity._asdict().items()}
    errors = sorted(process.errors, key=lambda error: -error.failures)
    return {
        "pid": process.process.pid,
        **places,
        **_rate(process.launches, span_ns / _NS_PER_S),
        "wait_share": process.wait_share(span_ns) if process.waits.calls.share > 0 else None,
        "memory": process.memory._asdict() if process.memory is not None else None,
        "copies": [_copy(copy, span_ns / _NS_PER_S) for copy in process.copies],
        "failures": sum(error.failures for error in errors),
        "errors": [error._asdict() for error in errors[:SHOWN_ERRORS]],
    }


def _copy(copy: CopyCalls, span_s: float) -> dict[str, Any]:
    """Give a direction's rates; bytes are scaled by the share that was seen."""
    return {
        "direction": copy.direction.value,
        **_rate(copy.copies, span_s, "copies"),
        "bytes_per_s": _scaled(copy.bytes, copy.copies, span_s),
        "log2_bins": [list(pair) for pair in copy.log2_bins],
    }


def _all_copies(processes: list[ProcessCalls], span_s: float) -> list[dict[str, Any]]:
    """Give the copies of all processes by direction."""
    found: dict[Direction, list[CopyCalls]] = {}
    for copy in (copy for process in processes for copy in process.copies):
        found.setdefault(copy.direction, []).append(copy)
    rows = []
    for copies in found.values():
        bins: dict[int, int] = {}
        for place, count in (pair for copy in copies for pair in copy.log2_bins):
            bins[place] = bins.get(place, 0) + count
        counts = [copy.copies for copy in copies]
        added = CountedCalls.total(counts, min(counted.share for counted in counts))
        whole = CopyCalls(copies[0].direction, added, 0, tuple(sorted(bins.items())))
        total = sum(_scaled(copy.bytes, copy.copies, span_s) for copy in copies)
        rows.append(_copy(whole, span_s) | {"bytes_per_s": total})
    return sorted(rows, key=lambda row: -row["bytes_per_s"])


def _collectives(processes: list[ProcessCalls], span_s: float) -> list[dict[str, Any]]:
    rows = [
        {
            "pid": process.process.pid,
            "process": clean_name(process.identity.name),
            "communicator": f"{collective.communicator:#x}",
            "call": collective.call,
            **_rate(collective.calls, span_s, "calls"),
            "bytes_per_s": _scaled(collective.bytes, collective.calls, span_s),
            "mean_us": collective.duration_ns / 1000 / max(collective.calls.seen, 1),
        }
        for process in processes
        for collective in process.collectives
    ]
    return sorted(rows, key=lambda row: -row["bytes_per_s"])[:SHOWN_COLLECTIVES]


def _scaled(amount: int, counted: CountedCalls, span_s: float) -> float:
    return amount / (counted.share * span_s) if counted.share > 0 else 0.0


def _governor(state: GovernorState) -> dict[str, Any]:
    return {
        "loader": state.loader,
        "period_s": state.span_ns / _NS_PER_S,
        "budget": state.budget,
        "duty": state.duty,
        "steady": [group.value for group in state.steady],
        "in_turns": [group.value for group in state.in_turns],
        "dropped": {group.value: clean_name(why) for group, why in state.dropped.items()},
        "predicted": state.predicted,
        "measured": state.measured,
        "worst_pid": state.worst.pid if state.worst else None,
        "files": state.files,
        "lost": {clean_name(what): count for what, count in state.lost.items()},
    }
