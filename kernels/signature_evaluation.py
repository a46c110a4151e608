"""How well signatures tell applications apart: always on profiles that were not learned from.

A profile is asked about with itself and every rank of its own job taken out, so a trace is never
split over both sides. For unknown applications its whole class is taken out, and the right answer
is `unknown`. The threshold is set anew from what is left, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb, isnan

import numpy as np

from .families import UNKNOWN_APPLICATION
from .kernel_mix import OPERATION_WEIGHT, KernelMix, MixMeasure, MixRow
from .signatures import Match, Signature, Signatures, ranking
from .wilson import wilson_interval


@dataclass(frozen=True, slots=True)
class Rate:
    """Hits of trials with the 95 % Wilson interval; None and (0, 1) without trials."""

    hits: int
    trials: int

    @property
    def share(self) -> float | None:
        return self.hits / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.hits, self.trials)


@dataclass(frozen=True, slots=True)
class SignatureEvaluation:
    """What held-out profiles say.

    nearest          the nearest profile is of the right class; `unknown` is no answer here
    answered         the answer, with `unknown` allowed, is the right class
    false_accepts    a profile of a class never learned was given some class
    auroc            a known profile lies nearer than one of an unknown class
    by_candidates    (classes to choose from, accuracy averaged over every choice of the others)
    """

    measure: MixMeasure
    by: str
    nearest: Rate
    answered: Rate
    false_accepts: Rate
    auroc: float | None
    by_candidates: tuple[tuple[int, float], ...]


_Perturb = Callable[[Signature], Signature]


def evaluate(
    profiles: Sequence[Signature],
    measure: MixMeasure,
    by_job: bool = True,
    perturb: _Perturb | None = None,
    weight: float = OPERATION_WEIGHT,
) -> SignatureEvaluation:
    """Ask about every profile with what was learned from the others.

    by_job      take out all ranks of the profile's job, not itself alone
    perturb     makes a variant: changes the profile that is asked about, never what was learned
    weight      of operations beside families in a distance
    """
    asked = [(p, (perturb(p) if perturb else p).mix(measure)) for p in profiles]
    closed = [(p, mix, _without(profiles, p, by_job)) for p, mix in asked]
    closed = [(p, mix, left) for p, mix, left in closed if _has(left, p.application)]
    known = [(p, _match(mix, left, weight)) for p, mix, left in closed]
    strangers = [
        _match(mix, [o for o in profiles if o.application != p.application], weight)
        for p, mix in asked
    ]
    return SignatureEvaluation(
        measure=measure,
        by="job" if by_job else "trace",
        nearest=_rate(match.nearest == p.application for p, match in known),
        answered=_rate(match.application == p.application for p, match in known),
        false_accepts=_rate(match.application != UNKNOWN_APPLICATION for match in strangers),
        auroc=auroc([m.distance for _, m in known], [m.distance for m in strangers]),
        by_candidates=tuple(_by_candidates(closed, weight)),
    )


def resampled(launches: int, seed: int) -> _Perturb:
    """Make a variant: what a window of so many launches of the same program would show."""

    def vary(profile: Signature) -> Signature:
        rng = np.random.default_rng([seed, *profile.name.encode()])
        shares = np.array([row.launches for row in profile.rows])
        counts = rng.multinomial(launches, shares / shares.sum()).tolist()
        drawn = (_scaled(row, n) for row, n in zip(profile.rows, counts, strict=True))
        return replace(profile, rows=tuple(drawn))

    return vary


def jittered(sigma: float, seed: int) -> _Perturb:
    """Make a variant: each operation's share is multiplied by a log-normal factor."""

    def vary(profile: Signature) -> Signature:
        rng = np.random.default_rng([seed, *profile.name.encode()])
        factors = rng.lognormal(0.0, sigma, len(profile.rows)).tolist()
        scaled = (
            _scaled(row, row.launches * f) for row, f in zip(profile.rows, factors, strict=True)
        )
        return replace(profile, rows=tuple(scaled))

    return vary


def auroc(near: Sequence[float], far: Sequence[float]) -> float | None:
    """Chance that one of `near` is below one of `far`, ties half; None without pairs.

    Raises      ValueError for a distance that is NaN, which is neither near nor far
    """
    if any(isnan(value) for value in (*near, *far)):
        raise ValueError("expected distances that are numbers, got NaN")
    if not near or not far:
        return None
    wins = sum((a < b) + 0.5 * (a == b) for a in near for b in far)
    return float(wins / (len(near) * len(far)))


def _scaled(row: MixRow, launches: float) -> MixRow:
    factor = launches / row.launches if row.launches else 0.0
    time = None if row.gpu_time is None else row.gpu_time * factor
    return MixRow(row.operation, row.family, launches, time)


def _match(mix: KernelMix, left: Sequence[Signature], weight: float) -> Match:
    return Signatures.train(left, weight).nearest(mix)


def _without(profiles: Sequence[Signature], profile: Signature, by_job: bool) -> list[Signature]:
    if by_job:
        return [other for other in profiles if other.job != profile.job]
    return [other for other in profiles if other.name != profile.name]


def _has(profiles: Iterable[Signature], application: str) -> bool:
    return any(profile.application == application for profile in profiles)


def _rate(hits: Iterable[bool]) -> Rate:
    found = list(hits)
    return Rate(sum(found), len(found))


def _by_candidates(
    closed: Sequence[tuple[Signature, KernelMix, list[Signature]]], weight: float
) -> Iterable[tuple[int, float]]:
    """Average, over every choice of other classes, whether the right class is nearest.

    The right class beats a choice when all chosen classes lie farther, so it is enough to count
    the classes that lie farther: C(farther, c - 1) of C(others, c - 1) choices.
    """
    if not closed:
        return
    scores: list[tuple[int, int]] = []
    for profile, mix, left in closed:
        own = 2.0
        nearest_of: dict[str, float] = {}
        for far, other in ranking(mix, left, weight):
            if other.application == profile.application:
                own = min(own, far)
            else:
                nearest_of.setdefault(other.application, far)
        scores.append((sum(far > own for far in nearest_of.values()), len(nearest_of)))
    most = min(others for _, others in scores)
    for chosen in range(1, most + 1):
        wins = [comb(farther, chosen) / comb(others, chosen) for farther, others in scores]
        yield chosen + 1, sum(wins) / len(wins)
