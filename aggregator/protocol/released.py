"""What the Leader hands to the store: one released window, and nothing about any host in it.

Readers learn counts on a fixed grid alone: how many hosts reported, and the GPUs that they have. A
grid tells the bucket and nothing more, however many windows are seen. Random rounding, drawn anew
for each window, would average out over windows that nearly the same hosts reported in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, log2
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from wire.catalogue import UNMEASURED, Catalogue
from wire.task import CHECK_WORDS, DEMO_DOMAIN, Task

FEW_HOSTS: Final = 100
"""A GPU model of fewer hosts is told among all others: its presence is that of some few."""


def fewest_hosts(domain: str) -> int:
    """Between which nothing tells: one for a demo or trial, whose handful stays readable."""
    return 1 if domain == DEMO_DOMAIN else 10


def host_step(hosts: int, domain: str) -> int:
    """Give the step of the grid of host counts: 1, 2 or 5 times a power of ten, 1 % at least.

    hosts       n_min of the task, so that all its windows are on one grid
    """
    least = max(hosts / 100, fewest_hosts(domain))
    power = 1
    while 10 * power < least:
        power *= 10
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least)


def counts_are_coarse(task: Task) -> bool:
    return host_step(task.n_min, task.domain) > 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the roster says about the accepted hosts, so that shares of wall time can be told.

    gpus_by_model       GPU model index -> GPUs of the accepted hosts
    squares_by_model    GPU model index -> sum over the hosts of (their GPUs of this model)^2
    squares             sum over the hosts of (all their GPUs)^2; says how unequal they are
    largest             GPUs of the host that has most; 0 where that is not known
    """

    gpus_by_model: Mapping[int, int]
    squares_by_model: Mapping[int, int]
    squares: int
    largest: int = 0

    @property
    def gpus(self) -> int:
        return sum(self.gpus_by_model.values())

    @staticmethod
    def of(hosts: Iterable[tuple[tuple[int, int], ...]]) -> Capacity:
        """Add up the `gpu_models` (model index, GPUs) of the accepted hosts' roster entries.

        A fleet has few kinds of hosts, so kinds are counted first: 0.1 us a host instead of 6.
        """
        by_model: Counter[int] = Counter()
        squares_by_model: Counter[int] = Counter()
        squares = largest = 0
        for models, count in Counter(hosts).items():
            for model, gpus in models:
                by_model[model] += gpus * count
                squares_by_model[model] += gpus * gpus * count
            gpus_of_host = sum(gpus for _, gpus in models)
            squares += gpus_of_host**2 * count
            largest = max(largest, gpus_of_host)
        return Capacity(dict(by_model), dict(squares_by_model), squares, largest)

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(
            dict(Counter(self.gpus_by_model) + Counter(other.gpus_by_model)),
            dict(Counter(self.squares_by_model) + Counter(other.squares_by_model)),
            self.squares + other.squares,
            max(self.largest, other.largest) if self.largest and other.largest else 0,
        )


@dataclass(frozen=True, slots=True)
class CoarseCount:
    """A count that is within `bound` of the true one."""

    value: int
    bound: int

    @classmethod
    def on_grid(cls, count: int, step: int) -> CoarseCount:
        """Round to the nearest multiple; off by half a step at most."""
        half = step // 2
        return cls((count + half) // step * step, half)


@dataclass(frozen=True, slots=True)
class CoarseCapacity:
    """What readers learn of a `Capacity`.

    gpus        of all the hosts; what models have, and the GPUs of models of few hosts on top
    by_model    GPU model index -> its GPUs; models of few hosts are left out
    squares, squares_by_model   as in `Capacity`, the most that they can be
    few_gpus    the most that a model has which is left out
    """

    gpus: CoarseCount
    by_model: Mapping[int, CoarseCount]
    squares: float
    squares_by_model: Mapping[int, float]
    few_gpus: int


@dataclass(frozen=True, slots=True)
class CoarseCounts:
    """What readers learn of how many hosts are in a release."""

    hosts: CoarseCount
    capacity: CoarseCapacity | None

    @classmethod
    def of(cls, task: Task, n: int, capacity: Capacity | None = None) -> CoarseCounts:
        """Round the hosts of a window, and its GPUs for each host.

        Those hardly move where hosts come and go, so they are no second look at the number of
        hosts, and are rounded to what `fewest_hosts` have. Rounding sums over the models keeps
        their total as good as one of them.
        """
        step = host_step(task.n_min, task.domain)
        hosts = CoarseCount.on_grid(n, step)
        if capacity is None:
            return cls(hosts, None)
        few = 0 if task.domain == DEMO_DOMAIN else max(FEW_HOSTS, step)
        parts = max(task.n_min // fewest_hosts(task.domain), 1)
        return cls(hosts, _coarse_capacity(capacity, n, hosts, parts, few))


def _coarse_capacity(
    capacity: Capacity, n: int, hosts: CoarseCount, parts: int, few: int
) -> CoarseCapacity:
    """Round GPUs for each host to 1 / parts of what a host has, nearly.

    few     models of fewer hosts are not told apart
    """
    # GPUs of a host, by model: where few hosts have many, those of all hosts would tell each.
    of_host = {
        model: capacity.squares_by_model[model] / own
        for model, own in capacity.gpus_by_model.items()
        if own
    }
    told = [m for m, each in sorted(of_host.items()) if capacity.gpus_by_model[m] >= few * each]
    typical = 1 << round(log2(max(capacity.gpus / n, 1, *(of_host[model] for model in told))))
    left_out = max((each for model, each in of_host.items() if model not in told), default=1)
    most_few = few * max(typical, 1 << ceil(log2(left_out)))
    if not hosts.bound:
        exact = {model: CoarseCount(capacity.gpus_by_model[model], 0) for model in told}
        squares = {model: float(capacity.squares_by_model[model]) for model in told}
        total = CoarseCount(capacity.gpus, 0)
        return CoarseCapacity(total, exact, float(capacity.squares), squares, most_few)
    most = hosts.value + hosts.bound

    def units(gpus: int) -> int:
        """GPUs for each host, in units of typical / parts."""
        return (2 * gpus * parts + n * typical) // (2 * n * typical)

    def gpus_of(whole: int) -> int:
        return whole * hosts.value * typical // parts

    def bound(whole: int, off: float) -> int:
        """`off`: units that `whole` is off by; what they are rounded down to is 1 GPU off."""
        return int((off * most + whole * hosts.bound) * typical / parts) + 2

    def squares_of(exact: int) -> float:
        nearest = (2 * exact * parts + n * typical**2) // (2 * n * typical**2)
        return (nearest + 0.5) * typical**2 / parts * most

    summed = capacity.gpus - sum(capacity.gpus_by_model[model] for model in told)
    before, by_model = units(summed), {}
    for model in told:
        summed += capacity.gpus_by_model[model]
        whole = units(summed)
        own = gpus_of(whole) - gpus_of(before)
        by_model[model] = CoarseCount(own, bound(whole - before, 1.0))
        before = whole
    squares = {model: squares_of(capacity.squares_by_model[model]) for model in told}
    total = CoarseCount(gpus_of(before), bound(before, 0.5))
    return CoarseCapacity(total, by_model, squares_of(capacity.squares), squares, most_few)


@dataclass(frozen=True, slots=True)
class PublishedWindow:
    """One released window as the store keeps it: nothing in it tells how many hosts there were.

    vector      as of the release; its check words are the coarse number of hosts, from which the
                cells `unmeasured` are counted down to the hosts that measured
    rejections  reason -> reports refused, on the grid; reasons of fewer than half a step are out
    digest      SHA-256 of what was released: two that differ are two releases
    """

    task_id: bytes
    task: Task
    cohort: int
    window_start_s: int
    counts: CoarseCounts
    vector: npt.NDArray[np.int64]
    rejections: Mapping[str, int]
    released_s: float
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReleasedWindow:
    """One settled window of one cohort, free of host and report ids.

    window_start_s   int, unix seconds, a multiple of task.window_s
    n                accepted hosts, known to both aggregators
    vector           int64[task.d], steps, signed lift of the unmasked sum, check words at 0 and 1
    rejections       reason -> reports refused for this window, by the Leader and by the Helper
    closed_s         unix seconds at which the batch was closed
    released_s       unix seconds at which the vector was unmasked
    capacity         GPUs of the accepted hosts; without it shares divide by the section's own sum
    """

    task_id: bytes
    task: Task
    cohort: int
    window_start_s: int
    n: int
    vector: npt.NDArray[np.int64]
    rejections: Mapping[str, int]
    closed_s: float
    released_s: float
    capacity: Capacity | None = None

    def published(self, catalogue: Catalogue) -> PublishedWindow:
        """Make it coarse; the hosts that measured have noise of their own, and stay as they are."""
        counts = CoarseCounts.of(self.task, self.n, self.capacity)
        vector = self.vector.copy()
        vector[:CHECK_WORDS] = counts.hosts.value
        for spec, place in zip(self.task.sections, self.task.slices().values(), strict=True):
            section = catalogue.section_of(spec)
            if section.counts_unmeasured:
                hole = place.start + section.index(UNMEASURED)
                vector[hole] += (counts.hosts.value - self.n) * spec.cap_steps
        step = host_step(self.task.n_min, self.task.domain)
        refused = {
            reason: CoarseCount.on_grid(count, step).value
            for reason, count in self.rejections.items()
        }
        digest = sha256(self.n.to_bytes(8, "big") + self.vector.astype("<i8").tobytes()).digest()
        return PublishedWindow(
            *(self.task_id, self.task, self.cohort, self.window_start_s, counts, vector),
            {reason: count for reason, count in refused.items() if count},
            *(self.released_s, digest),
        )


@dataclass(frozen=True, slots=True)
class SuppressedWindow:
    """A window that ended without a release, and why.

    reason                      a `Reason` value
    hosts                       hosts that had reported
    window_s, version, n_min    of its task; None when the task is gone for good
    domain                      of its task, else empty
    settled_s                   unix seconds
    """

    series: str
    cohort: int
    window_start_s: int
    window_s: int | None
    version: int | None
    reason: str
    hosts: int
    n_min: int | None
    settled_s: float
    domain: str = ""

    def coarse_hosts(self) -> CoarseCount:
        """What readers learn of `hosts`; without the task, the step follows from them."""
        step = host_step(self.hosts if self.n_min is None else self.n_min, self.domain)
        return CoarseCount.on_grid(self.hosts, step)


class ReleaseStore(Protocol):
    """Where releases go; writing the same window twice changes nothing.

    Every method raises StorageUnavailable where the disk takes nothing now.
    """

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; idempotent on (task_id, cohort, window_start_s)."""

    def repair(self) -> int:
        """Complete what a crash left half done; says how much that was."""

    def suppress(self, window: SuppressedWindow) -> None:
        """Keep that a window ended without a release; idempotent."""

    def tidy(self, now_s: float) -> None:
        """Keep house, a little at each call: closed days are packed, what is too old goes."""
