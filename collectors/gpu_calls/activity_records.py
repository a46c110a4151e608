"""What drains of the probes say to the windows: launches, copies, coverage, observations.

A launch names no GPU. Where a driver tells which process uses which GPU, calls are spread evenly
over the process's own; else over all of the host: its row is a partition of the wall time of its
GPUs either way, so the bounds hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from collectors.devices.devices_source import GpuUsers
from collectors.records.activity import (
    EVERYTHING_MILLIONTHS,
    GpuCoverage,
    KernelActivity,
    Observation,
    scale,
)
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Direction, ProbeGroup
from wire.catalogue import Catalogue

from .periods import Collected
from .probe_table import CallKind, ProbeTable
from .readout import ProbeDrain

NAME: Final = "probes"
SECTIONS: Final = {
    "copies": ProbeGroup.COPY,
    "collectives": ProbeGroup.COLLECTIVE,
    "synchronisation_waits": ProbeGroup.SYNCHRONISE,
}

_S: Final = 1_000_000_000
_MILLION: Final = 1_000_000
_COPY_NAMES: Final[Mapping[Direction, str]] = {
    Direction.HOST_TO_HOST: "Memcpy HtoH",
    Direction.HOST_TO_DEVICE: "Memcpy HtoD",
    Direction.DEVICE_TO_HOST: "Memcpy DtoH",
    Direction.DEVICE_TO_DEVICE: "Memcpy DtoD",
    Direction.DEFAULT: "Memcpy",
}
_DIRECTION_CELLS: Final[Mapping[Direction, str]] = {
    Direction.HOST_TO_DEVICE: "host_to_device",
    Direction.DEVICE_TO_HOST: "device_to_host",
    Direction.DEVICE_TO_DEVICE: "device_to_device",
}
_COLLECTIVE_CELLS: Final = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "bcast": "broadcast", "reduce": "reduce",
    "all_to_all": "all_to_all", "send": "point_to_point", "recv": "point_to_point",
}  # fmt: skip
_WAIT_CELLS: Final = {
    "device_synchronize": "device", "context_synchronize": "device",
    "stream_synchronize": "stream", "event_synchronize": "event",
}  # fmt: skip


class GpuPlaces(NamedTuple):
    """How many GPUs this host has, and who uses them, where a driver tells."""

    gpus: int
    users: GpuUsers

    def of(self, process: ProcessKey, boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs over which a process's calls are spread; none where the host has none."""
        told = self.users.gpus(process.pid, boottime_ns)
        own = tuple(gpu for gpu in told if gpu < self.gpus)
        return own or tuple(self._there())

    def _there(self) -> Iterator[int]:
        return (gpu for gpu in range(self.gpus) if gpu not in self.users.missing)

    def watched(self, probed: Collection[int], boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs of which all processes are probed."""
        return tuple(
            gpu for gpu in self._there() if self.users.pids(gpu, boottime_ns) <= frozenset(probed)
        )


class Named(NamedTuple):
    kernel: str
    family: str


@dataclass(slots=True)
class _Work:
    count: int = 0
    bins: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


_Place = tuple[tuple[int, ...], Named, str]


@dataclass(frozen=True, slots=True)
class ActivityRecords:
    table: ProbeTable
    catalogue: Catalogue
    places: GpuPlaces
    application: Callable[[ProcessKey], str]
    left_out: Callable[[ProcessKey], bool]

    def of(
        self,
        collected: Sequence[Collected],
        names: Mapping[tuple[ProcessKey, int], Named],
        probed: Collection[int],
    ) -> Iterator[KernelActivity | GpuCoverage | Observation]:
        """Give everything that leaves for the windows."""
        for collection in collected:
            yield from self._activity(collection, names)
            if collection.shares[ProbeGroup.LAUNCH] > 0.0:
                drain = collection.drain
                end_ns = drain.begun_ns + drain.span_ns
                for gpu in self.places.watched(probed, end_ns):
                    yield GpuCoverage(NAME, gpu, drain.begun_ns, drain.span_ns)
        yield from self._means(collected)

    def _activity(
        self, collection: Collected, names: Mapping[tuple[ProcessKey, int], Named]
    ) -> Iterator[KernelActivity]:
        for group, work in (
            (ProbeGroup.LAUNCH, self._launches(collection, names)),
            (ProbeGroup.COPY, self._copies(collection)),
        ):
            share = collection.shares[group]
            if share <= 0.0:
                continue
            rate = min(max(round(share * EVERYTHING_MILLIONTHS), 1), EVERYTHING_MILLIONTHS)
            for (gpus, named, application), done in work.items():
                counts = scale([1] * len(gpus), done.count, len(gpus))
                bins = {b: scale([1] * len(gpus), n, len(gpus)) for b, n in done.bins.items()}
                for place, (gpu, count) in enumerate(zip(gpus, counts, strict=True)):
                    if count:
                        yield KernelActivity(
                            gpu, named.kernel, named.family, application, count, None, (), rate,
                            collection.drain.begun_ns, collection.drain.span_ns,
                            tuple((b, n[place]) for b, n in sorted(bins.items()) if n[place]),
                        )  # fmt: skip

    def _launches(
        self, collection: Collected, names: Mapping[tuple[ProcessKey, int], Named]
    ) -> dict[_Place, _Work]:
        work: dict[_Place, _Work] = defaultdict(_Work)
        for row in collection.drain.launches:
            if row.launches and self._counted(row.process):
                place = self._place(row.process, names[row.process, row.kernel], collection)
                work[place].count += row.launches
        return work

    def _copies(self, collection: Collected) -> dict[_Place, _Work]:
        """Copies and memsets, as work of their families: a recorded trace lists them alike."""
        work: dict[_Place, _Work] = defaultdict(_Work)
        for row in collection.drain.copies:
            if self._counted(row.process):
                named = Named(_COPY_NAMES[row.direction], "memcpy")
                done = work[self._place(row.process, named, collection)]
                done.count += row.copies
                for size_bin, copies in row.log2_bins:
                    done.bins[size_bin] += copies
        memsets = {row.id for row in self.table.rows if row.kind is CallKind.MEMSET}
        for call in collection.drain.calls:
            if call.call in memsets and call.calls and self._counted(call.process):
                place = self._place(call.process, Named("Memset", "memset"), collection)
                work[place].count += call.calls
        return work

    def _counted(self, process: ProcessKey) -> bool:
        timed_elsewhere = process in self.places.users.timed
        return not timed_elsewhere and not self.left_out(process)

    def _place(self, process: ProcessKey, named: Named, collection: Collected) -> _Place:
        gpus = self.places.of(process, collection.drain.begun_ns)
        if len(gpus) > 1:
            # Hundreds of kernels on each GPU, every second, for what is a guess: families will do.
            named = Named(f"({named.family})", named.family)
        return gpus, named, self.application(process)

    def _means(self, collected: Sequence[Collected]) -> Iterator[Observation]:
        """Average over all drains by length; one may be above full scale."""
        for section, group in SECTIONS.items():
            seen = [collection for collection in collected if collection.shares[group] > 0.0]
            span_ns = sum(collection.drain.span_ns for collection in seen)
            if not span_ns:
                continue
            amounts: dict[str, float] = defaultdict(float)
            for collection in seen:
                for cell, amount in self._amounts(section, collection.drain):
                    amounts[cell] += amount / collection.shares[group]
            middle_ns = seen[0].drain.begun_ns + span_ns // 2
            for coordinate in self.catalogue.section(section).coordinates:
                # Bytes a second, or percent of the wall time of one thread for each GPU.
                each = 100.0 / max(self.places.gpus, 1) if coordinate.unit == "percent" else _S
                level = amounts[coordinate.name] * each / span_ns
                share = level / coordinate.full_scale
                yield Observation(section, coordinate.name, round(share * _MILLION), middle_ns)

    def _amounts(self, section: str, drain: ProbeDrain) -> Iterator[tuple[str, float]]:
        if section == "copies":
            for copy in drain.copies:
                if not self.left_out(copy.process):
                    yield _DIRECTION_CELLS.get(copy.direction, "other_direction"), copy.bytes
        elif section == "collectives":
            for row in drain.collectives:
                if not self.left_out(row.process):
                    kind = row.call.rpartition(".")[2]
                    yield _COLLECTIVE_CELLS.get(kind, "other_collective"), row.bytes
                    yield "time_in_calls", row.duration_ns
        else:
            for call in drain.calls:
                cell = _WAIT_CELLS.get(call.call.rpartition(".")[2])
                if cell is not None and not self.left_out(call.process):
                    yield cell, call.wait_ns
