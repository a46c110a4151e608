"""Hand rules: how strongly the signals of each cause speak, 0..1, from a vector of features.

A cause has telling signals, others that must not be silent (`needs`), and causes that explain it
away: memory pressure also makes disks busy, a quota also makes tasks wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from transport.settings.config import read_tree

from .baseline import Floats
from .features import FEATURE_INDEX
from .findings import Cause


@dataclass(frozen=True, slots=True)
class FeatureTest:
    """One feature that tells of a cause; the head of `rules.toml` says what each key is."""

    feature: str
    low: float = 2.3
    high: float = 5.0
    weight: float = 1.0
    sign: float = 1.0

    @property
    def channel(self) -> str:
        """The channel it is of; `lag`, `share` or `step` features give their own name."""
        return self.feature.removesuffix(".z").removesuffix(".r")


@dataclass(frozen=True, slots=True)
class CauseRule:
    """Signals of one cause, and the causes that explain it away.

    tells       the loudest counts, each further adds a share of what is left
    excused_by  causes that take so much of this one's strength away when at their loudest
    """

    cause: Cause
    tells: tuple[FeatureTest, ...]
    needs: tuple[tuple[FeatureTest, ...], ...] = ()
    excused_by: Mapping[Cause, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RuleTable:
    rule: tuple[CauseRule, ...]


@cache
def hand_rules() -> tuple[CauseRule, ...]:
    """Give the rules of rules.toml, in its order."""
    return read_tree(_RuleTable, Path(__file__).with_name("rules.toml")).rule


RULES_TITLE: Final = "hand rules 1"
"""What diagnoses name as their model."""
CAUSES: Final = tuple(Cause)
UNKNOWN: Final = CAUSES.index(Cause.UNKNOWN)
_FURTHER: Final = 0.3
"""Share of what is left that each further telling signal adds."""
_SHARPNESS: Final = 6.0
_UNKNOWN_AT: Final = 0.3
"""Strength of the strongest cause at which `unknown` is believed as much."""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """Strengths and beliefs, both float64[CAUSES]; beliefs sum to 1."""

    strengths: Floats
    beliefs: Floats

    @property
    def strongest(self) -> float:
        return float(self.strengths.max())


def judge(vector: Floats) -> RuleVerdict:
    """Weigh all causes by the hand rules; `vector` is float64[FEATURE_NAMES]."""
    own = [(rule, _alone(rule.tells, rule.needs, vector)) for rule in hand_rules()]
    alone = dict.fromkeys(Cause, 0.0)
    for rule, strength in own:
        alone[rule.cause] = max(alone[rule.cause], strength)
    strengths = np.zeros(len(CAUSES))
    for rule, strength in own:
        left = strength
        for cause, share in rule.excused_by.items():
            left *= 1 - share * alone[cause]
        place = CAUSES.index(rule.cause)
        strengths[place] = max(strengths[place], left)
    loudness = strengths.copy()
    loudness[UNKNOWN] = _UNKNOWN_AT
    believed = np.exp(_SHARPNESS * loudness)
    # What nothing tells of is hardly possible.
    believed[strengths == 0] *= np.exp(-_SHARPNESS * 0.5)
    believed[UNKNOWN] = np.exp(_SHARPNESS * _UNKNOWN_AT)
    return RuleVerdict(strengths, believed / believed.sum())


def _alone(
    tells: tuple[FeatureTest, ...], needs: tuple[tuple[FeatureTest, ...], ...], vector: Floats
) -> float:
    heard = sorted((strength_of(tell, vector) for tell in tells), reverse=True)
    strength = heard[0]
    for further in heard[1:]:
        strength += _FURTHER * further * (1 - strength)
    for group in needs:
        measured = [tell for tell in group if not np.isnan(vector[FEATURE_INDEX[tell.feature]])]
        if measured:
            strength = min(strength, max(strength_of(tell, vector) for tell in measured))
    return strength


def strength_of(tell: FeatureTest, vector: Floats) -> float:
    """Give how loud one signal is, 0..weight; 0 where it is missing."""
    value = tell.sign * vector[FEATURE_INDEX[tell.feature]]
    if not value > tell.low:
        return 0.0
    return float(tell.weight * min(1.0, (value - tell.low) / (tell.high - tell.low)))


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a spike is put down to.

    ranked   every cause with its share of belief, largest first; they sum to 1
    unlike   how far the spike is from everything that the rules know, 0..1
    """

    ranked: tuple[tuple[Cause, float], ...]
    unlike: float

    @property
    def cause(self) -> Cause:
        return self.ranked[0][0]


def rank(verdict: RuleVerdict) -> Ranking:
    """Rank all causes by the beliefs of the rules; `unknown` leads clearly or not at all."""
    unlike = float(1 - min(1.0, verdict.strongest))
    beliefs = verdict.beliefs.copy()
    if int(beliefs.argmax()) == UNKNOWN:
        # What is left of the known causes shrinks until `unknown` leads.
        lead = max(unlike, float(beliefs[UNKNOWN]), 0.5)
        beliefs[UNKNOWN] = 0.0
        rest = beliefs.sum()
        beliefs *= (1 - lead) / rest if rest > 0 else 0.0
        beliefs[UNKNOWN] = 1 - beliefs.sum()
    order = np.argsort(-beliefs, kind="stable")
    return Ranking(tuple((CAUSES[place], float(beliefs[place])) for place in order), unlike)
