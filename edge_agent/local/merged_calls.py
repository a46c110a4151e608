"""Records of GPU calls of a short while as one: counts are added, states are the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from edge_agent.probes.counts import ProcessKey
from edge_agent.probes.records import (
    CollectiveCalls,
    CopyCalls,
    Counted,
    ErrorCalls,
    GpuCalls,
    KernelCalls,
    ProcessCalls,
    WaitCalls,
)

REST: Final = "(the rest)"
"""The kernels of a process that found no place among those kept."""

_Span = tuple[int, Counted]


def merge(records: Sequence[GpuCalls]) -> GpuCalls:
    """Add records up; the span is the sum of theirs. Raises ValueError for none.

    Each share is the mean over the time of the records that name the row: whoever is not in a
    record did nothing there, and that is known as well as anything.
    """
    if not records:
        raise ValueError("expected at least one record of GPU calls")
    kernels: dict[tuple[ProcessKey, str, str], list[tuple[int, KernelCalls]]] = {}
    processes: dict[ProcessKey, list[tuple[int, ProcessCalls]]] = {}
    for record in records:
        for kernel in record.kernels:
            place = (kernel.process, kernel.kernel, kernel.family)
            kernels.setdefault(place, []).append((record.span_ns, kernel))
        for process in record.processes:
            processes.setdefault(process.process, []).append((record.span_ns, process))
    return GpuCalls(
        min(record.boottime_ns for record in records),
        sum(record.span_ns for record in records),
        tuple(_process(found) for found in processes.values()),
        tuple(_kernel(found) for found in kernels.values()),
    )


def keep_busiest(calls: GpuCalls, kernels: int, processes: int) -> tuple[GpuCalls, int]:
    """Keep the busiest rows; give how many processes were left out.

    What is left out of a kept process's kernels is added up as `REST`.
    """
    by_use = sorted(calls.processes, key=lambda one: (-one.launches.value, -_live(one)))
    kept = {one.process for one in by_use[:processes]}
    own = [one for one in calls.kernels if one.process in kept]
    own.sort(key=lambda one: -one.launches.value)
    rest: dict[ProcessKey, list[tuple[int, KernelCalls]]] = {}
    for one in own[kernels:]:
        rest.setdefault(one.process, []).append((1, one._replace(kernel=REST, family="")))
    shown = (*own[:kernels], *(_kernel(of) for of in rest.values()))
    left_out = len(by_use) - len(kept)
    return replace(calls, processes=tuple(by_use[:processes]), kernels=shown), left_out


def add_counted(spans: Iterable[_Span]) -> Counted:
    """Add counts of successive spans (their length, the count)."""
    seen, value, variance, covered, whole = 0, 0.0, 0.0, 0.0, 0
    for span_ns, one in spans:
        seen, value, variance = seen + one.seen, value + one.value, variance + one.variance
        covered, whole = covered + one.share * span_ns, whole + span_ns
    return Counted(seen, value, variance, covered / whole if whole else 0.0)


def _live(process: ProcessCalls) -> int:
    return process.memory.live_bytes if process.memory else 0


def _kernel(found: Sequence[tuple[int, KernelCalls]]) -> KernelCalls:
    _, last = found[-1]
    return last._replace(
        launches=add_counted((span_ns, one.launches) for span_ns, one in found),
        blocks=sum(one.blocks for _, one in found),
        threads=sum(one.threads for _, one in found),
    )


def _process(found: Sequence[tuple[int, ProcessCalls]]) -> ProcessCalls:
    _, last = found[-1]
    waits = add_counted((span_ns, one.waits.calls) for span_ns, one in found)
    return replace(
        last,
        launches=add_counted((span_ns, one.launches) for span_ns, one in found),
        waits=WaitCalls(waits, sum(one.waits.wait_ns for _, one in found)),
        copies=_copies([(span_ns, copy) for span_ns, one in found for copy in one.copies]),
        collectives=_collectives([(n, each) for n, one in found for each in one.collectives]),
        errors=_errors(error for _, one in found for error in one.errors),
    )


def _copies(found: Sequence[tuple[int, CopyCalls]]) -> tuple[CopyCalls, ...]:
    by_direction: dict[str, list[tuple[int, CopyCalls]]] = {}
    for span_ns, copy in found:
        by_direction.setdefault(copy.direction, []).append((span_ns, copy))
    merged = []
    for of in by_direction.values():
        bins: dict[int, int] = {}
        for place, count in (pair for _, copy in of for pair in copy.log2_bins):
            bins[place] = bins.get(place, 0) + count
        copies = add_counted((span_ns, copy.copies) for span_ns, copy in of)
        total = sum(copy.bytes for _, copy in of)
        merged.append(CopyCalls(of[0][1].direction, copies, total, tuple(sorted(bins.items()))))
    return tuple(merged)


def _collectives(found: Sequence[tuple[int, CollectiveCalls]]) -> tuple[CollectiveCalls, ...]:
    by_kind: dict[tuple[int, str], list[tuple[int, CollectiveCalls]]] = {}
    for span_ns, one in found:
        by_kind.setdefault((one.communicator, one.call), []).append((span_ns, one))
    return tuple(
        CollectiveCalls(
            communicator,
            call,
            add_counted((span_ns, one.calls) for span_ns, one in of),
            sum(one.bytes for _, one in of),
            sum(one.duration_ns for _, one in of),
        )
        for (communicator, call), of in by_kind.items()
    )


def _errors(found: Iterable[ErrorCalls]) -> tuple[ErrorCalls, ...]:
    failures: dict[tuple[str, int], int] = {}
    for one in found:
        failures[one.call, one.code] = failures.get((one.call, one.code), 0) + one.failures
    return tuple(ErrorCalls(call, code, count) for (call, code), count in failures.items())
