"""The agent's own diagnoser, with hand rules or with a learned model, on its own detector."""

from __future__ import annotations

from collections.abc import Sequence

from diagnosis.detect.model import Model
from pointillist.teaching.account import Account
from pointillist.teaching.prepare import account_with

from .method_port import Prepared


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
