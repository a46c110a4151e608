"""GMM (as eACGM uses it) and PCA: a spike where a second is unlike every calm one that was learned.

Both see the longest step and every channel, each measured by its own recent past, so that runs and
workloads compare. The limit is the score that one calm training second in a thousand passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from pointillist.teaching.account import Account, Spell
from pointillist.teaching.method_port import Prepared, Track, said_from
from pointillist.teaching.splits import SEED

from .deviations import deviations
from .spike_attribution import ranked, spells_of

Table = NDArray[np.float64]

CALM_QUANTILE: Final = 0.999
COMPONENTS: Final = range(1, 7)
EXPLAINED: Final = 0.95
LARGEST: Final = 8.0
FEWEST_SECONDS: Final = 30


class Normality(Protocol):
    """What calm seconds look like."""

    name: str

    def learn(self, calm: Table) -> None:
        """Take calm seconds, [n, columns]."""

    def residuals(self, rows: Table) -> Table:
        """Give how far each column strays from what was learned, [n, columns], squared spreads."""

    def scores(self, rows: Table) -> NDArray[np.float64]:
        """Give how unlike each second is, [n]."""


class FittedMixture:
    """Gaussian mixture of diagonal components; their number by the Bayesian criterion."""

    name = "GMM (eACGM)"

    def learn(self, calm: Table) -> None:
        """See `Normality.learn`."""
        fits = [_mixture(count).fit(calm) for count in COMPONENTS if count * 20 <= len(calm)]
        self._mixture: Any = min(fits, key=lambda fit: fit.bic(calm))

    def residuals(self, rows: Table) -> Table:
        """Distances to the component that explains the row best."""
        nearest = self._mixture.predict(rows)
        away = rows - self._mixture.means_[nearest]
        return np.asarray(away**2 / self._mixture.covariances_[nearest])

    def scores(self, rows: Table) -> NDArray[np.float64]:
        """Negative log densities."""
        return -np.asarray(self._mixture.score_samples(rows))


def _mixture(count: int) -> Any:
    return GaussianMixture(
        count, covariance_type="diag", reg_covar=1e-2, random_state=SEED, n_init=2
    )


class Components:
    """Principal components; what they cannot rebuild is the score (squared prediction error)."""

    name = "PCA"

    def learn(self, calm: Table) -> None:
        """See `Normality.learn`."""
        self._pca: Any = PCA(EXPLAINED, svd_solver="full").fit(calm)

    def residuals(self, rows: Table) -> Table:
        """Squared errors of the rebuilt rows."""
        return np.asarray((rows - self._pca.inverse_transform(self._pca.transform(rows))) ** 2)

    def scores(self, rows: Table) -> NDArray[np.float64]:
        """Their sums."""
        return np.asarray(self.residuals(rows).sum(axis=1))


class Unlikeness:
    """A method around a picture of normality."""

    def __init__(self, normality: Normality) -> None:
        self.name = normality.name
        self._normality = normality
        self._limit = float("inf")
        self._least = float("inf")

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn the calm seconds of training runs, and the limits that they set.

        Raises      ValueError when there are too few
        """
        tables = [_calm(track) for run in runs for track in run.tracks]
        calm = np.concatenate(tables) if tables else np.empty((0, 1))
        if len(calm) < FEWEST_SECONDS:
            told = f"expected {FEWEST_SECONDS} calm seconds, got {len(calm)}"
            raise ValueError(f"{self.name}: {told}")
        self._normality.learn(calm)
        self._limit = float(np.quantile(self._normality.scores(calm), CALM_QUANTILE))
        self._least = float(np.quantile(self._normality.residuals(calm)[:, 1:], CALM_QUANTILE))

    def account(self, run: Prepared) -> Account:
        """See `Method.account`."""
        return Account(tuple(spell for track in run.tracks for spell in self._spells(track)))

    def _spells(self, track: Track) -> list[Spell]:
        rows, told = _table(track)
        scores, residuals = self._normality.scores(rows), self._normality.residuals(rows)
        above = (scores > self._limit) & told
        unlike = scores / (scores + self._limit)
        return spells_of(
            track,
            above,
            lambda number: said_from(
                ranked(residuals[number, 1:], self._least),
                int(track.at_ns[number]),
                float(unlike[number]),
            ),
        )


def _table(track: Track) -> tuple[Table, NDArray[np.bool_]]:
    """Give each second's distances, and bool[n] of those that have a past to be measured by.

    Distances are squashed, so that one wild counter of training does not widen everything.
    """
    tail, signals = deviations(track, robust=True)
    table = np.nan_to_num(np.column_stack([tail, signals]))
    squashed = np.sign(table) * np.minimum(np.log2(1 + np.abs(table)), LARGEST)
    return np.asarray(squashed), ~np.isnan(tail)


def _calm(track: Track) -> Table:
    rows, told = _table(track)
    return np.asarray(rows[track.calm & told])
