"""Records on their way to live view and history, turned into rows once in ten seconds: that costs a
third of what each second alone does, and snapshots compress as one pack. Who looks has it at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from collectors.devices.device_port import DeviceReading, DeviceSample, Measured
from collectors.devices.devices_source import Use, by_container, limits, uses
from collectors.records.activity import Record
from collectors.records.basics import FailureKind
from diagnosis.detect.findings import Finding

from .history import History
from .history_tables import MOST_CELLS, MOST_SNAPSHOTS
from .local_rows import (
    NOT_SHOWN,
    EventRow,
    Flattener,
    MetricRow,
    PackedRow,
    Row,
    clean_name,
    unit_of,
)
from .recent import Recent

MOST_ROWS: Final = 20_000

EVERY_MS: Final = 10_000
"""What a killed agent loses of its raw history; one that stops in order loses nothing."""
FIRST_MS: Final = 2_000
"""Whoever has just started an agent looks whether it keeps anything."""
MOST_RECORDS: Final = 10_000


def joined(rows: Iterable[Row]) -> list[Row]:
    """Join packs: a source's running totals in time, its tables of one moment side by side."""
    kept: list[Row] = []
    series: dict[tuple[object, ...], list[PackedRow]] = {}
    moments: dict[tuple[object, ...], list[PackedRow]] = {}
    for row in rows:
        if not isinstance(row, PackedRow):
            kept.append(row)
        elif not row.span_ns:
            series.setdefault((row.source, row.cells), []).append(row)
        elif len(row.boottime_ns) == 1:
            place = (row.source, int(row.boottime_ns[0]), row.span_ns)
            moments.setdefault(place, []).append(row)
        else:
            kept.append(row)
    for packs in series.values():
        kept.extend(_in_time(packs))
    for packs in moments.values():
        kept.extend(_side_by_side(packs))
    return kept


def _side_by_side(packs: list[PackedRow]) -> Iterable[PackedRow]:
    if sum(len(pack.cells) for pack in packs) > MOST_CELLS:
        return packs
    first = packs[0]
    cells = tuple(cell for pack in packs for cell in pack.cells)
    values = np.concatenate([pack.values for pack in packs], axis=1)
    return [PackedRow(first.source, cells, first.boottime_ns, values, first.span_ns)]


def _in_time(packs: list[PackedRow]) -> Iterable[PackedRow]:
    if sum(len(pack.boottime_ns) for pack in packs) > MOST_SNAPSHOTS:
        return packs
    first = packs[0]
    times = np.concatenate([pack.boottime_ns for pack in packs])
    values = np.concatenate([pack.values for pack in packs])
    return [PackedRow(first.source, first.cells, times, values)]


class Gathering:
    """Keeps what sources handed out until it is due, or asked for; None: there is no history."""

    def __init__(self, flattener: Flattener, recent: Recent, history: History | None) -> None:
        self._flattener, self._recent, self._history = flattener, recent, history
        self._rows: list[Row] = []
        self._waiting: list[tuple[str, Sequence[Record | Finding], Sequence[Row]]] = []
        self._records = 0
        self._due_ms = 0
        self._begun = False

    def add(
        self, source: str, records: Sequence[Record | Finding], rows: Sequence[Row] = ()
    ) -> None:
        shown = [record for record in records if type(record) not in NOT_SHOWN]
        if not shown and not rows:
            return
        self._waiting.append((source, shown, rows))
        self._records += len(shown) + len(rows)
        if self._records > MOST_RECORDS:
            self.fold()

    def withdraw(self, places: Iterable[tuple[str, str, str]]) -> None:
        """Have the live view forget values that no longer hold."""
        gone = list(places)
        if gone:
            self.fold()
            self._recent.withdraw(gone)

    def step(self, now_ms: int) -> None:
        """Write what is due; a clock that was set back does not keep it waiting."""
        if now_ms >= self._due_ms or self._due_ms - now_ms > EVERY_MS:
            self._due_ms = now_ms + (EVERY_MS if self._begun else FIRST_MS)
            self._begun = True
            self.flush()

    def fold(self) -> None:
        waiting, self._waiting, self._records = self._waiting, [], 0
        for source, records, more in waiting:
            rows = [*self._flattener.rows(source, records), *more]
            self._recent.add(rows)
            if self._history is not None:
                self._rows += rows
        if len(self._rows) >= MOST_ROWS:
            self._write()

    def flush(self) -> None:
        self.fold()
        self._write()

    def _write(self) -> None:
        if self._history is not None:
            rows, self._rows = self._rows, []
            self._history.add(joined(rows))


PREFIX: Final = "gpu."
PROCESS: Final = "gpu_process."
CONTAINER: Final = "gpu_container."
INSTANCE: Final = "gpu_instance."
LIMITS: Final = "gpu_use_not_told"
GAP: Final = "gpu_gap"
MOST_DEVICES: Final = 64
MOST_USES: Final = 32
"""Processes of one device that become rows, those with most memory; the rest is a number."""


Place = tuple[str, str, str]
"""Source, name and key of a metric."""


class DeviceRows:
    """Gives each look's values once."""

    def __init__(self) -> None:
        self._seen_ns: dict[tuple[str, str], int] = {}
        self.models: dict[str, str] = {}
        self.not_told: dict[str, list[str]] = {}
        """What a device's driver does not tell of its users, as of the last look at them."""
        self._used: dict[str, set[Place]] = {}
        self._withdrawn: set[Place] = set()
        self._gaps: dict[str, frozenset[tuple[FailureKind, str]]] = {}
        self._counts: dict[str, Counter[str]] = {}

    @property
    def gap_counts(self) -> Counter[str]:
        """Count the fields without a value since the sources began, by kind of gap."""
        return sum(self._counts.values(), Counter())

    def withdrawn(self) -> set[Place]:
        """Give what no longer holds since the last call: fields that failed, users that ended."""
        gone, self._withdrawn = self._withdrawn, set()
        return gone

    def rows(self, source_name: str, look: DeviceSample | None) -> Iterator[Row]:
        """Give what is new since the last call; a failed field is absent, never zero."""
        if look is None:
            return
        kinds: Counter[str] = Counter()
        for (_, kind), count in look.gaps.items():
            kinds[kind] += count
        self._counts[source_name] = kinds
        for device in look.devices[:MOST_DEVICES]:
            device_id, end_ns = clean_name(device.id), device.end_ns
            if self._seen_ns.get((source_name, device_id)) == end_ns:
                continue
            self._seen_ns[source_name, device_id] = end_ns
            self.models[device_id] = clean_name(device.model)
            begin_ns = device.begin_ns
            for name, value in device.values.items():
                yield MetricRow(
                    begin_ns, max(0, end_ns - begin_ns), source_name, f"{PREFIX}{name}",
                    device_id, unit_of(name), float(value),
                )  # fmt: skip
            yield from self._new_gaps(source_name, device)
            if device.processes is not None:
                yield from self._users(source_name, device)

    def _new_gaps(self, source: str, device: DeviceReading) -> Iterator[EventRow]:
        """Say once why fields went away; what a device never has is no event."""
        self._withdrawn |= {(source, f"{PREFIX}{name}", device.id) for name in device.gaps}
        gaps = [g for g in device.gaps.values() if g.kind is not FailureKind.UNSUPPORTED]
        counts = Counter((gap.kind, gap.reason) for gap in gaps)
        before, self._gaps[device.id] = self._gaps.get(device.id, frozenset()), frozenset(counts)
        for (kind, reason), count in counts.items():
            if (kind, reason) not in before:
                detail = clean_name(f"{count} fields: {kind}, {reason}")
                yield EventRow(GAP, device.id, detail, device.end_ns, source)

    def _users(self, source: str, device: DeviceReading) -> Iterator[Row]:
        """Give who uses a device, and take back who did at the look before."""
        used: set[Place] = set()
        for row in self._uses(source, device):
            if isinstance(row, MetricRow):
                used.add((row.source, row.name, row.key))
            yield row
        self._withdrawn |= self._used.get(device.id, set()) - used
        self._used[device.id] = used

    def _uses(self, source: str, device: DeviceReading) -> Iterator[Row]:
        found = sorted(uses(device), key=_memory, reverse=True)
        yield from _use_rows(source, device, PROCESS, found[:MOST_USES])
        yield from _use_rows(source, device, CONTAINER, by_container(found)[:MOST_USES])
        if len(found) > MOST_USES:
            yield _row(source, device, f"{PROCESS}not_shown", device.id, len(found) - MOST_USES)
        for part in device.partitions if isinstance(device.partitions, tuple) else ():
            told = (
                ("memory_used_bytes", part.memory_used_bytes),
                ("memory_total_bytes", part.memory_total_bytes),
                ("sm_percent", part.sm_percent),
            )
            for name, value in told:
                if isinstance(value, int):
                    key = f"{part.id} {device.id}"
                    yield _row(source, device, f"{INSTANCE}{name}", key, value)
        said, before = limits(device), self.not_told.get(device.id, [])
        self.not_told[device.id] = said
        for line in said:
            if line not in before:
                yield EventRow(LIMITS, device.id, clean_name(line), device.end_ns, source)


def use_key(use: Use) -> str:
    """Name a use: its device or instance, process, container and program, one space between."""
    return f"{use.unit} {use.pid} {use.container or '-'} {clean_name(use.name)}"


def read_use_key(key: str) -> tuple[str, str, str, str]:
    """Give unit, process, container ("-": none) and program of a key."""
    parts = [*key.split(" ", 3), "", "", ""]
    return parts[0], parts[1], parts[2], parts[3]


def _memory(use: Use) -> int:
    return use.memory_bytes if isinstance(use.memory_bytes, int) else 0


def _use_rows(
    source: str, device: DeviceReading, prefix: str, found: Iterable[Use]
) -> Iterator[MetricRow]:
    for use in found:
        told: tuple[tuple[str, Measured], ...] = (
            ("memory_bytes", use.memory_bytes), ("sm_percent", use.sm_percent),
        )  # fmt: skip
        for name, value in told:
            if isinstance(value, int):
                yield _row(source, device, f"{prefix}{name}", use_key(use), value)


def _row(source: str, device: DeviceReading, name: str, key: str, value: int) -> MetricRow:
    begin_ns = device.begin_ns
    span_ns = max(0, device.end_ns - begin_ns)
    return MetricRow(begin_ns, span_ns, source, name, clean_name(key), unit_of(name), float(value))
