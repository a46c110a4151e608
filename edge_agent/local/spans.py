"""GPU calls and GPU time on their way to the local history: ten seconds as one row, counts added.
Of calls 50 kernels and 64 processes of the host are kept, up to 30 kB; of GPU time a process's
busiest kernels, the others by family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf, isfinite
from typing import Any, Final, TypeVar

from collectors.records import gpu_time
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    CollectiveCalls,
    CopyCalls,
    CountedCalls,
    ErrorCalls,
    GovernorState,
    GpuCalls,
    KernelCalls,
    ProbeGroup,
    ProcessCalls,
    WaitCalls,
)

from .local_rows import ProcessTimeRow, RecordRow, Row, clean_name

REST: Final = "(the rest)"
"""The kernels of a process that found no place among those kept."""

_Row = TypeVar("_Row")
_Found = list[tuple[GpuCalls, _Row]]

KEPT_KERNELS: Final = 50
KEPT_PROCESSES: Final = 64
KEPT_DETAILS: Final = 16
"""Collectives and errors of one process in one row: the largest."""
SPAN_NS: Final = 10_000_000_000
_MOST_WAITING: Final = 64


def merge(records: Sequence[GpuCalls]) -> GpuCalls:
    """Add records up, and their spans. Who is not in one that watched did nothing; one that saw
    nothing of a group is filled with the mean of those that did. Raises ValueError for none.
    """
    if not records:
        raise ValueError("expected at least one record of GPU calls")
    spans = _Spans(records)
    kernels = _by(
        ((record, row) for record in records for row in record.kernels),
        lambda row: (row.process, row.kernel, row.family),
    )
    processes = _by(
        ((record, row) for record in records for row in record.processes), lambda row: row.process
    )
    return GpuCalls(
        min(record.boottime_ns for record in records),
        spans.whole_ns,
        tuple(_process(found, spans) for found in processes),
        tuple(_kernel(found, spans) for found in kernels),
        spans.shares,
    )


def keep_busiest(calls: GpuCalls, kernels: int, processes: int) -> tuple[GpuCalls, int]:
    """Keep the busiest rows, others as `REST`; give how many processes were left out."""
    by_use = sorted(calls.processes, key=lambda process: (-process.launches.value, -_live(process)))
    kept = {process.process for process in by_use[:processes]}
    own = [kernel for kernel in calls.kernels if kernel.process in kept]
    own.sort(key=lambda kernel: -kernel.launches.value)
    rest = _by(((calls, kernel) for kernel in own[kernels:]), lambda row: row.process)
    shown = (*own[:kernels], *(_rest(found) for found in rest))
    left_out = len(by_use) - len(kept)
    return replace(calls, processes=tuple(by_use[:processes]), kernels=shown), left_out


@dataclass(frozen=True)
class _Spans:
    """The time of some records, and how much of it each group was watched."""

    records: Sequence[GpuCalls]

    @cached_property
    def whole_ns(self) -> int:
        return sum(record.span_ns for record in self.records)

    @cached_property
    def shares(self) -> dict[ProbeGroup, float]:
        """Give the mean share of each group."""
        return {
            group: sum(record.share(group) * record.span_ns for record in self.records)
            / max(self.whole_ns, 1)
            for group in ProbeGroup
        }

    @cached_property
    def blind(self) -> dict[ProbeGroup, dict[int, int]]:
        """Give the spans of the records that saw nothing of each group, by their ids."""
        return {
            group: {id(of): of.span_ns for of in self.records if of.share(group) <= 0}
            for group in ProbeGroup
        }

    def add(
        self, group: ProbeGroup, records: Iterable[GpuCalls], counts: Sequence[CountedCalls]
    ) -> CountedCalls:
        """Add up a row's counts; a record that was watched and lacks it counted nothing."""
        told, blind, watched_ns = counts, self.blind[group], self.whole_ns
        if blind:
            known = [
                (id(record), count)
                for record, count in zip(records, counts, strict=True)
                if id(record) not in blind or isfinite(count.variance)
            ]
            told = [count for _, count in known]
            watched_ns -= sum(blind[place] for place in blind.keys() - dict(known).keys())
        if not watched_ns:
            return CountedCalls(0, 0.0, inf, 0.0)
        total = CountedCalls.total(told, self.shares[group], self.whole_ns / watched_ns)
        return total if len(told) == len(counts) else total._replace(above=inf)


def _by(
    rows: Iterable[tuple[GpuCalls, _Row]], key: Callable[[_Row], Hashable]
) -> list[_Found[_Row]]:
    """Gather rows of the same key, in the order of the records."""
    found: dict[Hashable, _Found[_Row]] = {}
    for pair in rows:
        found.setdefault(key(pair[1]), []).append(pair)
    return list(found.values())


def _live(process: ProcessCalls) -> int:
    return process.memory.live_bytes if process.memory else 0


def _kernel(found: _Found[KernelCalls], spans: _Spans) -> KernelCalls:
    records, rows = zip(*found, strict=True)
    last: KernelCalls = rows[-1]
    return last._replace(
        launches=spans.add(ProbeGroup.LAUNCH, records, [row.launches for row in rows]),
        blocks=sum(row.blocks for row in rows),
        threads=sum(row.threads for row in rows),
    )


def _rest(found: _Found[KernelCalls]) -> KernelCalls:
    counts = [kernel.launches for _, kernel in found]
    return found[0][1]._replace(
        kernel=REST,
        family="",
        launches=CountedCalls.total(counts, min(count.share for count in counts)),
        blocks=sum(kernel.blocks for _, kernel in found),
        threads=sum(kernel.threads for _, kernel in found),
    )


def _process(found: _Found[ProcessCalls], spans: _Spans) -> ProcessCalls:
    records, rows = zip(*found, strict=True)
    waits = spans.add(ProbeGroup.SYNCHRONISE, records, [row.waits.calls for row in rows])
    last: ProcessCalls = rows[-1]
    called = [(record, call) for record, row in found for call in row.collectives]
    return replace(
        last,
        launches=spans.add(ProbeGroup.LAUNCH, records, [row.launches for row in rows]),
        waits=WaitCalls(waits, sum(row.waits.wait_ns for row in rows)),
        copies=_copies([(record, copy) for record, row in found for copy in row.copies], spans),
        collectives=tuple(_collectives(called, spans)),
        errors=_errors(error for row in rows for error in row.errors),
    )


def _copies(found: _Found[CopyCalls], spans: _Spans) -> tuple[CopyCalls, ...]:
    merged = []
    for same in _by(found, lambda row: row.direction):
        records, rows = zip(*same, strict=True)
        bins: dict[int, int] = defaultdict(int)
        for place, count in chain.from_iterable(row.log2_bins for row in rows):
            bins[place] += count
        copies = spans.add(ProbeGroup.COPY, records, [row.copies for row in rows])
        total = sum(row.bytes for row in rows)
        merged.append(CopyCalls(rows[0].direction, copies, total, tuple(sorted(bins.items()))))
    return tuple(merged)


def _collectives(found: _Found[CollectiveCalls], spans: _Spans) -> Iterator[CollectiveCalls]:
    for same in _by(found, lambda row: (row.communicator, row.call)):
        records, rows = zip(*same, strict=True)
        yield rows[0]._replace(
            calls=spans.add(ProbeGroup.COLLECTIVE, records, [row.calls for row in rows]),
            bytes=sum(row.bytes for row in rows),
            duration_ns=sum(row.duration_ns for row in rows),
        )


def _errors(found: Iterable[ErrorCalls]) -> tuple[ErrorCalls, ...]:
    failures: dict[tuple[str, int], int] = defaultdict(int)
    for error in found:
        failures[error.call, error.code] += error.failures
    return tuple(ErrorCalls(call, code, count) for (call, code), count in failures.items())


class SpanRows:
    """Adds up GPU calls of a source and GPU time of a process until ten seconds are there."""

    def __init__(self) -> None:
        self._calls: dict[str, list[GpuCalls]] = {}
        self._times: dict[tuple[str, ProcessKey], list[tuple[int, gpu_time.TimedProcess]]] = {}
        self.dropped: Counter[str] = Counter()

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows on; of GPU calls and time what is complete, or of a process that has ended."""
        for row in rows:
            match row:
                case RecordRow(source, GpuCalls() as calls):
                    waiting = self._calls.setdefault(source, [])
                    waiting.append(calls)
                    spent_ns = sum(calls.span_ns for calls in waiting)
                    if spent_ns >= SPAN_NS or len(waiting) >= _MOST_WAITING:
                        yield self._take_calls(source)
                case RecordRow(source, gpu_time.GpuTimes() as times):
                    yield from self._add_times(source, times)
                case RecordRow(_, GovernorState()):
                    pass
                case _:
                    yield row

    def rest(self) -> Iterator[Row]:
        """Give what has waited, however short."""
        yield from map(self._take_calls, list(self._calls))
        yield from map(self._take_times, list(self._times))

    def _take_calls(self, source: str) -> RecordRow:
        whole = merge(self._calls.pop(source))
        kept, left_out = keep_busiest(whole, KEPT_KERNELS, KEPT_PROCESSES)
        self.dropped["gpu_processes"] += left_out
        return RecordRow(source, kept)

    def _add_times(self, source: str, times: gpu_time.GpuTimes) -> Iterator[ProcessTimeRow]:
        end_ns, named = times.boottime_ns + times.span_ns, set()
        for process in times.processes[:KEPT_PROCESSES]:
            place = source, process.process
            named.add(place)
            if process.span_ns:
                begun_ns = end_ns - process.span_ns
                self._times.setdefault(place, []).append((begun_ns, process))
        own = [place for place in self._times if place[0] == source]
        # Together, so that no last step of a series lacks a process that another has.
        due = any(end_ns - self._times[place][0][0] >= SPAN_NS for place in own)
        yield from map(self._take_times, own if due else [at for at in own if at not in named])

    def _take_times(self, place: tuple[str, ProcessKey]) -> ProcessTimeRow:
        waiting = self._times.pop(place)
        whole = added_up([process for _, process in waiting])
        kept = whole._replace(kernels=keep_timed(whole.kernels))
        return ProcessTimeRow(place[0], waiting[0][0], kept)


def kernel_values(row: KernelCalls, process: str, span_ns: int) -> tuple[Any, ...]:
    counted = _counted(row.launches)
    return (*row.process, process, row.family, span_ns, *counted, row.blocks, row.threads)


def process_values(row: ProcessCalls, span_ns: int) -> tuple[Any, ...]:
    """Give the values of the table's columns; of its lists the largest members."""
    places = row.identity[1:]
    memory = row.memory if row.memory is not None else (None,) * 6
    copies = [(c.direction.value, *_counted(c.copies), c.bytes, c.log2_bins) for c in row.copies]
    collectives = [
        (f"{c.communicator:#x}", c.call, *_counted(c.calls), c.bytes, c.duration_ns)
        for c in sorted(row.collectives, key=lambda collective: -collective.bytes)[:KEPT_DETAILS]
    ]
    errors = sorted(row.errors, key=lambda error: -error.failures)[:KEPT_DETAILS]
    waits = row.wait_share(span_ns) if row.waits.calls.share > 0 else None
    return (
        *row.process, *map(clean_name, places), span_ns, *_counted(row.launches),
        row.waits.wait_ns, waits, *memory, copies, collectives, errors,
    )  # fmt: skip


def _counted(counted: CountedCalls) -> tuple[int | float | None, ...]:
    """Give what an estimate is read back from, and added up; None: infinite."""
    errors = (counted.variance, counted.below, counted.above)
    kept = (error if isfinite(error) else None for error in errors)
    return counted.seen, counted.value, *kept, counted.share


KEPT_TIMED: Final = 12
"""Kernels of one process in one row of GPU time: the busiest."""


def added_up(records: list[gpu_time.TimedProcess]) -> gpu_time.TimedProcess:
    kernels: dict[tuple[int, str, str], list[gpu_time.TimedKernel]] = defaultdict(list)
    for kernel in chain.from_iterable(record.kernels for record in records):
        kernels[kernel.gpu, kernel.kernel, kernel.family].append(kernel)
    devices: dict[int, list[gpu_time.TimedGpu]] = defaultdict(list)
    for device in chain.from_iterable(record.devices for record in records):
        devices[device.gpu].append(device)
    families: dict[str, list[gpu_time.EstimatedTime]] = defaultdict(list)
    for family in chain.from_iterable(record.families for record in records):
        families[family.family].append(family.time)
    return records[-1]._replace(
        span_ns=sum(record.span_ns for record in records),
        recorded_ns=sum(record.recorded_ns for record in records),
        lost=sum(record.lost for record in records),
        time=gpu_time.summed(record.time for record in records),
        families=tuple(
            gpu_time.FamilyTime(name, gpu_time.summed(times)) for name, times in families.items()
        ),
        kernels=tuple(added(found) for found in kernels.values()),
        devices=tuple(
            gpu_time.TimedGpu(gpu, *map(sum, zip(*(device[1:] for device in found), strict=True)))
            for gpu, found in sorted(devices.items())
        ),
    )


def added(kernels: list[gpu_time.TimedKernel]) -> gpu_time.TimedKernel:
    delays = [kernel for kernel in kernels if kernel.delay_ns is not None]
    launches = sum(kernel.launches for kernel in delays)
    delay_ns = sum((kernel.delay_ns or 0.0) * kernel.launches for kernel in delays)
    return kernels[0]._replace(
        launches=sum(kernel.launches for kernel in kernels),
        time=gpu_time.summed(kernel.time for kernel in kernels),
        bytes=sum(kernel.bytes for kernel in kernels),
        delay_ns=delay_ns / launches if launches else None,
    )


def keep_timed(kernels: Iterable[gpu_time.TimedKernel]) -> tuple[gpu_time.TimedKernel, ...]:
    """Keep the busiest, the others by GPU and family, without an interval."""
    by_time = sorted(kernels, key=lambda kernel: -kernel.time.value_ns)
    rest: dict[tuple[int, str], list[gpu_time.TimedKernel]] = defaultdict(list)
    for kernel in by_time[KEPT_TIMED:]:
        rest[kernel.gpu, kernel.family].append(
            kernel._replace(kernel=REST, time=kernel.time._replace(variance=None))
        )
    return (*by_time[:KEPT_TIMED], *map(added, rest.values()))


def process_time_values(process: gpu_time.TimedProcess) -> tuple[Any, ...]:
    kernels = [
        (k.gpu, clean_name(k.kernel), k.family, k.launches, *_estimate(k.time), k.bytes, k.delay_ns)
        for k in process.kernels
    ]
    families = [(family.family, *_estimate(family.time)) for family in process.families]
    return (
        *process.process, clean_name(process.container), process.application, process.state.value,
        process.cupti, process.span_ns, process.recorded_ns, process.lost,
        *_estimate(process.time), families, kernels, list(process.devices),
    )  # fmt: skip


def _estimate(time: gpu_time.EstimatedTime) -> tuple[float, float | None, int, int]:
    """Give what an estimate is read back from, and added up."""
    return time.value_ns, time.variance, time.windows, time.span_ns
