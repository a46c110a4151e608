"""How unlike everything known a vector is: fitted on the known, never on the unknown.

Distances mean nothing by themselves. Each run is left out in turn: its distances to the rest are
those of a known fault in another run. `unlike` is their distribution, and its limit the share of
known seconds that are taken for known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.mixture import GaussianMixture

from .lessons import Lesson
from .splits import SEED

Table = NDArray[np.float64]

LIMIT: Final = 0.95
"""Of `unlike`: so many of a hundred known seconds of other runs lie below."""
KNOTS: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
POINTS: Final = 400
NEIGHBOURS: Final = 3
LEAST_SCALE: Final = 0.25
"""Features are in octaves: a quarter of one is noise, whatever the training runs show."""


def fit_open_set(taught: Lesson, kind: str) -> dict[str, Any]:
    """Fit one of KINDS, with its scale.

    Returns    the table `open_set` of a model's document
    """
    fitted = KINDS[kind](taught)
    distances = _left_out(taught, kind)
    return {**fitted, "knots": _knots(distances), "limit": LIMIT}


def distances_of(fitted: Mapping[str, Any], rows: Table) -> Table:
    """Distances of rows, [n], as the agent's NumPy evaluates them."""
    shifted = (rows - np.array(fitted["shift"])) / np.array(fitted["scale"])
    match fitted["kind"]:
        case "knn":
            points = np.array(fitted["points"])
            squares = (shifted**2).sum(1)[:, None] + (points**2).sum(1) - 2 * shifted @ points.T
            nearest = np.sort(np.sqrt(np.maximum(squares, 0)), axis=1)[:, : fitted["k"]]
            return np.asarray(nearest.mean(axis=1))
        case "mahalanobis":
            inner = shifted @ np.array(fitted["whiten"])
            means = np.array(fitted["mean"])
            away = np.sqrt(((inner[:, None, :] - means[None]) ** 2).sum(axis=2))
            return np.asarray(away.min(axis=1))
        case _:
            weights, means = np.array(fitted["weights"]), np.array(fitted["means"])
            spread = np.array(fitted["variances"])
            squares = (shifted[:, None, :] - means[None]) ** 2 / spread[None]
            logs = -0.5 * (squares + np.log(2 * np.pi * spread)[None]).sum(axis=2)
            return np.asarray(-logsumexp(logs + np.log(weights), axis=1))


def _scaled(taught: Lesson) -> tuple[Table, Table]:
    shift = np.average(taught.rows, axis=0, weights=taught.weights)
    spread = np.sqrt(np.average((taught.rows - shift) ** 2, axis=0, weights=taught.weights))
    return shift, np.maximum(spread, LEAST_SCALE)


def _knn(taught: Lesson) -> dict[str, Any]:
    """Seconds of training themselves, thinned evenly by run."""
    shift, scale = _scaled(taught)
    chosen = np.arange(len(taught.rows))
    if chosen.size > POINTS:
        chosen = np.random.default_rng(SEED).choice(
            chosen.size, POINTS, replace=False, p=taught.weights / taught.weights.sum()
        )
    points = (taught.rows[np.sort(chosen)] - shift) / scale
    return {
        "kind": "knn", "shift": _plain(shift), "scale": _plain(scale), "k": NEIGHBOURS,
        "points": np.round(points, 3).tolist(),
    }  # fmt: skip


def _mahalanobis(taught: Lesson) -> dict[str, Any]:
    """Class means in the space that classes share the spread of, shrunk (Ledoit and Wolf 2004)."""
    shift, scale = _scaled(taught)
    rows = (taught.rows - shift) / scale
    means = np.stack([
        np.average(rows[taught.causes == k], axis=0, weights=taught.weights[taught.causes == k])
        for k in np.unique(taught.causes)
    ])  # fmt: skip
    within = rows - means[np.searchsorted(np.unique(taught.causes), taught.causes)]
    values, axes = np.linalg.eigh(LedoitWolf().fit(within).covariance_)
    whiten = axes / np.sqrt(np.maximum(values, 1e-3))
    return {
        "kind": "mahalanobis", "shift": _plain(shift), "scale": _plain(scale),
        "whiten": np.round(whiten, 5).tolist(), "mean": _plain(means @ whiten),
    }  # fmt: skip


def _gmm(taught: Lesson) -> dict[str, Any]:
    shift, scale = _scaled(taught)
    rows = (taught.rows - shift) / scale
    least = max(2, len(np.unique(taught.causes)))
    most = max(least, min(3 * least, len(rows) // 20))
    fits = [
        GaussianMixture(n, covariance_type="diag", reg_covar=0.1, random_state=SEED).fit(rows)
        for n in {least, most}
    ]
    best: Any = min(fits, key=lambda fit: fit.bic(rows))
    return {
        "kind": "gmm", "shift": _plain(shift), "scale": _plain(scale),
        "weights": _plain(best.weights_), "means": _plain(best.means_),
        "variances": _plain(best.covariances_),
    }  # fmt: skip


def _plain(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 6).tolist()


KINDS: Final[Mapping[str, Callable[[Lesson], dict[str, Any]]]] = MappingProxyType(
    {"knn": _knn, "mahalanobis": _mahalanobis, "gmm": _gmm}
)


def _left_out(taught: Lesson, kind: str) -> Table:
    """Distances of each fold to what the others teach."""
    folds = _folds(taught)
    found = [
        distances_of(KINDS[kind](taught.where(folds != fold)), taught.rows[folds == fold])
        for fold in np.unique(folds)
        if len(np.unique(taught.causes[folds != fold])) == len(taught.classes)
    ]
    return np.concatenate(found) if found else distances_of(KINDS[kind](taught), taught.rows)


def _folds(taught: Lesson) -> NDArray[np.str_]:
    """A fold is a run; the only run of a cause is two, its earlier and its later seconds."""
    folds = taught.runs.astype("U200")
    for cause in np.unique(taught.causes):
        of_cause = np.flatnonzero(taught.causes == cause)
        if len(np.unique(folds[of_cause])) == 1:
            later = of_cause[taught.at_ns[of_cause] > np.median(taught.at_ns[of_cause])]
            folds[later] = np.char.add(folds[later], ", later")
    return folds


def _knots(distances: Table) -> list[list[float]]:
    """Pairs of distance and `unlike`, both ascending; beyond the last known one it goes on to 1."""
    knots: list[list[float]] = []
    for share in KNOTS:
        at = float(np.quantile(distances, share))
        if not knots or at > knots[-1][0] + 1e-9:
            knots.append([at, share])
    spread = max(1e-6, knots[-1][0] - knots[0][0])
    return [*knots, [knots[-1][0] + spread, 1.0]]
