"""Ranked causes of one spike: the model's word, or the hand rules' where none is shipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from .channels import Floats
from .findings import Cause
from .model import CauseJudgement, Model
from .rules import CAUSES, UNKNOWN, RuleVerdict

RULES_TITLE: Final = "hand rules 1"


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a spike is put down to.

    ranked       every cause with its share of belief, largest first; they sum to 1
    confidence   of `cause`
    """

    cause: Cause
    confidence: float
    ranked: tuple[tuple[Cause, float], ...]
    unlike: float
    group: str
    model: str


def rank(vector: Floats, rules: RuleVerdict, model: Model | None) -> Ranking:
    """Rank all causes of float64[FEATURE_NAMES], of which the hand rules say `rules`."""
    if model is None:
        unlike = float(1 - min(1.0, rules.strongest))
        judged = CauseJudgement(rules.beliefs, unlike, int(rules.beliefs.argmax()) == UNKNOWN)
        return _ranking(judged, RULES_TITLE)
    return _ranking(model.judge(vector, rules), model.title)


def _ranking(judged: CauseJudgement, title: str) -> Ranking:
    beliefs = judged.beliefs.copy()
    if judged.rejected:
        # What is left of the known causes shrinks until `unknown` leads.
        top = float(np.delete(beliefs, UNKNOWN).max())
        lead = max(judged.unlike, top, float(beliefs[UNKNOWN]), 0.5)
        beliefs[UNKNOWN] = 0.0
        rest = beliefs.sum()
        beliefs *= (1 - lead) / rest if rest > 0 else 0.0
        beliefs[UNKNOWN] = 1 - beliefs.sum()
    order = np.argsort(-beliefs, kind="stable")
    ranked = tuple((CAUSES[place], float(beliefs[place])) for place in order)
    cause, confidence = ranked[0]
    return Ranking(cause, confidence, ranked, judged.unlike, judged.group, title)
