"""How well a kind of model names the causes of runs that it was not taught, beside the hand rules.

Of teaching runs alone, so that a model can be judged without looking at those held out: each run is
judged by a model that was taught without it. A model speaks by the hand rules of causes that it was
never taught, so a cause's only run would judge these, and is left aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .comparison import judged_by
from .figures import accuracy, all_pairs, macro_f1, single
from .learning import TooFewExamples
from .methods.learned import HandRules, Learned
from .methods.method_port import Prepared
from .outcomes import Judged

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
    """Judge teaching runs by models that were taught without them, and by the hand rules."""
    alone = single_causes(runs)
    able = sorted(
        (run for run in runs if not _causes(run) & set(alone)), key=lambda one: sorted(_causes(one))
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
    taught = Counter(cause for run in runs for cause in _causes(run))
    return tuple(sorted(cause for cause, count in taught.items() if count == 1))


def _causes(run: Prepared) -> set[str]:
    return {str(one.cause) for one in run.examples}
