"""The hosts of one process in blocks: their rows, noise and rounding, and the truth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from privacy.noise import NoiseSampler, OpenDpSampler
from privacy.noise_table import SeededBytes, SeededSampler, TableSampler
from simulator.fleet.fleet_rows import block_rng
from simulator.fleet.hosts import FleetState
from simulator.streams import philox
from wire.task import CHECK_WORDS, Task

from .interface import EngineSettings, Noise, RowSource


@dataclass(frozen=True, slots=True)
class Span:
    """Hosts lo .. hi - 1 of the fleet, block number `block`."""

    block: int
    lo: int
    hi: int


def spans(hosts: int, block_hosts: int, processes: int) -> list[tuple[Span, ...]]:
    """Divide a fleet's blocks among processes, as evenly as they go; none without a block."""
    starts = range(0, hosts, block_hosts)
    blocks = [Span(i, lo, min(lo + block_hosts, hosts)) for i, lo in enumerate(starts)]
    parts = min(processes, len(blocks))
    ends = [len(blocks) * part // parts for part in range(parts + 1)]
    return [tuple(blocks[a:b]) for a, b in pairwise(ends)]


@dataclass(slots=True)
class Drawn:
    """One block of one window.

    rows        int64[hosts, k]; valid until the next block is drawn
    present     bool[hosts], hosts that report; late: too late
    """

    span: Span
    rows: NDArray[np.int64]
    present: NDArray[np.bool_]
    late: NDArray[np.bool_]

    @property
    def reporting(self) -> NDArray[np.bool_]:
        return self.present & ~self.late


class BlockRows:
    def __init__(self, spans_: tuple[Span, ...], settings: EngineSettings) -> None:
        self._spans, self._settings = spans_, settings
        self._buffer = np.empty((0, 0), dtype=np.int64)
        self._rows: dict[str, RowSource] = {}

    def learn(self, series: str, rows: RowSource) -> None:
        self._rows[series] = rows

    def draw(self, task: Task, state: FleetState, truth: NDArray[np.int64]) -> Iterator[Drawn]:
        """Draw block after block; `truth` int64[k] grows by the rows of those that report."""
        source, width = self._rows[task.series], task.d - CHECK_WORDS
        size = self._settings.block_hosts
        if self._buffer.shape != (size, width):
            self._buffer = np.empty((size, width), dtype=np.int64)
        for span in self._spans:
            rng = block_rng(self._settings.seed, task.series, state.start_s, span.block)
            out = self._buffer[: span.hi - span.lo]
            rows = source.block(state, span.lo, span.hi, rng, out)
            part = slice(span.lo, span.hi)
            drawn = Drawn(span, rows, state.present[part], state.late[part])
            keep = drawn.reporting
            truth += (rows if keep.all() else rows[keep]).sum(axis=0)
            yield drawn


_CHUNK: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(_CHUNK))
_REKEY_BYTES: Final = 1 << 32


class OsStream:
    """AES-256-CTR under a key of the operating system, drawn anew every 4 GiB and in every process.

    10 GB/s where the operating system gives 0.4: the noise of 12,500 hosts takes 94 MB a window.
    """

    def __init__(self) -> None:
        self._left = 0
        self._process = -1

    def __call__(self, count: int) -> bytes:
        out = bytearray(count)
        view = memoryview(out)
        for at in range(0, count, _CHUNK):
            size = min(_CHUNK, count - at)
            if self._left < size or self._process != os.getpid():
                self._encryptor = Cipher(AES256(os.urandom(32)), CTR(bytes(16))).encryptor()
                self._left, self._process = _REKEY_BYTES, os.getpid()
            self._left -= size
            self._encryptor.update_into(_ZEROS[:size], view[at : at + size])
        # A buffer of its own as well; making it `bytes` would copy it, at the price of the cipher.
        return cast(bytes, out)


class NoNoise:
    """Draws zeros, so that what is released is the rounded truth; anybody can repeat it."""

    seeded = True

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros((hosts, sigma_1024.size), dtype=np.int64)


class BlockRandomness:
    """Noise and rounding of the block that was begun last; `lap` is told after each draw."""

    def __init__(
        self, settings: EngineSettings, lap: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings, self._lap = settings, lap
        self._os = OsStream()
        self._sampler: NoiseSampler
        self._rounding: Callable[[int], bytes] = self._os
        if settings.noise is Noise.OPENDP:
            self._sampler = OpenDpSampler()
        elif settings.noise is Noise.TABLE:
            self._sampler = TableSampler(self._os)
        else:
            self._sampler = NoNoise()

    @property
    def seeded(self) -> bool:
        return self._settings.noise in {Noise.SEEDED, Noise.NONE}

    def begin(self, series: str, window_start: int, block: int) -> None:
        """Go to the streams of one block; where nothing repeats, on with the same ones."""
        if not self.seeded:
            return
        seed, place = self._settings.seed, f"{series}/{window_start}/{block}"
        if self._settings.noise is Noise.SEEDED:
            self._sampler = SeededSampler(seed, f"noise/{place}")
        self._rounding = SeededBytes(seed, f"rounding/{place}")

    def rounding(self, count: int) -> bytes:
        return self._rounding(count)

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        self._lap("encode")
        noise = self._sampler.sample(hosts, sigma_1024)
        self._lap("noise")
        return noise


def summed_noise(
    settings: EngineSettings, series: str, window_start: int, sigma_1024: NDArray[np.int64], n: int
) -> NDArray[np.int64]:
    """Draw the noise that n hosts' shares sum to.

    A sum of discrete Gaussians of at least 2 steps is a discrete Gaussian up to 7.2e-17, and a
    rounded normal of the same variance is one up to exp(-2 pi^2 sigma^2 n): the simulation's
    choice, of no use to a real host. Rounding adds 1/12 to a variance, which is taken off before.
    """
    if settings.noise is Noise.NONE or n == 0:
        return np.zeros(sigma_1024.size, dtype=np.int64)
    if settings.noise is Noise.SEEDED:
        rng = philox(settings.seed, "summed-noise", series, window_start)
    else:
        rng = np.random.default_rng()
    variance = (sigma_1024 / 1024) ** 2 * n
    drawn = rng.standard_normal(sigma_1024.size) * np.sqrt(np.maximum(variance - 1 / 12, 0.0))
    return np.rint(drawn).astype(np.int64)
