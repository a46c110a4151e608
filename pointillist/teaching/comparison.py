"""All methods on the same recordings with the same split, and what is lost without each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.features import FEATURE_GROUPS, FEATURE_NAMES
from diagnosis.detect.findings import Cause

from .figures import all_pairs, auroc, host_part, macro_f1
from .learning import CLOSED, KINDS, TooFewExamples
from .methods.deviations import Deviations, LaggedCorrelation
from .methods.learned import HandRules, Learned
from .methods.method_port import Method, Prepared
from .methods.normality import Components, FittedMixture, Unlikeness
from .outcomes import Judged, judge
from .splits import Split, Why


@dataclass(frozen=True, slots=True)
class MethodScores:
    """A method's judged held-out runs; `skipped` says why there are none."""

    name: str
    judged: tuple[Judged, ...] = ()
    skipped: str = ""


def all_methods(open_set: str) -> list[Method]:
    """Every compared method, the simple ones first."""
    simple: list[Method] = [
        Deviations(robust=False),
        Deviations(robust=True),
        Unlikeness(FittedMixture()),
        Unlikeness(Components()),
        LaggedCorrelation(),
        HandRules(),
    ]
    closed = [Learned(kind, CLOSED, name=f"{kind}, closed set") for kind in ("logistic", "forest")]
    return [*simple, *(Learned(kind, open_set) for kind in KINDS), *closed]


def compare(
    methods: Iterable[Method],
    runs: Sequence[Prepared],
    divided: Split,
    rhythm: Sequence[Prepared] = (),
) -> list[MethodScores]:
    """Teach each method with the training runs and judge it on the others.

    rhythm  the same runs by their rhythm alone, which learned models are taught too, as by `teach`
    """
    taught = set(divided.train)
    train = [run for run in runs if run.name in taught]
    more = [run for run in rhythm if run.name in taught]
    held_out = [run for run in runs if run.name in divided.held_out]
    return [
        _compared(method, [*train, *more] if isinstance(method, Learned) else train, held_out)
        for method in methods
    ]


def _compared(
    method: Method, train: Sequence[Prepared], held_out: Sequence[Prepared]
) -> MethodScores:
    try:
        method.fit(train)
    except (TooFewExamples, ValueError) as error:
        return MethodScores(method.name, skipped=str(error))
    return MethodScores(method.name, tuple(judged_by(method, held_out)))


def judged_by(method: Method, runs: Iterable[Prepared]) -> list[Judged]:
    """Let a method that was taught speak of runs, and judge what it says."""
    return [judge(run.run, run.episodes, method.account(run)) for run in runs]


@dataclass(frozen=True, slots=True)
class Ablated:
    """Macro-F1 on held-out runs without a group of signals, and with it alone; NaN: impossible."""

    group: str
    without: float
    alone: float


Without = Callable[[Callable[[str], bool]], Method]
"""Makes a method that sees only features of some names."""


def ablation(without: Without, runs: Sequence[Prepared], divided: Split) -> list[Ablated]:
    """Let a method speak without each group of features, and with that group alone."""

    def score(keep: Callable[[str], bool]) -> float:
        found = compare([without(keep)], runs, divided)[0]
        pairs = all_pairs(host_part(found.judged))
        return float("nan") if found.skipped else macro_f1(pairs)

    group_of = dict(zip(FEATURE_NAMES, FEATURE_GROUPS, strict=True))

    def ablated(group: str) -> Ablated:
        return Ablated(
            group,
            score(lambda name: group_of[name] != group),
            score(lambda name: group_of[name] == group),
        )

    return [ablated(group) for group in dict.fromkeys(FEATURE_GROUPS)]


def choose_open_set(kind: str, kinds: Iterable[str], train: Sequence[Prepared]) -> str:
    """Choose how to tell the unknown, by training runs alone: each cause plays the unknown in turn.

    Returns     the one of `kinds` with the largest mean area under the curve; the first where none
                can be told
    """
    named = list(kinds)
    scores = [_open_set_score(kind, one, train) for one in named]
    told = [score for score in scores if not np.isnan(score)]
    return named[scores.index(max(told))] if told else named[0]


def _open_set_score(kind: str, open_set: str, train: Sequence[Prepared]) -> float:
    """Mean area over causes left out; the known are judged by runs that were left out as well."""
    areas = [_area_without(cause, kind, open_set, train) for cause in _causes(train)]
    told = [area for area in areas if not np.isnan(area)]
    return float(np.mean(told)) if told else float("nan")


def _causes(train: Sequence[Prepared]) -> list[Cause]:
    taught = {one.cause for run in train for one in run.examples}
    return [cause for cause in Cause if cause in taught]


def _area_without(cause: Cause, kind: str, open_set: str, train: Sequence[Prepared]) -> float:
    strange = [run for run in train if any(one.cause is cause for one in run.examples)]
    known = [run for run in train if run.examples and run not in strange]
    taught, asked = known[::2], known[1::2]
    method = Learned(kind, open_set)
    try:
        method.fit(taught)
    except (TooFewExamples, ValueError):
        return float("nan")
    return auroc(_unlike(method, strange), _unlike(method, asked))


def _unlike(method: Learned, runs: Iterable[Prepared]) -> NDArray[np.float64]:
    found = [method.unlike(one.vector) for run in runs for one in run.examples]
    return np.array(found, np.float64)


def held_out_for(judged: Iterable[Judged], divided: Split, why: Why) -> list[Judged]:
    """Those that a rule held out."""
    return [run for run in judged if why in divided.held_out.get(run.run, frozenset())]
