"""GPU time on its way to the local history: ten seconds of a process as one row.

Of each process the busiest kernels are kept, the others by family: at most 30 entries in a row, so
that eight processes take some 10 kB in ten seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from collectors.records.estimated_time import EstimatedTime, summed
from collectors.records.gpu_time import FamilyTime, TimedGpu, TimedKernel, TimedProcess
from collectors.records.process import ProcessKey

from .gpu_time_board import added
from .history_tables import bounded
from .local_rows import GpuTimesRow, ProcessTimeRow, Row, clean_name
from .merged_calls import REST

KEPT_KERNELS: Final = 12
KEPT_PROCESSES: Final = 64
SPAN_NS: Final = 10_000_000_000


class GpuTimeSpans:
    """Adds up all processes of a source until ten seconds of one are together."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ProcessKey], list[tuple[int, TimedProcess]]] = {}

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows on; of GPU time what is complete, and all of a process that has ended."""
        for row in rows:
            if isinstance(row, GpuTimesRow):
                yield from self._add(row)
            else:
                yield row

    def rest(self) -> Iterator[ProcessTimeRow]:
        """Give what has waited, however short."""
        for place in list(self._waiting):
            yield self._take(place)

    def _add(self, row: GpuTimesRow) -> Iterator[ProcessTimeRow]:
        end_ns, named = row.times.boottime_ns + row.times.span_ns, set()
        for process in row.times.processes[:KEPT_PROCESSES]:
            place = row.source, process.process
            named.add(place)
            if process.span_ns:
                begun_ns = end_ns - process.span_ns
                self._waiting.setdefault(place, []).append((begun_ns, process))
        own = [place for place in self._waiting if place[0] == row.source]
        # Together, so that no last step of a series lacks a process that another has.
        due = any(end_ns - self._waiting[place][0][0] >= SPAN_NS for place in own)
        for place in own if due else [place for place in own if place not in named]:
            yield self._take(place)

    def _take(self, place: tuple[str, ProcessKey]) -> ProcessTimeRow:
        waiting = self._waiting.pop(place)
        return ProcessTimeRow(place[0], waiting[0][0], merged([process for _, process in waiting]))


def merged(records: list[TimedProcess]) -> TimedProcess:
    """Add up records of one process."""
    kernels: dict[tuple[int, str, str], list[TimedKernel]] = defaultdict(list)
    for kernel in chain.from_iterable(record.kernels for record in records):
        kernels[kernel.gpu, kernel.kernel, kernel.family].append(kernel)
    devices: dict[int, list[TimedGpu]] = defaultdict(list)
    for device in chain.from_iterable(record.devices for record in records):
        devices[device.gpu].append(device)
    families: dict[str, list[EstimatedTime]] = defaultdict(list)
    for family in chain.from_iterable(record.families for record in records):
        families[family.family].append(family.time)
    return records[-1]._replace(
        span_ns=sum(record.span_ns for record in records),
        recorded_ns=sum(record.recorded_ns for record in records),
        lost=sum(record.lost for record in records),
        time=summed(record.time for record in records),
        families=tuple(FamilyTime(name, summed(times)) for name, times in families.items()),
        kernels=keep_busiest([added(found) for found in kernels.values()]),
        devices=tuple(
            TimedGpu(gpu, *map(sum, zip(*(device[1:] for device in found), strict=True)))
            for gpu, found in sorted(devices.items())
        ),
    )


def keep_busiest(kernels: Iterable[TimedKernel]) -> tuple[TimedKernel, ...]:
    """Keep the busiest; the others are added up by GPU and family.

    These sums have no interval: one of kernels of the same windows would have to be learnt there.
    """
    by_time = sorted(kernels, key=lambda kernel: -kernel.time.value_ns)
    rest: dict[tuple[int, str], list[TimedKernel]] = defaultdict(list)
    for kernel in by_time[KEPT_KERNELS:]:
        rest[kernel.gpu, kernel.family].append(
            kernel._replace(kernel=REST, time=kernel.time._replace(variance=None))
        )
    return (*by_time[:KEPT_KERNELS], *map(added, rest.values()))


def process_time_values(process: TimedProcess) -> tuple[Any, ...]:
    """Give the values of the table's columns."""
    kernels = [
        (k.gpu, clean_name(k.kernel), k.family, k.launches, *_estimate(k.time), k.bytes)
        for k in process.kernels
    ]
    families = [(family.family, *_estimate(family.time)) for family in process.families]
    values = (
        *process.process, clean_name(process.container), process.application, process.state.value,
        process.cupti, process.span_ns, process.recorded_ns, process.lost,
        *_estimate(process.time), families, kernels, list(process.devices),
    )  # fmt: skip
    return tuple(map(bounded, values))


def _estimate(time: EstimatedTime) -> tuple[float, float | None, int, int]:
    """Give what an estimate is read back from, and added up."""
    return time.value_ns, time.variance, time.windows, time.span_ns
