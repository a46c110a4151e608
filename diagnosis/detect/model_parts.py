"""The parts of a model file that numpy evaluates: each gives one probability per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .channels import Floats

Places = NDArray[np.int32]


class ModelPart(Protocol):
    """One learned classifier."""

    @property
    def weight(self) -> float: ...

    def probabilities(self, x: Floats) -> Floats:
        """Give float64[classes] that sum to 1, from float64[inputs] without NaN."""


def softmax(scores: Floats) -> Floats:
    """Give probabilities in proportion to exp(scores)."""
    raised = np.exp(scores - scores.max())
    return np.asarray(raised / raised.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Logistic:
    """Multinomial logistic regression on standardised inputs.

    coef   float64[classes, inputs]
    """

    weight: float
    mean: Floats
    scale: Floats
    coef: Floats
    intercept: Floats

    def probabilities(self, x: Floats) -> Floats:
        return softmax(self.coef @ ((x - self.mean) / self.scale) + self.intercept)


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Many decision trees in one array of nodes; children always stand behind their parent.

    feature    int32[nodes], negative in a leaf
    left       int32[nodes], where x[feature] <= threshold; right: else
    roots      int32[trees]
    depth      of the deepest tree
    """

    feature: Places
    threshold: Floats
    left: Places
    right: Places
    roots: Places
    depth: int

    def leaves(self, x: Floats) -> Places:
        """Give the leaf that x falls into in each tree: int32[trees]."""
        at = self.roots
        for _ in range(self.depth):
            feature = self.feature[at]
            inner = feature >= 0
            goes_left = x[np.where(inner, feature, 0)] <= self.threshold[at]
            child = np.where(goes_left, self.left[at], self.right[at])
            at = np.where(inner, child, at)
        return at


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Mean of what the trees' leaves say; value: float64[nodes, classes], rows sum to 1."""

    weight: float
    trees: Trees
    value: Floats

    def probabilities(self, x: Floats) -> Floats:
        return np.asarray(self.value[self.trees.leaves(x)].mean(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Boost:
    """Gradient-boosted trees, each for one class; value: float64[nodes]."""

    weight: float
    trees: Trees
    value: Floats
    of_class: Places
    rate: float
    start: Floats

    def probabilities(self, x: Floats) -> Floats:
        scores = self.start.copy()
        np.add.at(scores, self.of_class, self.rate * self.value[self.trees.leaves(x)])
        return softmax(scores)


class Distance(Protocol):
    """How far something is from everything that a model was trained on."""

    def of(self, x: Floats) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class Mahalanobis:
    """To the nearest class mean, in whitened space.

    mean     float64[classes, g]
    whiten   float64[inputs, g]
    """

    shift: Floats
    scale: Floats
    mean: Floats
    whiten: Floats

    def of(self, x: Floats) -> float:
        away = ((x - self.shift) / self.scale) @ self.whiten - self.mean
        return float(np.sqrt((away * away).sum(axis=1).min()))


@dataclass(frozen=True, slots=True, eq=False)
class NearestNeighbours:
    """Mean distance to the k nearest training points, float64[points, inputs]."""

    shift: Floats
    scale: Floats
    points: Floats
    k: int

    def of(self, x: Floats) -> float:
        away = (x - self.shift) / self.scale - self.points
        nearest = np.partition((away * away).sum(axis=1), self.k - 1)[: self.k]
        return float(np.sqrt(nearest).mean())


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Minus the log density of a Gaussian mixture with diagonal covariances."""

    shift: Floats
    scale: Floats
    weights: Floats
    means: Floats
    variances: Floats

    def of(self, x: Floats) -> float:
        away = (x - self.shift) / self.scale - self.means
        density = -0.5 * (away * away / self.variances + np.log(2 * np.pi * self.variances))
        logs = np.log(self.weights) + density.sum(axis=1)
        top = logs.max()
        return float(-(top + np.log(np.exp(logs - top).sum())))
