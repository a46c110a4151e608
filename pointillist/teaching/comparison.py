"""Methods on the same recordings: all of them with one split, and one judged by runs left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.features import FEATURE_GROUPS, FEATURE_NAMES
from diagnosis.detect.findings import Cause

from .figures import accuracy, all_pairs, auroc, host_part, macro_f1, single
from .learning import CLOSED, KINDS
from .lessons import TooFewExamples
from .method_port import Method, Prepared
from .methods.deviations import Deviations, LaggedCorrelation
from .methods.learned import HandRules, Learned
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
    scores = [_open_set_score(kind, open_set, train) for open_set in named]
    told = [score for score in scores if not np.isnan(score)]
    return named[scores.index(max(told))] if told else named[0]


def _open_set_score(kind: str, open_set: str, train: Sequence[Prepared]) -> float:
    """Mean area over causes left out; the known are judged by runs that were left out as well."""
    areas = [_area_without(cause, kind, open_set, train) for cause in _causes(train)]
    told = [area for area in areas if not np.isnan(area)]
    return float(np.mean(told)) if told else float("nan")


def _causes(train: Sequence[Prepared]) -> list[Cause]:
    taught = {example.cause for run in train for example in run.examples}
    return [cause for cause in Cause if cause in taught]


def _area_without(cause: Cause, kind: str, open_set: str, train: Sequence[Prepared]) -> float:
    strange = [run for run in train if any(example.cause is cause for example in run.examples)]
    known = [run for run in train if run.examples and run not in strange]
    taught, asked = known[::2], known[1::2]
    method = Learned(kind, open_set)
    try:
        method.fit(taught)
    except (TooFewExamples, ValueError):
        return float("nan")
    return auroc(_unlike(method, strange), _unlike(method, asked))


def _unlike(method: Learned, runs: Iterable[Prepared]) -> NDArray[np.float64]:
    found = [method.unlike(example.vector) for run in runs for example in run.examples]
    return np.array(found, np.float64)


def held_out_for(judged: Iterable[Judged], divided: Split, why: Why) -> list[Judged]:
    """Those that a rule held out."""
    return [run for run in judged if why in divided.held_out.get(run.run, frozenset())]


MOST_FOLDS: Final = 12
"""With more runs than that, several are left out at a time."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Figures of the same runs; NaN where nothing could be taught without them.

    macro_f1, accuracy   of the model, each run judged by one that was taught without it
    rules_...            of the hand rules
    runs, faults         how many were judged; faults with impact
    single               causes with one run alone, which judges nothing
    """

    macro_f1: float
    accuracy: float
    rules_macro_f1: float
    rules_accuracy: float
    runs: int
    faults: int
    single: tuple[str, ...]

    @property
    def rules_are_better(self) -> bool:
        """Whether an agent is better off without the model."""
        return not self.macro_f1 > self.rules_macro_f1


def left_out(
    runs: Sequence[Prepared], kind: str, open_set: str, tell: Callable[[str], None]
) -> LeftOut:
    """Judge teaching runs by models that were taught without them, and by the hand rules.

    No held-out run is looked at. A model speaks by the hand rules of causes that it was never
    taught, so a cause's only run would judge these, and is left aside.
    """
    alone = single_causes(runs)
    able = sorted(
        (run for run in runs if not _taught_causes(run) & set(alone)),
        key=lambda run: sorted(_taught_causes(run)),
    )
    # By cause, dealt out in turn: no fold takes all runs of a cause.
    folds = [able[first::MOST_FOLDS] for first in range(min(MOST_FOLDS, len(able)))]
    judged: list[Judged] = []
    by_rules: list[Judged] = []
    for number, fold in enumerate(folds, 1):
        tell(f"judging by runs left out: {number} of {len(folds)}")
        names = {run.name for run in fold}
        method = Learned(kind, open_set)
        try:
            method.fit([run for run in runs if run.name not in names])
        except TooFewExamples:
            continue
        judged += judged_by(method, fold)
        by_rules += judged_by(HandRules(), fold)
    pairs, rules = (all_pairs(told) for told in (judged, by_rules))
    return LeftOut(
        macro_f1(pairs), accuracy(pairs), macro_f1(rules), accuracy(rules), len(judged),
        len(single(judged)), alone,
    )  # fmt: skip


def single_causes(runs: Sequence[Prepared]) -> tuple[str, ...]:
    """Name the causes that one run alone teaches."""
    taught = Counter(cause for run in runs for cause in _taught_causes(run))
    return tuple(sorted(cause for cause, count in taught.items() if count == 1))


def _taught_causes(run: Prepared) -> set[str]:
    return {str(example.cause) for example in run.examples}
