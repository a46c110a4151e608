"""Raw window rows of simulated hosts: drawn from recorded tables of kernels, with jitter.

Leaving per-node variation out raised another simulator's error from 7 % to 27 %: each host has its
own load and mix. Levels of GPU gauges and host means are chosen; what is published is cited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.window_state import COPY_FAMILIES
from simulator.applications import (
    Application,
    KernelRow,
    Variant,
    Workload,
    check_classes,
    class_places,
    derive,
)
from simulator.streams import philox
from wire.catalogue import UNMEASURED, Catalogue, Section
from wire.task import SectionKind, SectionSpec, Task

from .hosts import IDLE, FleetState, unpack
from .jobs import CHOSEN

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_PROBABILITY: Final = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)

Rows = NDArray[np.int64]

_MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class Landing:
    """How a ms of each kernel spreads over the cells of one section that it reaches at all.

    cells   int64[c], places in the section
    shares  float[kernels, c]
    """

    cells: Places
    shares: Floats


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One application on one GPU model, ready to draw from.

    busy        share of a step in which the GPU works
    shares      float[kernels], of the busy time
    exchange    place of the kernel that waits for other hosts, -1 where there is none
    """

    busy: float
    shares: Floats
    exchange: int
    family: Landing
    duration: Landing | None
    copy_size: Landing | None


class KernelTables:
    def __init__(self, catalogue: Catalogue, applications: tuple[Application, ...]) -> None:
        self._applications = applications
        self._models = catalogue.classes("gpu_model")
        self._families = catalogue.classes("family")
        sections = {section.name: section for section in catalogue.sections}
        self._duration = sections.get("kernel_duration")
        self._copy_size = sections.get("copy_size")
        self._known: dict[tuple[int, int], KernelTable] = {}

    def get(self, application: int, model: int) -> KernelTable:
        """Give the table of an application on a GPU model, by place: elsewhere a variant."""
        known = self._known.get((application, model))
        if known is None:
            known = self._make(self._applications[application].workload, self._models[model])
            self._known[application, model] = known
        return known

    def _make(self, workload: Workload, model: str) -> KernelTable:
        moved = derive(workload, Variant(gpu_model=model), workload.name, workload.application)
        rows = moved.kernels
        times = np.array([row.time_ns_per_step for row in rows], dtype=np.float64)
        families = np.zeros((len(rows), len(self._families)))
        for place, row in enumerate(rows):
            families[place, self._families.index(row.family)] = 1.0
        exchanges = [i for i, row in enumerate(rows) if row.family == "communication"]
        return KernelTable(
            busy=moved.busy_millionths / 1e6,
            shares=times / times.sum(),
            exchange=max(exchanges, key=lambda i: times[i], default=-1),
            family=_compact(families),
            duration=self._binned(self._duration, rows, _duration_shares),
            copy_size=self._binned(self._copy_size, rows, _copy_shares),
        )

    @staticmethod
    def _binned(
        section: Section | None,
        rows: tuple[KernelRow, ...],
        spread: Callable[[Section, KernelRow], Floats],
    ) -> Landing | None:
        if section is None:
            return None
        return _compact(np.array([spread(section, row) for row in rows]))


def _compact(shares: Floats) -> Landing:
    cells = np.flatnonzero(shares.any(axis=0))
    return Landing(cells, np.ascontiguousarray(shares[:, cells]))


def _duration_shares(section: Section, kernel: KernelRow) -> Floats:
    """Spread a kernel's time over duration bins: its quantiles are joined by straight lines."""
    shares = np.zeros(section.length)
    if section.bins is None or kernel.family in COPY_FAMILIES:
        return shares
    p10, p50, p90, p99 = kernel.duration_ns
    ranks = (np.arange(200) + 0.5) / 200
    lengths = np.interp(ranks, _PROBABILITY, (p10, p10, p50, p90, p99, p99))
    places = np.searchsorted(section.bins.edges, lengths, side="right") - 1
    np.add.at(shares, np.clip(places, 0, section.bins.count - 1), lengths + 1.0)
    return np.asarray(shares / shares.sum())


def _copy_shares(section: Section, kernel: KernelRow) -> Floats:
    shares = np.zeros(section.length)
    if section.bins is not None and kernel.copy_bytes:
        shares[section.bins.index(kernel.copy_bytes)] = 1.0
    return shares


def draw_samples(section: Section, load: Floats, samples: Rows, rng: np.random.Generator) -> Rows:
    """Draw int64[hosts, bins]: each host's samples around its level, with the gauge's spread.

    Rounded by one uniform per host: right in the mean, samples in all, and cheap.
    """
    if section.bins is None or section.name not in CHOSEN["gauge"]:
        return np.zeros((len(load), section.length), dtype=np.int64)
    idle, busy, spread = CHOSEN["gauge"][section.name]
    level = (idle + (busy - idle) * load).astype(np.float32)
    uppers = np.array(section.bins.edges[1:], dtype=np.float32)
    # The logistic curve stands in for the normal distribution: within 1 % of it at this scale.
    below = np.exp(np.clip((uppers - level[:, None]) * np.float32(-1.702 / spread), -60, 60))
    below += 1
    reached = np.empty((len(load), section.length))
    np.divide(samples[:, None], below, out=reached[:, :-1])
    reached[:, :-1] += rng.random((len(load), 1))
    reached[:, -1] = samples  # below is under 1 up to here, and so is the uniform: never more
    drawn = np.minimum(reached, samples[:, None]).astype(np.int64)
    drawn[:, 1:] -= drawn[:, :-1].copy()
    return drawn


def draw_means(section: Section, load: Floats, rng: np.random.Generator) -> Rows:
    """Draw int64[hosts, coordinates] in millionths of full scale, with 30 % variation."""
    ends = np.array([CHOSEN["mean"].get(cell, (0.0, 0.0)) for cell in section.cells])
    ends = ends[: section.axis_cells]
    level = ends[:, 0] + (ends[:, 1] - ends[:, 0]) * load[:, None]
    jitter = np.exp(rng.normal(0.0, 0.3, level.shape))
    shares = np.minimum(level * jitter * _MILLIONTHS, _MILLIONTHS)
    # Parts of one whole (CPU time, memory) never exceed it.
    above = shares.sum(axis=1, keepdims=True) / section.l1_bound
    means: Rows = (shares / np.maximum(above, 1.0)).astype(np.int64)
    return means


LOAD_JITTER: Final = 0.15
MIX_JITTER: Final = 0.25
"""Standard deviations of the logarithm: of a host's load, of a kernel's share of it."""

FULL_LINK_GBIT: Final = 400

_MILLION: Final = 1_000_000
_EVENTS: Final = ("applications_seen", "incidents", "hardware_faults")


def block_rng(seed: int, series: str, window_start_s: int, block: int) -> np.random.Generator:
    """Give the generator of one block of one window: counter-based, so any can be made alone."""
    return philox(seed, "rows", series, window_start_s, block)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What all sections of a block share.

    groups          (hosts, table, application) of each pair of application and GPU model met
    kernel_ms       by group: float[hosts, kernels], whole ms
    """

    state: FleetState
    lo: int
    hi: int
    gpus: Rows
    model: Rows
    wall_ms: Rows
    load: Floats
    groups: tuple[tuple[Rows, KernelTable, int], ...]
    kernel_ms: tuple[Floats, ...]


class FleetRows:
    def __init__(
        self, catalogue: Catalogue, task: Task, applications: Sequence[Application]
    ) -> None:
        """Find the place of every section and application, by `FleetModel.applications`.

        Raises          WorkloadError when a table names a class that the catalogue does not have
        """
        self.applications = tuple(applications)
        self._sections = [(catalogue.section(spec.name), spec) for spec in task.sections]
        self._tables = KernelTables(catalogue, self.applications)
        self._models, self._families = catalogue.classes("gpu_model"), catalogue.classes("family")
        by_model = catalogue.section("kernel_mix_by_model")
        self._model_places = len({cell.split("/", 1)[0] for cell in by_model.cells})
        self.width = sum(spec.length for spec in task.sections)
        check_classes(
            [application.workload for application in self.applications],
            self._families,
            catalogue.section("applications_seen").cells,
            self._models,
        )
        self._cells = class_places(self.applications, catalogue)
        self._fill: dict[str, Callable[[Section, _Drawn, Rows], None]] = {
            "kernel_mix": self._kernel_mix,
            "kernel_mix_by_model": self._kernel_mix_by_model,
            "application_mix": self._application_mix,
            "kernel_duration": self._durations,
            "copy_size": self._copy_sizes,
        }

    def block(
        self,
        state: FleetState,
        lo: int,
        hi: int,
        rng: np.random.Generator,
        out: Rows | None = None,
    ) -> Rows:
        """Draw one window of hosts lo .. hi - 1, those that do not report included.

        out         int64[hi - lo, k] to write to instead of a new array
        Returns     int64[hi - lo, k], base units. Mixes sum to GPUs x window exactly; a host whose
                    coin falls above a section's sampling rate has it all as unmeasured
        """
        rows = np.empty((hi - lo, self.width), dtype=np.int64) if out is None else out
        rows[:] = 0
        drawn = self._draw(state, lo, hi, rng)
        coin = rng.integers(0, _MILLION, size=hi - lo)
        at = 0
        for section, spec in self._sections:
            row = rows[:, at : at + spec.length]
            self._row(section, drawn, row, rng)
            self._leave_out(section, spec, row, coin, drawn)
            at += spec.length
        return rows

    def _draw(self, state: FleetState, lo: int, hi: int, rng: np.random.Generator) -> _Drawn:
        gpus = state.inventory.gpus[lo:hi].astype(np.int64)
        model = state.inventory.gpu_model[lo:hi].astype(np.int64)
        application = state.application[lo:hi].astype(np.int64)
        wall_ms = gpus * (state.window_s * 1_000)
        jitter = np.exp(rng.normal(0.0, LOAD_JITTER, hi - lo))
        held = np.where(application != IDLE, state.busy[lo:hi], 0.0)
        load = np.zeros(hi - lo)
        # The host that holds its job back works all the time; the others wait for it.
        pace = state.inventory.pace[lo:hi].astype(np.float64)
        working = np.minimum(state.speed[lo:hi] / pace, 1.0)
        groups, kernel_ms = [], []
        for hosts, place, kind in _grouped(application, model):
            table = self._tables.get(place, kind)
            load[hosts] = np.minimum(held[hosts] * table.busy * jitter[hosts], 1.0)
            busy_ms = load[hosts] * wall_ms[hosts]
            groups.append((hosts, table, place))
            kernel_ms.append(_kernel_ms(table, busy_ms, working[hosts], rng))
        return _Drawn(state, lo, hi, gpus, model, wall_ms, load, tuple(groups), tuple(kernel_ms))

    def _row(self, section: Section, drawn: _Drawn, row: Rows, rng: np.random.Generator) -> None:
        by_activity = self._fill.get(section.name)
        if by_activity is not None:
            by_activity(section, drawn, row)
        elif section.kind is SectionKind.MEAN:
            own = row[:, : section.axis_cells]
            own[:] = draw_means(section, drawn.load, rng)
            if section.name == "host_network":  # full scale is the fastest link
                links = drawn.state.inventory.link_gbit[drawn.lo : drawn.hi, None]
                own *= np.minimum(links, FULL_LINK_GBIT)
                own //= FULL_LINK_GBIT
        elif section.name in _EVENTS:
            classes = section.axis_cells
            row[:, :classes] = unpack(_event_words(section.name, drawn), classes)
        elif section.bins is not None and section.sample_period_s:
            samples = drawn.gpus * max(drawn.state.window_s // section.sample_period_s, 1)
            row[:] = draw_samples(section, drawn.load, samples, rng)

    def _kernel_mix(self, section: Section, drawn: _Drawn, row: Rows) -> None:
        first = section.index(f"gpu_time/{self._families[0]}")
        self._partition(drawn, row, np.full(len(row), first), section.index("idle"))

    def _kernel_mix_by_model(self, section: Section, drawn: _Drawn, row: Rows) -> None:
        stride = section.length // self._model_places
        family = section.index(f"{self._models[0]}/gpu_time/{self._families[0]}")
        idle = section.index(f"{self._models[0]}/idle")
        self._partition(drawn, row, drawn.model * stride + family, drawn.model * stride + idle)

    def _partition(self, drawn: _Drawn, row: Rows, family: Rows, idle: Rows | int) -> None:
        """Fill a partition of wall time by family: work in its cells, the rest is idle."""
        rest = drawn.wall_ms.copy()
        for (hosts, table, _), kernel_ms in zip(drawn.groups, drawn.kernel_ms, strict=True):
            worked = (kernel_ms @ table.family.shares).astype(np.int64)  # exact below 2^53
            row[hosts[:, None], family[hosts][:, None] + table.family.cells] = worked
            rest[hosts] -= worked.sum(axis=1)
        row[np.arange(len(row)), idle] = rest

    def _application_mix(self, section: Section, drawn: _Drawn, row: Rows) -> None:
        rest = drawn.wall_ms.copy()
        for (hosts, _, place), kernel_ms in zip(drawn.groups, drawn.kernel_ms, strict=True):
            worked = kernel_ms.sum(axis=1).astype(np.int64)
            row[hosts, self._cells[place]] = worked
            rest[hosts] -= worked
        row[:, section.index("idle")] = rest

    def _durations(self, _section: Section, drawn: _Drawn, row: Rows) -> None:
        _histogram(drawn, row, [table.duration for _, table, _ in drawn.groups])

    def _copy_sizes(self, _section: Section, drawn: _Drawn, row: Rows) -> None:
        _histogram(drawn, row, [table.copy_size for _, table, _ in drawn.groups])

    def _leave_out(
        self, section: Section, spec: SectionSpec, row: Rows, coin: Rows, drawn: _Drawn
    ) -> None:
        """Hosts that did not measure: they say so, or have all of their wall time unmeasured."""
        skipped = np.flatnonzero(coin >= spec.rate_millionths)
        if not skipped.size:
            return
        row[skipped] = 0
        if section.counts_unmeasured:
            row[skipped, section.index(UNMEASURED)] = spec.unmeasured
        if spec.kind is SectionKind.MIX and section.name in self._fill:
            cell, stride = UNMEASURED, 0
            if "gpu_model" in section.axes:
                cell, stride = (
                    f"{self._models[0]}/{UNMEASURED}",
                    section.length // self._model_places,
                )
            places = drawn.model[skipped] * stride + section.index(cell)
            row[skipped, places] = drawn.wall_ms[skipped]


def _grouped(application: Rows, model: Rows) -> Iterator[tuple[Rows, int, int]]:
    """Give the hosts (ascending) of each pair of application and GPU model, idle ones left out."""
    key = application * 256 + model
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=key.min() - 1 if len(key) else 0))
    for first, last in zip(edges, [*edges[1:], len(key)], strict=True):
        place, kind = divmod(int(key[order[first]]), 256)
        if place >= 0:
            yield order[first:last], place, kind


def _kernel_ms(
    table: KernelTable, busy_ms: Floats, working: Floats, rng: np.random.Generator
) -> Floats:
    """Draw float[hosts, kernels] of whole ms that sum to at most busy_ms.

    working     share of the busy time that a host does not wait for others in its exchange
    """
    shape = (len(busy_ms), len(table.shares))
    mix = np.exp(rng.standard_normal(shape, dtype=np.float32) * np.float32(MIX_JITTER))
    weights = mix.astype(np.float64) * table.shares
    weights *= (working / weights.sum(axis=1))[:, None]
    if table.exchange >= 0:
        weights[:, table.exchange] += 1.0 - working
    np.cumsum(weights, axis=1, out=weights)
    weights *= busy_ms[:, None]
    # The last sum may pass busy_ms by a rounding error; whole ms must not.
    reached: Floats = np.floor(np.minimum(weights, np.floor(busy_ms)[:, None]))
    reached[:, 1:] -= reached[:, :-1].copy()
    return reached


def _histogram(drawn: _Drawn, row: Rows, landings: list[Landing | None]) -> None:
    for (hosts, _, _), kernel_ms, landing in zip(
        drawn.groups, drawn.kernel_ms, landings, strict=True
    ):
        if landing is not None and landing.cells.size:
            row[hosts[:, None], landing.cells] = np.floor(kernel_ms @ landing.shares + 1e-6)


def _event_words(name: str, drawn: _Drawn) -> NDArray[np.uint64]:
    state, part = drawn.state, slice(drawn.lo, drawn.hi)
    if name == "applications_seen":
        return state.seen[part]
    return (state.incidents if name == "incidents" else state.hardware)[part, None]
