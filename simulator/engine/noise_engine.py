"""The distribution alone: true rows clipped and rounded, plus noise of the summed distribution.

A row of equal windows is one sum. Its rows are drawn once and stand for each of its windows, so the
truth is exactly that many times theirs. Rounding is drawn once too; what it adds is scaled by the
root of their number, which gives every variance and covariance of as many independent roundings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.encode import encode_rows
from privacy.quantise import clip_rows, left_out_chance
from simulator.fleet.hosts import FleetState, HostInventory
from simulator.streams import philox
from wire.task import CHECK_WORDS, SectionKind, Task

from .blocks import Drawn, spans
from .crew import BlockHosts, CrewEngine
from .engine_port import EngineSettings, Noise, RowSource, WindowOutcome
from .randomness import summed_noise
from .task_rules import settled, summed


@dataclass(slots=True)
class Rounded:
    """What one process's hosts came to in one window, without noise.

    steps       int64[d], sum over the hosts that report in time
    exact       float64[d], what the steps' mean is: clipped rows over q; only where `windows` > 1
    """

    truth: NDArray[np.int64]
    steps: NDArray[np.int64]
    exact: NDArray[np.float64]
    stage_s: dict[str, float] = field(default_factory=dict)


class NoiseHosts(BlockHosts):
    """The hosts of one process, encoded and summed."""

    def window(self, task: Task, state: FleetState, windows: int) -> Rounded:
        """Clip, round and sum, block by block."""
        total = Rounded(
            np.zeros(task.d - CHECK_WORDS, dtype=np.int64),
            np.zeros(task.d, dtype=np.int64),
            np.zeros(task.d),
        )
        with self._lap:
            for drawn in self._rows.draw(task, state, total.truth):
                self._lap("rows")
                self._add(task, state.start_s, drawn, total, mean=windows > 1)
                self._lap("encode")
        total.stage_s = self._lap.take()
        return total

    def _add(self, task: Task, start_s: int, drawn: Drawn, total: Rounded, *, mean: bool) -> None:
        self._random.begin(task.series, start_s, drawn.span.block)
        present = drawn.present
        # Late hosts draw their rounding with the others: the streams stay those of `exact`.
        rows = drawn.rows if present.all() else drawn.rows[present]
        steps = encode_rows(task, rows, self._random.rounding)
        keep = ~drawn.late[present]
        whole = bool(keep.all())
        total.steps += (steps if whole else steps[keep]).sum(axis=0)
        if mean:
            total.exact += _mean_steps(task, rows if whole else rows[keep])


def _mean_steps(task: Task, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[d]: the sum over hosts of the mean of their steps.

    A host with more than m indicators set leaves out each as likely as it says that it left some.
    """
    mean = np.empty(task.d)
    mean[:CHECK_WORDS] = len(rows)
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        raw = rows[:, place.start - CHECK_WORDS : place.stop - CHECK_WORDS]
        if spec.kind is SectionKind.INDICATORS:
            chosen = raw[:, :-1] > 0
            left_out = left_out_chance(chosen.sum(axis=1), spec.m)
            told = np.append((1 - left_out) @ chosen, left_out.sum())
            mean[place] = spec.cap_steps * told
        else:
            clipped = clip_rows(raw, spec.coordinate_cap, spec.l1_bound)
            mean[place] = clipped.sum(axis=0) / spec.q
    return mean


class NoiseEngine(CrewEngine[NoiseHosts]):
    """`Fidelity` of the distribution alone."""

    name = "noise"

    def __init__(self, inventory: HostInventory, settings: EngineSettings) -> None:
        parts = spans(inventory.hosts, settings.block_hosts, settings.processes)
        self._settings = settings
        super().__init__([partial(NoiseHosts, part, settings) for part in parts])

    def window(
        self, task: Task, window_start: int, state: FleetState, rows: RowSource
    ) -> WindowOutcome:
        """See `Fidelity.window`."""
        return self.windows(task, window_start, state, rows, 1)

    def windows(
        self, task: Task, start: int, state: FleetState, rows: RowSource, windows: int
    ) -> WindowOutcome:
        """Play so many windows in a row as one sum; `state` is that of each of them."""
        found: list[Rounded] = self._call(task.series, rows, "window", task, state, windows)
        steps = summed([part.steps for part in found])
        exact = summed([part.exact for part in found])
        truth = summed([part.truth for part in found])
        n = int(np.count_nonzero(state.reporting))
        noise = summed_noise(
            self._settings, task.series, start, task.sigma_vector_1024(), n * windows
        )
        if windows > 1:
            steps = self._row_of(task, start, windows, steps, exact)
        stages = [part.stage_s for part in found]
        return settled(task, start, state, steps + noise, truth * windows, stages, windows)

    def _row_of(
        self,
        task: Task,
        start: int,
        windows: int,
        steps: NDArray[np.int64],
        exact: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Give the steps of so many windows from those of one, and from their mean."""
        seeded = self._settings.noise in {Noise.SEEDED, Noise.NONE}
        place = (task.series, start)
        rng = philox(self._settings.seed, "row", *place) if seeded else np.random.default_rng()
        many = windows * exact + np.sqrt(windows) * (steps - exact)
        # Down or up to a whole step by chance, so that the mean stays; check words are whole.
        return np.asarray(np.floor(many + rng.random(many.size)), dtype=np.int64)
