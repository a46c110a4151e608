"""The shipped detector's spikes, by hand rules and by learned models as their file holds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from diagnosis.detect.features import FEATURE_NAMES
from diagnosis.detect.findings import Cause
from diagnosis.detect.model import Model, rank
from diagnosis.detect.model_file import dump_model, parse_model
from diagnosis.detect.rules import judge
from pointillist.teaching.account import Account, Said, Spell
from pointillist.teaching.learning import learn
from pointillist.teaching.method_port import Example, Prepared, Seen, Vector
from pointillist.teaching.prepare import account_with


class Learned:
    """One kind of model, taught by the training runs' faults."""

    def __init__(
        self, kind: str, open_set: str = "knn", keep: Callable[[str], bool] = bool, name: str = ""
    ) -> None:
        self.name = name or kind
        self._kind, self._open_set, self._keep = kind, open_set, keep
        self._model: Model | None = None

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn from labelled seconds, and from those that the live detector saw.

        Raises      learning.TooFewExamples
        """
        document = learn(training_examples(runs), self._kind, self._open_set, self._keep)
        self._model = parse_model(dump_model(document))

    @property
    def model(self) -> Model:
        """The taught model. Raises ValueError before `fit`."""
        if self._model is None:
            raise ValueError(f"{self.name}: asked before it was taught")
        return self._model

    def account(self, run: Prepared) -> Account:
        """Let the model speak in place of the hand rules, second by second."""
        return rejudged(run, self.model)

    def unlike(self, vector: Vector) -> float:
        """How unlike everything taught a vector is, 0..1."""
        return float(rank(vector, judge(vector), self.model).unlike)


class Blinded:
    """The agent's rules, or a model as it is, that do not see some features: they are missing."""

    def __init__(self, model: Model | None, keep: Callable[[str], bool]) -> None:
        self.name = "blinded"
        self._model = model
        self._seen = np.array([keep(name) for name in FEATURE_NAMES])

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn nothing."""

    def account(self, run: Prepared) -> Account:
        """Let it speak of the same seconds with what it may see."""
        bare = [
            replace(second, vector=np.where(self._seen, second.vector, np.nan))
            for second in run.seen
        ]
        return rejudged(replace(run, seen=tuple(bare)), self._model)


def rejudged(run: Prepared, model: Model | None) -> Account:
    """Replace what was said of a run's spikes by what a model says of the same seconds.

    model   None: the hand rules

    Spikes, their ends and which are heavy enough for an incident are the detector's.
    """
    seen: dict[tuple[str, int], list[Seen]] = defaultdict(list)
    for second in run.seen:
        seen[second.subject, second.onset_ns].append(second)
    spells = [
        replace(spell, said=_said(spell, seen[spell.subject, spell.onset_ns], model))
        for spell in run.rules.spells
    ]
    return Account(tuple(spells), run.rules.warnings)


def _said(spell: Spell, seen: Sequence[Seen], model: Model | None) -> tuple[Said, ...]:
    return tuple(_word(spell, second, model) for second in seen)


def _word(spell: Spell, seen: Seen, model: Model | None) -> Said:
    found = rank(seen.vector, judge(seen.vector), model)
    stood = [said for said in spell.said if said.at_ns <= seen.at_ns]
    incident = bool(stood and stood[-1].incident)
    return Said(seen.at_ns, found.cause, found.ranked[1][0], found.unlike, incident)


def training_examples(runs: Sequence[Prepared]) -> list[Example]:
    """Gather labelled vectors of runs: of all seconds under impact, and of what was seen live."""
    return [example for run in runs for example in (*run.examples, *_live(run))]


def _live(run: Prepared) -> list[Example]:
    return [
        Example(run.name, second.at_ns, episode.causes[0], second.vector)
        for episode in run.episodes
        for second in run.seen
        if episode.onset_ns is not None
        and len(episode.causes) == 1
        and episode.causes[0] is not Cause.UNKNOWN
        and second.subject == episode.subject
        and episode.start_ns <= second.onset_ns
        and second.at_ns <= episode.end_ns
    ]


class HandRules:
    """What an agent says without a model."""

    name = "hand rules"

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn nothing."""

    def account(self, run: Prepared) -> Account:
        """Return what the pass over the frames already gave."""
        return run.rules


class Shipped:
    """What an agent says with a given model file."""

    def __init__(self, model: Model, name: str = "shipped model") -> None:
        self.name = name
        self._model = model

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn nothing: the file is what it is."""

    def account(self, run: Prepared) -> Account:
        """Play the run through the diagnoser anew."""
        return account_with(run.run, self._model, run.rhythm)
