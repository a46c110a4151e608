"""What sets a group of unknown spikes apart, in words: so that a person can name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from diagnosis.detect.channels import CHANNELS, Channel
from diagnosis.detect.features import CAP, FEATURE_INDEX
from edge_agent.local.diagnosis_words import sentence

from .groups import SpikeGroup

MOST_SIGNALS: Final = 5
MOST_MEMBERS: Final = 6
LEAST_SPREADS: Final = 4.0
"""Nearer to usual than this is not worth a word."""
_PLAIN_RATIO: Final = 1.2


@dataclass(frozen=True, slots=True)
class Stray:
    """One signal of a group's middle.

    signal    "whose.name", as features are called
    spreads   how far from its usual value, signed; at the cap: at least that
    ratio     over its usual value
    words     the same for people
    """

    signal: str
    spreads: float
    ratio: float
    words: str


def strays(group: SpikeGroup, most: int = MOST_SIGNALS) -> list[Stray]:
    """Name the signals that are farthest from usual in a group, the farthest first."""
    deviations = np.array([group.mean[FEATURE_INDEX[f"{one.name}.z"]] for one in CHANNELS])
    order = np.argsort(-np.abs(deviations), kind="stable")[:most]
    found = [_stray(group, CHANNELS[place], float(deviations[place])) for place in order.tolist()]
    return [one for one in found if abs(one.spreads) >= LEAST_SPREADS]


def _stray(group: SpikeGroup, channel: Channel, octaves: float) -> Stray:
    spreads = float(np.sign(octaves) * (2 ** abs(octaves) - 1))
    ratio = float(2 ** group.mean[FEATURE_INDEX[f"{channel.name}.r"]])
    at_least = "over " if abs(octaves) >= CAP else ""
    if ratio >= _PLAIN_RATIO:
        how = f"{ratio:,.1f} times the usual"
    elif ratio <= 1 / _PLAIN_RATIO:
        how = f"{100 * ratio:.0f} % of the usual"
    else:
        how = "more than usual" if spreads > 0 else "less than usual"
    told = sentence(str(channel.place), channel.signal, how)
    words = f"{told} ({at_least}{abs(spreads):,.0f} spreads off)"
    return Stray(channel.name, round(spreads, 1), round(ratio, 3), words)


def steps_said(group: SpikeGroup) -> str:
    """Say how a group's steps changed."""
    told = [
        f"{name} {2 ** float(group.mean[FEATURE_INDEX[f'step.{name}']]):,.1f} times"
        for name in ("p50", "p99")
    ]
    return f"steps: {', '.join(told)} the usual"


def members_said(group: SpikeGroup) -> list[str]:
    """Say where and when a group's spikes were, a recording a line, the first few."""
    lines = [
        f"{one.recording}{_when(one.at_s)}, {one.subject}" for one in group.members[:MOST_MEMBERS]
    ]
    more = len(group.members) - len(lines)
    return [*lines, f"and {more} more in the file"] if more > 0 else lines


def _when(at_s: float) -> str:
    return "" if np.isnan(at_s) else f" at {at_s:.0f} s"
