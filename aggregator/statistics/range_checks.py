"""Which sums honest hosts can have at all: a release outside of them is a lie, and is suppressed.

Only the released vector is read, its noise included, and what both parties know: the task, the
number of accepted hosts, their GPUs. So whether a window passes tells nothing that its release does
not tell. A lie that stays within what honest hosts could have sent passes: docs/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.released import Capacity
from privacy.calibrate import SIGMA_UNIT
from wire.catalogue import MS_PER_S, Catalogue, Section
from wire.rejection import Reason, ReportRejected
from wire.task import CHECK_WORDS, SectionSpec, Task

from .statistics import gpus_of, is_partition, model_groups, reserved_cells

FALSE_SUPPRESSION: Final = 1e-9
"""At most so many sums of honest hosts are refused, by all tests of a sum together.

A window is looked at once by itself, and once in each of its periods.
"""

OTHER_MODEL: Final = "other"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of some words of a section, without noise: low .. high, steps.

    words   int64[k], places in the vector
    """

    section: str
    words: NDArray[np.int64]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SumRanges:
    """What n accepted hosts can sum to, and how far noise may carry it beyond.

    high        float64[d], steps: most that each word can be; no word is below 0
    deviation   float64[d], steps: standard deviation of each word's noise
    places      section -> where it lies
    """

    n: int
    high: Floats
    deviation: Floats
    places: dict[str, slice]
    totals: tuple[Total, ...]

    @property
    def tail(self) -> float:
        """ln(tests / FALSE_SUPPRESSION): each test fails honest hosts with exp(-tail) at most."""
        words = len(self.high) - CHECK_WORDS
        # Both ends of each word and total; of each section all words, and those that stay empty.
        tests = 2 * words + 2 * len(self.totals) + 2 * len(self.places)
        return log(tests / FALSE_SUPPRESSION)

    @property
    def reach(self) -> float:
        """Standard deviations of noise that a word or total may lie beyond its range.

        Each host's discrete Gaussian is sub-Gaussian with its own sigma (Canonne, Kamath, Steinke
        2020), so a sum of them passes z deviations with probability exp(-z^2 / 2) at most.
        """
        return sqrt(2 * self.tail)

    def reach_sq(self, words: int) -> float:
        """Most that the squares of so many words' noise may sum to, in squared deviations.

        Source      Hsu, Kakade, Zhang 2012, theorem 2.1
        """
        return words + 2 * sqrt(words * self.tail) + 2 * self.tail

    def check(self, vector: NDArray[np.int64]) -> None:
        """Refuse a vector that honest hosts do not send.

        vector      int64[d], steps, check words included
        Raises      ReportRejected (impossible_sum), which names a section and no number
        """
        steps = vector.astype(np.float64)
        outside = np.maximum(np.maximum(steps - self.high, -steps), 0.0)
        outside[:CHECK_WORDS] = 0.0
        outside /= np.maximum(self.deviation, 1e-9)
        for section, place in self.places.items():
            beyond = outside[place]
            empty = beyond[self.high[place] == 0]
            self._need((beyond <= self.reach).all(), section, "a word beyond its range")
            nothing = float(empty @ empty) <= self.reach_sq(len(empty))
            self._need(nothing, section, "more than noise where nothing can be")
            together = float(beyond @ beyond) <= self.reach_sq(len(beyond))
            self._need(together, section, "words beyond their ranges together")
        for total in self.totals:
            found = float(steps[total.words].sum())
            noise = self.reach * sqrt(float((self.deviation[total.words] ** 2).sum()))
            fits = total.low - noise <= found <= total.high + noise
            self._need(fits, total.section, "a total beyond its range")

    def _need(self, holds: object, section: str, what: str) -> None:
        if not holds:
            expected = f"what {self.n} hosts can sum to in {section}"
            raise ReportRejected(Reason.IMPOSSIBLE_SUM, expected, what)


class SumRules:
    def __init__(self, catalogue: Catalogue | None = None) -> None:
        """Take the catalogue that says which places have no class yet.

        It counts for tasks of this catalogue or the one before; others are held to their own
        bounds alone.
        """
        self._catalogue = catalogue

    def of(self, task: Task, n: int, capacity: Capacity | None = None) -> SumRanges:
        """Give the ranges of one window, or of the sum of equal windows.

        n           accepted hosts, over all the windows
        capacity    their GPUs by the roster; without it wall time is not held against it
        """
        high = np.full(task.d, float(n))
        totals: list[Total] = []
        places = task.slices()
        known = self._catalogue and self._catalogue.named(task.catalogue_hash)
        for spec, place in zip(task.sections, places.values(), strict=True):
            words = np.arange(place.start, place.stop)
            high[words] = float(n * spec.cap_steps)
            totals.append(Total(spec.name, words, 0.0, float(n * spec.bound_steps)))
            if known is None:
                continue
            section = known.section(spec.name)
            if capacity is not None and is_partition(section):
                for wall in _wall_times(section, spec, words, n, capacity, task.window_s):
                    high[wall.words] = np.minimum(high[wall.words], wall.high)
                    totals.append(wall)
            high[words[list(reserved_cells(section))]] = 0.0
        deviation = task.sigma_vector_1024() / SIGMA_UNIT * sqrt(n)
        return SumRanges(n, high, deviation, places, tuple(totals))


def _wall_times(
    section: Section,
    spec: SectionSpec,
    words: NDArray[np.int64],
    n: int,
    capacity: Capacity,
    window_s: int,
) -> Iterable[Total]:
    """Every GPU's wall time is in one cell or another of its partition: the roster says how much.

    Rounding moves the total of each host by less than a step. A host above the section's bound is
    scaled down, so where there may be one the total has no lower end. GPUs that were enrolled as of
    another model than the catalogue had by then may have got a class of their own since.
    """
    groups = np.array(model_groups(section))
    named = dict.fromkeys(groups.tolist())
    later = gpus_of(capacity, section, OTHER_MODEL) if OTHER_MODEL in named else 0
    clipped = not 0 < capacity.largest * window_s * MS_PER_S <= spec.l1_bound
    gpu_steps = window_s * MS_PER_S / spec.q
    for group in named:
        own = gpus_of(capacity, section, group)
        most, least = (own, 0) if group == OTHER_MODEL else (own + later, own)
        low = 0.0 if clipped else max(least * gpu_steps - min(n, least), 0.0)
        yield Total(spec.name, words[groups == group], low, most * gpu_steps + min(n, most))
