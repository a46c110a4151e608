"""What a compared method is: taught by training runs, it gives an account of any run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.findings import Cause
from pointillist.teaching.account import Account, Said
from pointillist.teaching.fault_episodes import Episode
from pointillist.teaching.recorded_runs import RecordedRun
from pointillist.teaching.tracks import Track

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A feature vector of one second under a fault whose cause is known."""

    run: str
    at_ns: int
    cause: Cause
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A second of a spike of the shipped detector, and the features it was last judged by."""

    subject: str
    onset_ns: int
    at_ns: int
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A run after one pass over its frames; every method reads this.

    rules      account of the shipped detector with hand rules
    seen       its spikes, second by second
    examples   labelled vectors of the run's faults, where one fault is there alone
    """

    run: RecordedRun
    episodes: tuple[Episode, ...]
    tracks: tuple[Track, ...]
    rules: Account
    seen: tuple[Seen, ...]
    examples: tuple[Example, ...]
    rhythm: bool

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.facts.name


class Method(Protocol):
    """One way to find spikes and their causes."""

    name: str

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn thresholds and whatever else from training runs."""

    def account(self, run: Prepared) -> Account:
        """Say what happened in a run, each second from the seconds before it alone."""


def said_from(ranked: Sequence[tuple[Cause, float]], at_ns: int, unlike: float) -> Said:
    """Make a word out of causes by belief, largest first."""
    cause = ranked[0][0] if ranked else Cause.UNKNOWN
    second = ranked[1][0] if len(ranked) > 1 else None
    return Said(at_ns, cause, second, unlike)
