"""Two engines without seals and transport: `masked` with real noise and masks, `noise` without.

The key K_H, shared by an epoch's seal, is drawn here; what is derived from it is the parties' own.

In `noise` a row of equal windows is one sum. Its rows are drawn once, so the truth is that many
times theirs; rounding too, scaled by the root of their number, which gives every variance and
covariance of as many independent roundings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.protocol.epochs import EPOCH_PERIOD_S
from edge_agent.windows.encode import encode_rows
from privacy.masks import derive_helper_keys, mask_into, tag_and_nonce
from privacy.quantise import clip_rows, left_out_chance
from simulator.fleet.hosts import FleetState, HostInventory
from simulator.streams import philox
from wire.fields import ReportId
from wire.report import ReportHeader
from wire.task import CHECK_WORDS, SectionKind, Task

from .blocks import Drawn, Span, spans, summed_noise
from .interface import EngineSettings, Noise, RowSource, WindowOutcome
from .task_rules import merged, settled, summed
from .worker_pool import BlockHosts, PooledEngine

_KEY_BYTES: Final = 32
_ID_BYTES: Final = 16
COHORT: Final = 0

HelperKeys = tuple[bytes, bytes]
"""(k_mask, k_id) of one host, epoch and task."""


@dataclass(slots=True)
class Masked:
    """What one process's hosts came to in one window.

    vectors, masks  uint32[d]: sum of the masked vectors at the Leader, of the masks at the Helper
    """

    truth: NDArray[np.int64]
    vectors: NDArray[np.uint32]
    masks: NDArray[np.uint32]
    stage_s: dict[str, float] = field(default_factory=dict)


class MaskedHosts(BlockHosts):
    """The hosts of one process, and both parties' sums over them."""

    def __init__(self, spans_: tuple[Span, ...], settings: EngineSettings) -> None:
        super().__init__(spans_, settings)
        self._epochs: dict[tuple[str, int], tuple[int, list[HelperKeys]]] = {}

    def window(self, task: Task, state: FleetState) -> Masked:
        k, d = task.d - CHECK_WORDS, task.d
        total = Masked(
            np.zeros(k, dtype=np.int64), np.zeros(d, dtype=np.uint32), np.zeros(d, dtype=np.uint32)
        )
        with self._lap:
            for drawn in self._rows.draw(task, state, total.truth):
                self._lap("rows")
                self._add(task, state.start_s, drawn, total)
        total.stage_s = self._lap.take()
        return total

    def _add(self, task: Task, start_s: int, drawn: Drawn, total: Masked) -> None:
        noisy = self._noisy(task, start_s, drawn)
        in_time = np.flatnonzero(drawn.reporting)
        # A late host has encoded, and drawn its noise, as the others have: it is left out here.
        kept = noisy[~drawn.late[drawn.present]] if drawn.late.any() else noisy
        words = kept.astype("<u4")
        self._lap("encode")
        keys = self._keys(task, start_s, drawn.span)
        self._lap("derive_keys")
        ids = os.urandom(_ID_BYTES * len(in_time))
        head = ReportHeader(COHORT, task.d, start_s, ReportId(bytes(_ID_BYTES))).encode()[:32]
        headers = [head + ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES)]
        mask = np.empty_like(words)
        held = [keys[host] for host in in_time.tolist()]
        self._masks(held, headers, mask)
        self._lap("host.mask")
        words += mask
        total.vectors += words.sum(axis=0, dtype=np.uint32)
        self._lap("leader.sum")
        self._masks(held, headers, mask)
        self._lap("helper.mask")
        total.masks += mask.sum(axis=0, dtype=np.uint32)
        self._lap("helper.sum")

    def _noisy(self, task: Task, start_s: int, drawn: Drawn) -> NDArray[np.int64]:
        self._random.begin(task.series, start_s, drawn.span.block)
        present = drawn.present
        rows = drawn.rows if present.all() else drawn.rows[present]
        steps = encode_rows(task, rows, self._random.rounding)
        steps += self._random.sample(len(steps), task.sigma_vector_1024())
        return steps

    @staticmethod
    def _masks(
        keys: Sequence[HelperKeys], headers: Sequence[bytes], out: NDArray[np.uint32]
    ) -> None:
        for at, ((k_mask, k_id), header) in enumerate(zip(keys, headers, strict=True)):
            mask_into(k_mask, tag_and_nonce(k_id, header)[1], out[at])

    def _keys(self, task: Task, start_s: int, span: Span) -> list[HelperKeys]:
        """Give the derived keys of a block's hosts: new ones every hour, as epochs are."""
        hour = (start_s + task.window_s) // EPOCH_PERIOD_S
        known = self._epochs.get((task.series, span.block))
        if known is not None and known[0] == hour:
            return known[1]
        name = sha256(task.series.encode()).digest()  # stands for the task's id
        fresh = os.urandom(2 * _KEY_BYTES * (span.hi - span.lo))
        parts = [fresh[at : at + 64] for at in range(0, len(fresh), 64)]
        keys = [derive_helper_keys(part[:32], part[32:], name) for part in parts]
        self._epochs[task.series, span.block] = hour, keys
        return keys

    def close(self) -> None:
        self._epochs.clear()


class MaskedEngine(PooledEngine[MaskedHosts]):
    """Real noise and masks, without seals and transport."""

    def __init__(self, inventory: HostInventory, settings: EngineSettings) -> None:
        parts = spans(inventory.hosts, settings.block_hosts, settings.processes)
        super().__init__([partial(MaskedHosts, part, settings) for part in parts])

    def window(
        self, task: Task, window_start: int, state: FleetState, rows: RowSource
    ) -> WindowOutcome:
        found: list[Masked] = self._call(task.series, rows, "window", task, state)
        vectors = summed([part.vectors for part in found])
        masks = summed([part.masks for part in found])
        # The low 32 bits of a signed sum: lifted back, as the Leader does.
        released = (vectors - masks).view(np.int32).astype(np.int64)
        truth = summed([part.truth for part in found])
        return settled(task, window_start, state, released, truth, [part.stage_s for part in found])


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
    """Return float64[d]: the sum over hosts of the mean of their steps."""
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


class NoiseEngine(PooledEngine[NoiseHosts]):
    """The distribution alone."""

    def __init__(self, inventory: HostInventory, settings: EngineSettings) -> None:
        parts = spans(inventory.hosts, settings.block_hosts, settings.processes)
        self._settings = settings
        super().__init__([partial(NoiseHosts, part, settings) for part in parts])

    def window(
        self, task: Task, window_start: int, state: FleetState, rows: RowSource
    ) -> WindowOutcome:
        return self.windows(task, window_start, state, rows, 1)

    def windows(
        self, task: Task, start: int, state: FleetState, rows: RowSource, windows: int
    ) -> WindowOutcome:
        drawn = self._drawn(task, state, rows, windows)
        steps, n = drawn.steps, int(np.count_nonzero(state.reporting))
        noise = summed_noise(
            self._settings, task.series, start, task.sigma_vector_1024(), n * windows
        )
        if windows > 1:
            many = windows * drawn.exact + np.sqrt(windows) * (steps - drawn.exact)
            steps = self._whole_steps(task, start, many)
        truth, stages = drawn.truth * windows, [drawn.stage_s]
        return settled(task, start, state, steps + noise, truth, stages, windows)

    def apart(
        self, task: Task, start: int, state: FleetState, rows: RowSource, windows: int
    ) -> Iterator[WindowOutcome]:
        """Play so many windows in a row, each an outcome of its own.

        The rows of one stand for all, and so does the size of their rounding; sign and noise are
        each window's own, so variances of windows and their sums are those of windows apart.
        """
        drawn = self._drawn(task, state, rows, 2)
        sigma, n = task.sigma_vector_1024(), int(np.count_nonzero(state.reporting))
        for at in range(start, start + windows * task.window_s, task.window_s):
            noise = summed_noise(self._settings, task.series, at, sigma, n)
            sign = 1 if self._rng("sign", task, at).random() < 0.5 else -1
            steps = self._whole_steps(task, at, drawn.exact + sign * (drawn.steps - drawn.exact))
            yield settled(task, at, state, steps + noise, drawn.truth, [])

    def _drawn(self, task: Task, state: FleetState, rows: RowSource, windows: int) -> Rounded:
        """Draw one window of all hosts; with its steps' mean where it stands for several."""
        found: list[Rounded] = self._call(task.series, rows, "window", task, state, windows)
        return Rounded(
            summed([part.truth for part in found]),
            summed([part.steps for part in found]),
            summed([part.exact for part in found]),
            merged([part.stage_s for part in found]),
        )

    def _whole_steps(self, task: Task, start: int, steps: NDArray[np.float64]) -> NDArray[np.int64]:
        """Go down or up to a whole step by chance: the mean stays, and check words are whole."""
        chance = self._rng("row", task, start).random(steps.size)
        return np.asarray(np.floor(steps + chance), dtype=np.int64)

    def _rng(self, purpose: str, task: Task, start: int) -> np.random.Generator:
        if self._settings.noise in {Noise.SEEDED, Noise.NONE}:
            return philox(self._settings.seed, purpose, task.series, start)
        return np.random.default_rng()
