"""Raw window rows of many simulated hosts at once, drawn from workload tables with jitter.

Leaving per-node variation out raised another simulator's error from 7 % to 27 %: each host has its
own load and its own mix around the table's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_agent.window_state import COPY_FAMILIES
from wire.catalogue import Catalogue, Section
from wire.task import SectionKind, SectionSpec, Task

from .host_signals import draw_means, draw_samples, event_rates
from .workloads import KernelRow, Workload, check_classes

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

IDLE_HOST = -1
"""Workload index of a host that runs nothing."""

_MILLION = 1_000_000
_LOAD_JITTER = 0.15
_MIX_JITTER = 0.25
_PROBABILITY = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class HostWindow:
    """A batch of hosts in one window, shared by all sections.

    kernel_ms   int64[hosts, kernels] GPU-ms by kernel row of the workload, padded with zeros
    wall_ms     int64[hosts], GPUs x window
    load        float[hosts], share of wall time that the GPUs are busy
    """

    workload: Rows
    gpus: Rows
    kernel_ms: Rows
    wall_ms: Rows
    load: Floats
    window_s: int


class WorkloadSampler:
    """Draws raw rows for the sections of one task; simulator only, as its randomness is numpy's."""

    def __init__(self, catalogue: Catalogue, task: Task, workloads: Sequence[Workload]) -> None:
        """Precompute where each kernel row of each workload lands in each section.

        Raises  WorkloadError when a table names a class that the catalogue does not have
        """
        check_classes(
            workloads,
            catalogue.classes("family"),
            catalogue.classes("application"),
            catalogue.classes("gpu_model"),
        )
        self.workloads = tuple(workloads)
        self._sections = [(catalogue.section(spec.name), spec) for spec in task.sections]
        self._kernels = max(len(workload.kernels) for workload in workloads)
        self._shares = np.array([_padded(w, self._kernels) for w in workloads])
        self._busy = np.array([w.busy_millionths / _MILLION for w in workloads])
        self._fill: dict[str, Callable[[Section, HostWindow], Rows]] = {
            "kernel_mix": self._mix,
            "kernel_mix_by_model": self._mix,
            "application_mix": self._mix,
            "kernel_duration": self._histogram,
            "copy_size": self._histogram,
        }
        self._places = {
            section.name: [self._landing(section, w) for w in workloads]
            for section, _ in self._sections
            if section.name in self._fill
        }

    def sample_rows(
        self,
        workload_index: Rows,
        gpus: Rows,
        window_s: int,
        rng: np.random.Generator,
    ) -> Rows:
        """Draw one window of every host.

        workload_index  int64[hosts], index into `workloads`; IDLE_HOST: none (its GPUs are then of
                        the last workload's model)
        gpus            int64[hosts], GPUs of each host
        Returns         int64[hosts, k], base units of the task's sections in order. Mixes sum to
                        GPUs x window exactly; a host whose coin falls above a section's sampling
                        rate has it all as unmeasured
        """
        window = self._draw(workload_index, gpus, window_s, rng)
        coin = rng.integers(0, _MILLION, size=len(gpus))
        rows = []
        for section, spec in self._sections:
            row = self._row(section, window, rng)
            self._leave_out(section, spec, row, coin, window)
            rows.append(row)
        return np.concatenate(rows, axis=1)

    def _draw(
        self, workload: Rows, gpus: Rows, window_s: int, rng: np.random.Generator
    ) -> HostWindow:
        hosts = len(workload)
        busy = np.where(workload >= 0, self._busy[workload], 0.0)
        load = np.minimum(busy * np.exp(rng.normal(0.0, _LOAD_JITTER, hosts)), 1.0)
        mix = self._shares[workload] * np.exp(rng.normal(0.0, _MIX_JITTER, (hosts, self._kernels)))
        mix /= mix.sum(axis=1, keepdims=True)
        wall_ms = gpus.astype(np.int64) * window_s * 1_000
        reached = np.floor(np.cumsum(mix, axis=1) * (load * wall_ms)[:, None]).astype(np.int64)
        kernel_ms = np.diff(np.minimum(reached, wall_ms[:, None]), axis=1, prepend=0)
        return HostWindow(workload, gpus, kernel_ms, wall_ms, load, window_s)

    def _row(self, section: Section, window: HostWindow, rng: np.random.Generator) -> Rows:
        by_activity = self._fill.get(section.name)
        if by_activity is not None:
            return by_activity(section, window)
        if section.kind is SectionKind.MEAN:
            return draw_means(section, window.load, rng)
        if section.kind is SectionKind.INDICATORS:
            return self._indicators(section, window, rng)
        if section.bins is not None and section.sample_period_s:
            samples = window.gpus * max(window.window_s // section.sample_period_s, 1)
            return draw_samples(section, window.load, samples, rng)
        return np.zeros((len(window.gpus), section.length), dtype=np.int64)

    def _mix(self, section: Section, window: HostWindow) -> Rows:
        """Fill a partition of wall time: kernel rows land in cells, the rest is idle."""
        row = np.zeros((len(window.gpus), section.length), dtype=np.int64)
        for index in np.unique(window.workload):
            hosts = np.flatnonzero(window.workload == index)
            landing = self._places[section.name][index]
            row[hosts] = window.kernel_ms[hosts].astype(np.float64) @ landing  # exact below 2^53
            idle = self._rest(section, index, "idle")
            row[hosts, idle] = window.wall_ms[hosts] - row[hosts].sum(axis=1)
        return row

    def _histogram(self, section: Section, window: HostWindow) -> Rows:
        row = np.zeros((len(window.gpus), section.length), dtype=np.int64)
        for index in np.unique(window.workload[window.workload >= 0]):
            hosts = np.flatnonzero(window.workload == index)
            row[hosts] = np.floor(window.kernel_ms[hosts] @ self._places[section.name][index])
        return row

    def _indicators(self, section: Section, window: HostWindow, rng: np.random.Generator) -> Rows:
        row = np.zeros((len(window.gpus), section.length), dtype=np.int64)
        if section.name == "applications_seen":
            hosts = np.flatnonzero(window.workload >= 0)
            seen = [section.index(w.application) for w in self.workloads]
            row[hosts, np.array(seen)[window.workload[hosts]]] = 1
            return row
        rates = event_rates(section)
        return (rng.random(row.shape) < rates).astype(np.int64)

    def _leave_out(
        self, section: Section, spec: SectionSpec, row: Rows, coin: Rows, window: HostWindow
    ) -> None:
        """Turn hosts that did not measure into wall time unmeasured (or nothing, in histograms)."""
        skipped = np.flatnonzero(coin >= spec.rate_millionths)
        if section.kind in (SectionKind.MEAN, SectionKind.INDICATORS) or not skipped.size:
            return
        row[skipped] = 0
        if spec.kind is SectionKind.MIX and section.name in self._fill:
            models = window.workload[skipped]
            cells = np.array([self._rest(section, int(m), "unmeasured") for m in models])
            row[skipped, cells] = window.wall_ms[skipped]

    def _rest(self, section: Section, workload: int, cell: str) -> int:
        model = f"{self.workloads[workload].gpu_model}/" if "gpu_model" in section.axes else ""
        return section.index(model + cell)

    def _landing(self, section: Section, workload: Workload) -> Floats:
        """Return float[kernels, cells]: how a ms of each kernel row spreads over the section."""
        landing = np.zeros((self._kernels, section.length))
        for place, kernel in enumerate(workload.kernels):
            if section.name == "kernel_duration" and kernel.family not in COPY_FAMILIES:
                landing[place] = _duration_shares(section, kernel)
            elif section.name == "copy_size" and kernel.copy_bytes and section.bins is not None:
                landing[place, section.bins.index(kernel.copy_bytes)] = 1.0
            elif section.name == "application_mix":
                landing[place, section.index(workload.application)] = 1.0
            elif section.kind is SectionKind.MIX:
                model = f"{workload.gpu_model}/" if "gpu_model" in section.axes else ""
                landing[place, section.index(f"{model}gpu_time/{kernel.family}")] = 1.0
        return landing


def _padded(workload: Workload, kernels: int) -> Floats:
    times = np.zeros(kernels)
    times[: len(workload.kernels)] = [row.time_ns_per_step for row in workload.kernels]
    shares: Floats = times / times.sum()
    return shares


def _duration_shares(section: Section, kernel: KernelRow) -> Floats:
    """Spread a kernel's time over duration bins: its quantiles are joined by straight lines."""
    shares = np.zeros(section.length)
    if section.bins is None:
        return shares
    p10, p50, p90, p99 = kernel.duration_ns
    ranks = (np.arange(200) + 0.5) / 200
    lengths = np.interp(ranks, _PROBABILITY, (p10, p10, p50, p90, p99, p99))
    for length in lengths:
        shares[section.bins.index(float(length))] += length + 1.0
    return np.asarray(shares / shares.sum())
