"""Spikes of recordings: the unknown ones to be grouped, and named ones to be taught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Cause, Diagnosis
from diagnosis.detect.model import Model
from diagnosis.frames.frame import Frame

from .groups import SpikeGroup, SpikeMember
from .methods.method_port import Example

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
        for one in diagnoser.handle(frame):
            if isinstance(one, Diagnosis):
                at_s = (one.onset_ns - began_ns) / 1e9
                member = SpikeMember(recording, one.subject, one.onset_ns, at_s)
                causes[member] = one.cause
                if one.subject in diagnoser.vectors:
                    vectors[member].append(diagnoser.vectors[one.subject].copy())
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
    return [one for one in spikes if one.cause is Cause.UNKNOWN]


def examples_of(groups: Iterable[SpikeGroup], spikes: Iterable[UnknownSpike]) -> list[Example]:
    """Turn spikes of groups that a person named after a cause into examples of that cause."""
    named = {
        member: CAUSES[group.name]
        for group in groups
        if group.named and group.name in CAUSES
        for member in group.members
    }
    return [
        Example(one.member.recording, one.member.onset_ns, named[one.member], one.vector)
        for one in spikes
        if one.member in named
    ]


def kept_as_groups(groups: Iterable[SpikeGroup]) -> list[SpikeGroup]:
    """Give the groups that stay groups: those that are not named after a cause."""
    return [group for group in groups if not (group.named and group.name in CAUSES)]
