"""The learned model: a data file evaluated by numpy alone, and causes ranked by it or by rules.

The format is described in docs/diagnosis.md; model_file.py reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .channels import Floats
from .findings import Cause
from .model_parts import Distance, ModelPart
from .rules import CAUSES, UNKNOWN, RuleVerdict

_FOREIGN: Final = 0.5
"""Belief that the hand rules must put in causes foreign to the model before it is passed over."""


@dataclass(frozen=True, slots=True)
class CauseJudgement:
    """What is believed of one vector.

    beliefs   float64[CAUSES], sum to 1; `unknown` is among them
    unlike    how far it is from everything the model knows, 0..1
    rejected  whether that, or too little belief in any cause, makes it `unknown`
    group     name of the group of unknowns that it lies in, or ""
    """

    beliefs: Floats
    unlike: float
    rejected: bool
    group: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OpenSet:
    """Where knowledge ends.

    knots             float64[n, 2], ascending: distance to `unlike`, straight between
    limit             `unlike` above which a cause is `unknown`
    least_confidence  belief below which it is as well
    """

    distance: Distance
    knots: Floats
    limit: float
    least_confidence: float

    def unlike(self, x: Floats) -> float:
        """Give 0..1."""
        return float(np.interp(self.distance.of(x), self.knots[:, 0], self.knots[:, 1]))


@dataclass(frozen=True, slots=True, eq=False)
class NamedSpikes:
    """Unknown spikes that are alike, under a name that a person gave or a number."""

    name: str
    mean: Floats
    scale: Floats
    limit: float

    def distance(self, x: Floats) -> float:
        """Root mean square distance in scales."""
        away = (x - self.mean) / self.scale
        return float(np.sqrt((away * away).mean()))


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One model file.

    places       int64[features] into FEATURE_NAMES; fill: what stands for a missing one
    add_mask     whether a 1.0 or 0.0 for each feature follows: was it measured
    classes      int64[classes] into CAUSES
    rules_weight weight of the hand rules among the parts
    runs         names of the recorded runs that taught it; none where the file names none
    """

    name: str
    version: str
    hash: str
    places: NDArray[np.int64]
    fill: Floats
    add_mask: bool
    classes: NDArray[np.int64]
    parts: tuple[ModelPart, ...]
    rules_weight: float
    temperature: float
    open_set: OpenSet | None
    groups: tuple[NamedSpikes, ...]
    runs: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Name, version and the first digits of the hash."""
        return f"{self.name} {self.version} {self.hash[:12]}"

    def inputs(self, vector: Floats) -> tuple[Floats, Floats]:
        """Give what the parts read, and the features alone, both without NaN."""
        chosen = vector[self.places]
        known = chosen == chosen  # noqa: PLR0124
        filled = np.where(known, chosen, self.fill)
        masked = np.concatenate((filled, known.astype(np.float64))) if self.add_mask else filled
        return masked, filled

    def judge(self, vector: Floats, rules: RuleVerdict) -> CauseJudgement:
        """Judge float64[FEATURE_NAMES]; `rules` is what the hand rules say of it."""
        x, features = self.inputs(vector)
        beliefs = np.zeros(len(CAUSES))
        beliefs[self.classes] = self._believed(x, rules)
        foreign = _foreign_share(rules, self.classes)
        if foreign > _FOREIGN:
            return CauseJudgement(rules.beliefs, 0.0, False)
        unlike, least = 0.0, 0.0
        if self.open_set is not None:
            unlike, least = self.open_set.unlike(features), self.open_set.least_confidence
            rejected = unlike > self.open_set.limit
        else:
            rejected = False
        rejected = rejected or bool(beliefs.max() < least) or int(beliefs.argmax()) == UNKNOWN
        return CauseJudgement(beliefs, unlike, rejected, self._group(features) if rejected else "")

    def _believed(self, x: Floats, rules: RuleVerdict) -> Floats:
        total = self.rules_weight
        mixed = self.rules_weight * _among(rules.beliefs, self.classes)
        for part in self.parts:
            mixed = mixed + part.weight * part.probabilities(x)
            total += part.weight
        cooled = (mixed / total) ** (1 / self.temperature)
        return np.asarray(cooled / cooled.sum())

    def _group(self, features: Floats) -> str:
        near = [(group.distance(features) / group.limit, group.name) for group in self.groups]
        nearest = min(near, default=(2.0, ""))
        return nearest[1] if nearest[0] <= 1 else ""


def _among(beliefs: Floats, classes: NDArray[np.int64]) -> Floats:
    chosen = beliefs[classes]
    return np.asarray(chosen / chosen.sum())


def _foreign_share(rules: RuleVerdict, classes: NDArray[np.int64]) -> float:
    """Belief of the hand rules in causes that the model never saw."""
    foreign = np.ones(len(CAUSES), dtype=bool)
    foreign[classes] = False
    foreign[UNKNOWN] = False
    return float(rules.beliefs[foreign].sum())


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
