"""Unknown spikes of recordings: found to be grouped, a group in words, named ones to be taught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.channels import CHANNELS, Channel
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.features import CAP, FEATURE_INDEX
from diagnosis.detect.findings import Cause, Diagnosis
from diagnosis.detect.model import Model
from diagnosis.frames.frame import Frame
from edge_agent.local.diagnosis_words import sentence

from .groups import SpikeGroup, SpikeMember
from .method_port import Example

Vector = NDArray[np.float64]
CAUSES = {str(cause): cause for cause in Cause if cause is not Cause.UNKNOWN}


@dataclass(frozen=True, slots=True, eq=False)
class UnknownSpike:
    """A diagnosed spike: what was said of it last, and the mean of its seconds' vectors."""

    member: SpikeMember
    cause: Cause
    vector: Vector


def spikes_of(recording: str, frames: Iterable[Frame], model: Model | None) -> list[UnknownSpike]:
    """Find the spikes of a recording as an agent with this model would."""
    diagnoser = Diagnoser(model=model)
    began_ns: int | None = None
    causes: dict[SpikeMember, Cause] = {}
    vectors: dict[SpikeMember, list[Vector]] = defaultdict(list)
    for frame in frames:
        if began_ns is None:
            began_ns = frame.boottime_ns - frame.span_ns
        for finding in diagnoser.handle(frame):
            if isinstance(finding, Diagnosis):
                at_s = (finding.onset_ns - began_ns) / 1e9
                member = SpikeMember(recording, finding.subject, finding.onset_ns, at_s)
                causes[member] = finding.cause
                if finding.subject in diagnoser.vectors:
                    vectors[member].append(diagnoser.vectors[finding.subject].copy())
    return [
        UnknownSpike(member, cause, _mean(vectors[member]))
        for member, cause in causes.items()
        if vectors[member]
    ]


def _mean(vectors: Sequence[Vector]) -> Vector:
    table = np.stack(list(vectors))
    known = np.isfinite(table)
    sums = np.where(known, table, 0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), np.nan)


def unknown(spikes: Iterable[UnknownSpike]) -> list[UnknownSpike]:
    """Give those that were put down to nothing known."""
    return [spike for spike in spikes if spike.cause is Cause.UNKNOWN]


def examples_of(groups: Iterable[SpikeGroup], spikes: Iterable[UnknownSpike]) -> list[Example]:
    """Turn spikes of groups that a person named after a cause into examples of that cause."""
    named = {
        member: CAUSES[group.name]
        for group in groups
        if group.named and group.name in CAUSES
        for member in group.members
    }
    return [
        Example(spike.member.recording, spike.member.onset_ns, named[spike.member], spike.vector)
        for spike in spikes
        if spike.member in named
    ]


def kept_as_groups(groups: Iterable[SpikeGroup]) -> list[SpikeGroup]:
    """Give the groups that stay groups: those that are not named after a cause."""
    return [group for group in groups if not (group.named and group.name in CAUSES)]


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
    deviations = np.array([group.mean[FEATURE_INDEX[f"{channel.name}.z"]] for channel in CHANNELS])
    order = np.argsort(-np.abs(deviations), kind="stable")[:most]
    found = [_stray(group, CHANNELS[place], float(deviations[place])) for place in order.tolist()]
    return [stray for stray in found if abs(stray.spreads) >= LEAST_SPREADS]


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
        f"{member.recording}{_when(member.at_s)}, {member.subject}"
        for member in group.members[:MOST_MEMBERS]
    ]
    more = len(group.members) - len(lines)
    return [*lines, f"and {more} more in the file"] if more > 0 else lines


def _when(at_s: float) -> str:
    return "" if np.isnan(at_s) else f" at {at_s:.0f} s"
