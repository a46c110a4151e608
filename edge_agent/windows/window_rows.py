"""A window's totals to the raw row of each section, by the section's place in the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import scale
from kernels.families import UNKNOWN_APPLICATION
from wire.catalogue import UNMEASURED, Catalogue, Section
from wire.task import SectionKind

from .window_state import GpuTotals, Totals, WindowState

IDLE = "idle"
OTHER_FAMILY = "other"
OTHER_MODEL = "other"
_NS_PER_MS = 1_000_000

Row = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU in one window: what was seen, and for how much of the wall time it was watched."""

    model: str
    totals: GpuTotals
    measured_ms: int
    wall_ms: int

    def ratio(self) -> tuple[int, int]:
        """Return (numerator, denominator), ns to ms of wall time; overlapping streams share it."""
        busy_ns = sum(self.totals.family_ns.values())
        measured_ns = self.measured_ms * _NS_PER_MS
        if busy_ns <= measured_ns:
            return 1, _NS_PER_MS
        return self.measured_ms, busy_ns


class RowFiller:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._families = frozenset(catalogue.classes("family"))
        self._applications = frozenset(catalogue.classes("application"))
        self._activity: Mapping[str, Callable[[Section, Sequence[GpuWindow]], Row]] = {
            "kernel_mix": self._kernel_mix,
            "kernel_mix_by_model": self._kernel_mix,
            "application_mix": self._application_mix,
            "kernel_duration": _durations,
            "copy_size": _copy_sizes,
        }
        self._indexes: dict[str, dict[str, int]] = {}

    def fill(self, section: Section, state: WindowState, gpus: Sequence[GpuWindow]) -> Row:
        """Return int64[length] in the section's base units."""
        by_activity = self._activity.get(section.name)
        if by_activity is not None:
            return by_activity(section, gpus)
        return self._observed(section, state.cells.get(section.name, {}))

    def unmeasured(self, section: Section, gpus: Sequence[GpuWindow]) -> Row:
        """Return the row of a window that the host's coin left out: wall time as unmeasured."""
        unseen = [GpuWindow(gpu.model, GpuTotals(), 0, gpu.wall_ms) for gpu in gpus]
        return self.fill(section, WindowState(), unseen)

    def _kernel_mix(self, section: Section, gpus: Sequence[GpuWindow]) -> Row:
        by_model = "gpu_model" in section.axes
        # A host fills one measure: a released cell never adds GPU time to shares of launches.
        gpus, untimed = _one_measure(gpus)
        measure = "launch_share" if untimed else "gpu_time"
        row = np.zeros(section.length, dtype=np.int64)
        for gpu in gpus:
            prefix = f"{gpu.model}/" if by_model else ""
            totals = gpu.totals.family_launches if untimed else gpu.totals.family_ns
            named = _merge(totals, self._families, OTHER_FAMILY)
            cells = {f"{measure}/{name}": amount for name, amount in named.items()}
            self._partition(section, row, prefix, cells, gpu, untimed)
        return row

    def _application_mix(self, section: Section, gpus: Sequence[GpuWindow]) -> Row:
        gpus, untimed = _one_measure(gpus)
        row = np.zeros(section.length, dtype=np.int64)
        for gpu in gpus:
            totals = gpu.totals.application_launches if untimed else gpu.totals.application_ns
            named = _merge(totals, self._applications, UNKNOWN_APPLICATION)
            self._partition(section, row, "", named, gpu, untimed)
        return row

    def _partition(
        self, section: Section, row: Row, prefix: str, parts: Totals, gpu: GpuWindow, untimed: bool
    ) -> None:
        """Add one GPU's wall time to a row: work, then idle, then unmeasured; they sum to it."""
        launches = sum(parts.values())
        numerator, denominator = gpu.ratio()
        if untimed:
            numerator, denominator = gpu.measured_ms, max(launches, 1)
        worked_ms = scale(parts.values(), numerator, denominator)
        index = self._index(section)
        for cell, amount in zip(parts, worked_ms, strict=True):
            row[index[prefix + cell]] += amount
        row[index[prefix + IDLE]] += gpu.measured_ms - sum(worked_ms)
        row[index[prefix + UNMEASURED]] += gpu.wall_ms - gpu.measured_ms

    def _observed(self, section: Section, cells: Mapping[str, list[int]]) -> Row:
        row = np.zeros(section.length, dtype=np.int64)
        index = self._index(section)
        for cell, (total, samples) in cells.items():
            if section.kind is SectionKind.MEAN:
                row[index[cell]] = total // samples
            elif section.kind is SectionKind.INDICATORS:
                row[index[cell]] = int(total > 0)
            else:
                row[index[cell]] += total
        return row

    def _index(self, section: Section) -> dict[str, int]:
        known = self._indexes.get(section.name)
        if known is None:
            known = self._indexes[section.name] = {c: i for i, c in enumerate(section.cells)}
        return known


def _one_measure(gpus: Sequence[GpuWindow]) -> tuple[Sequence[GpuWindow], bool]:
    """Choose one measure: launches, which leave a GPU unmeasured where another's time is known."""
    if not any(gpu.totals.launches_only for gpu in gpus):
        return gpus, False
    if not any(gpu.totals.timed for gpu in gpus):
        return gpus, True
    return [
        GpuWindow(gpu.model, GpuTotals(), 0, gpu.wall_ms) if gpu.totals.launches_only else gpu
        for gpu in gpus
    ], False


def _durations(section: Section, gpus: Sequence[GpuWindow]) -> Row:
    return _binned(section, ((gpu, gpu.totals.duration_ns) for gpu in gpus))


def _copy_sizes(section: Section, gpus: Sequence[GpuWindow]) -> Row:
    gpus, _ = _one_measure(gpus)
    return _binned(section, ((gpu, gpu.totals.copy_ns) for gpu in gpus))


def _binned(section: Section, gpus: Iterable[tuple[GpuWindow, Totals]]) -> Row:
    """Fill a histogram of GPU time, scaled like the mix of the same GPU."""
    row = np.zeros(section.length, dtype=np.int64)
    if section.bins is None:
        raise ValueError(f"section {section.name} of GPU time by size has no bins")
    for gpu, totals in gpus:
        places = sorted(totals, key=int)
        numerator, denominator = gpu.ratio()
        if sum(totals.values()) * numerator > gpu.measured_ms * denominator:
            numerator, denominator = gpu.measured_ms, sum(totals.values())
        times_ms = scale((totals[place] for place in places), numerator, denominator)
        for place, time_ms in zip(places, times_ms, strict=True):
            row[section.bins.index(1 << int(place))] += time_ms
    return row


def _merge(totals: Totals, known: frozenset[str], rest: str) -> Totals:
    """Fold classes that the catalogue does not have into one."""
    merged: Totals = {}
    for name, amount in totals.items():
        key = name if name in known else rest
        merged[key] = merged.get(key, 0) + amount
    return merged
