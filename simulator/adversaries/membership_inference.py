"""An attacker who infers what one host ran, against the bound that epsilon gives.

It has every byte of the broker, one aggregator's view, and data and noise of t hosts; it asks by
the likelihood ratio of two Gaussians, which no test beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.statistics.ratios import Coverage, coverage
from privacy.calibrate import SIGMA_UNIT
from privacy.masks import mask_into, tag_and_nonce
from privacy.noise_table import TableSampler
from simulator.engine.blocks import OsStream
from wire.fields import ReportId
from wire.report import ReportHeader
from wire.task import CHECK_WORDS, Task

_CHUNK: Final = 20_000
_LARGEST_TABLE: Final = 1 << 27
"""Widest noise that the table sampler draws, 1/1024 steps."""

_APART: Final = 64
"""Windows of a longer series are drawn as one sum."""

_MILLION: Final = 1_000_000
_SURE: Final = 1 - 2e-6


@dataclass(frozen=True, slots=True)
class MembershipInference:
    """How often an attacker is right about one host.

    choices         equally likely cases; blind is 1 / choices
    right           guesses that were right, with exact binomial bounds (99 %)
    bound           of the advantage, by the plan's epsilon and delta
    tight_bound     by the exact Gaussian trade-off, which is what the noise truly gives
    """

    attack: str
    choices: int
    trials: int
    right: Coverage
    bound: float
    tight_bound: float

    @property
    def advantage(self) -> float:
        """Of the measured rate: 0 is blind, 1 is certain. Of two cases: 2 x rate - 1."""
        return _advantage(self.right.rate, self.choices)

    @property
    def holds(self) -> bool:
        """Whether the measured advantage is consistent with both bounds, at one in a million.

        The best attack is as good as the tight bound: 99 % would fail one of 200 sound runs.
        """
        sure = coverage(self.right.hits, self.right.trials, _SURE)
        return _advantage(sure.low, self.choices) <= min(self.bound, self.tight_bound)


def _advantage(rate: float, choices: int) -> float:
    return (rate - 1 / choices) / (1 - 1 / choices)


def epsilon_bound(epsilon: float, delta: float, choices: int = 2) -> float:
    """Most advantage at guessing between equally likely cases that are (epsilon, delta) apart."""
    right = exp(epsilon) / (exp(epsilon) + choices - 1) + delta
    return min(_advantage(right, choices), 1.0)


def gaussian_bound(mu: float, choices: int = 2) -> float:
    """The same of a mu-GDP mechanism: of two cases 2 Phi(mu / 2) - 1.

    Of more, each is mu apart from a host that reported zeros, and guesses of all cases share that
    host's probability 1: right <= Phi(Phi^-1(1 / choices) + mu).
    """
    normal = NormalDist()
    if choices == 2:
        return 2 * normal.cdf(mu / 2) - 1
    return _advantage(normal.cdf(normal.inv_cdf(1 / choices) + mu), choices)


def worked_steps(task: Task) -> NDArray[np.int64]:
    """Return int64[d - 2] of a host at the bound of every section: as far from zeros as may be."""
    steps = np.zeros(task.d - CHECK_WORDS, dtype=np.int64)
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        at, left = place.start - CHECK_WORDS, spec.l1_bound // spec.q
        while left > 0 and at < place.stop - CHECK_WORDS:
            steps[at] = min(left, spec.cap_steps)
            left, at = left - int(steps[at]), at + 1
    return steps


def infer_working(
    tasks: Sequence[Task], trials: int, windows: int | None = None
) -> MembershipInference:
    """Infer whether a host worked at its bounds through a week, or reported nothing but zeros.

    tasks       whose releases of any 168 hours the attacker has
    trials      even; half with a host that worked, each with fresh noise of the n_min - t honest
                hosts that a release has at the least, drawn as one sum
    windows     of each task, at most; None: all of a week. More than 64 are drawn as one sum
    """
    statistic = np.zeros(trials)
    worked = np.arange(trials) % 2 == 0
    mean = 0.0
    for task in tasks:
        touched = _touched(task) if windows is None else min(windows, _touched(task))
        value = worked_steps(task)
        told = np.flatnonzero(value)
        sigma = task.sigma_vector_1024()[CHECK_WORDS:][told] / SIGMA_UNIT * sqrt(task.h)
        weight = value[told] / sigma**2
        power = float((value[told] * weight).sum()) * touched
        statistic += _noise(sigma, touched, trials) @ weight + worked * power
        mean += power
    right = int((worked == (statistic > mean / 2)).sum())
    mu = _mu(tasks) if windows is None else sqrt(mean)
    name = "likelihood ratio" + (" of a week" if windows is None else f", {windows} windows")
    return _inference(name, 2, tasks[0], (right, trials), mu)


def infer_application(tasks: Sequence[Task], applications: int, trials: int) -> MembershipInference:
    """Infer which of so many applications a host ran all week, alone and at its bounds."""
    case = np.arange(trials) % applications
    statistic = np.zeros((trials, applications))
    for task in tasks:
        for spec in task.sections:
            if spec.name not in {"application_mix", "applications_seen"}:
                continue
            sigma = spec.sigma_1024 / SIGMA_UNIT * sqrt(task.h)
            weight, windows = spec.cap_steps / sigma**2, _touched(task)
            noise = _noise(np.full(applications, sigma), windows, trials)
            statistic += noise * weight
            statistic[np.arange(trials), case] += spec.cap_steps * weight * windows
    right = int((statistic.argmax(axis=1) == case).sum())
    return _inference("application of a week", applications, tasks[0], (right, trials), _mu(tasks))


def _mu(tasks: Sequence[Task]) -> float:
    return tasks[0].mu_1e9 / 1e9


def _inference(
    attack: str, choices: int, task: Task, hits: tuple[int, int], mu: float
) -> MembershipInference:
    bound = epsilon_bound(task.epsilon_millionths / _MILLION, task.delta_1e12 / 1e12, choices)
    right, trials = hits
    rate = coverage(right, trials)
    return MembershipInference(attack, choices, trials, rate, bound, gaussian_bound(mu, choices))


def _noise(sigma: NDArray[np.float64], windows: int, trials: int) -> NDArray[np.float64]:
    """Draw float64[trials, cells]: the sum of the honest hosts' noise over all windows."""
    found = np.zeros((trials, len(sigma)))
    apart = windows if windows <= _APART else 1
    wide = sigma * sqrt(windows / apart)
    scale = np.rint(wide * SIGMA_UNIT).astype(np.int64)
    if scale.max() > _LARGEST_TABLE:
        # A discrete Gaussian as wide as this differs from a normal distribution by nothing.
        return np.random.default_rng().normal(0.0, wide * sqrt(apart), (trials, len(sigma)))
    sampler = TableSampler(OsStream())
    for _ in range(apart):
        for lo in range(0, trials, _CHUNK):
            part = found[lo : lo + _CHUNK]
            part += sampler.sample(len(part), scale)
    return found


def _touched(task: Task) -> int:
    windows = (task.last_window - task.first_window) // task.window_s + 1
    return min(-(-604_800 // task.window_s) + 1, windows)


def infer_without_mask(task: Task, trials: int, seed: int = 0) -> MembershipInference:
    """Infer from one masked vector and no mask: what a Leader, or a broker that leaks to it, has.

    Without the Helper's key the mask is a one-time pad, so the bound is zero.
    """
    rng = np.random.default_rng(seed)
    value = worked_steps(task).astype(np.uint32)
    mask = np.empty(task.d, dtype=np.uint32)
    right = 0
    for trial in range(trials):
        worked = trial % 2 == 0
        key = rng.bytes(64)
        header = ReportHeader(0, task.d, task.first_window, ReportId(rng.bytes(16))).encode()
        mask_into(key[:32], tag_and_nonce(key[32:], header)[1], mask)
        words = mask[CHECK_WORDS:] + (value if worked else 0)
        told = value > 0
        # Read as a signed number a worked cell lies higher by its steps, were it not for the mask.
        score = float(words.view(np.int32)[told].astype(np.float64).sum())
        right += int(worked == (score > value[told].astype(np.float64).sum() / 2))
    return MembershipInference("masked vector alone", 2, trials, coverage(right, trials), 0.0, 0.0)
