"""From labelled vectors to a model file's content; agents evaluate it with NumPy alone.

Each class weighs the same and each run of a class the same: seconds of one run are not independent.
The open set is fitted on the same vectors, its scale on runs that were left out in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from diagnosis.detect.features import FEATURE_NAMES, FEATURES_VERSION
from diagnosis.detect.findings import Cause

from .methods.method_port import Example
from .open_set import fit_open_set
from .splits import SEED

FILL: Final = 0.0
"""A signal at its baseline."""
LAG_FILL: Final = -4.0
"""One second below any true lag: the signal did not move."""

FILLS: Final = np.array([LAG_FILL if n.startswith("lag.") else FILL for n in FEATURE_NAMES])


def filled(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill what is missing in vectors, [..., FEATURE_NAMES]."""
    return np.where(np.isfinite(vectors), vectors, FILLS)


Table = NDArray[np.float64]

FORMAT: Final = 1
TREES: Final = 80
CLOSED: Final = "none"
"""In place of an open set: every fault is taken for a known one."""
LEAST_VARIED: Final = 1e-9


class TooFewExamples(ValueError):
    """Nothing can be learned from so little; the message says what there was."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """Examples as arrays.

    rows      float64[n, features], missing ones filled
    causes    int64[n], index into `classes`
    weights   float64[n], each class and each run of a class the same in sum
    runs      [n], by which examples hang together
    at_ns     int64[n]
    """

    features: tuple[str, ...]
    fill: Table
    classes: tuple[Cause, ...]
    rows: Table
    causes: NDArray[np.int64]
    weights: Table
    runs: NDArray[np.str_]
    at_ns: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> Lesson:
        """The same with some of the rows."""
        return replace(
            self,
            rows=self.rows[chosen],
            causes=self.causes[chosen],
            weights=self.weights[chosen],
            runs=self.runs[chosen],
            at_ns=self.at_ns[chosen],
        )


def lesson(examples: Sequence[Example], keep: Callable[[str], bool] = bool) -> Lesson:
    """Make arrays of examples.

    keep        which features may be used, by name; those that never vary are left out anyway
    Raises      TooFewExamples when fewer than two causes are there
    """
    classes = tuple(sorted({example.cause for example in examples}, key=list(Cause).index))
    if len(classes) < 2:
        raise TooFewExamples(f"expected examples of at least 2 causes, got {len(classes)}")
    table = filled(np.stack([example.vector for example in examples]))
    allowed = np.array([keep(name) for name in FEATURE_NAMES])
    used = allowed & (table.std(axis=0) > LEAST_VARIED)
    if not used.any():
        raise TooFewExamples("expected a feature that varies, got none")
    return Lesson(
        features=tuple(np.array(FEATURE_NAMES)[used].tolist()),
        fill=FILLS[used],
        classes=classes,
        rows=table[:, used],
        causes=np.array([classes.index(example.cause) for example in examples], np.int64),
        weights=_weights(examples),
        runs=np.array([example.run for example in examples]),
        at_ns=np.array([example.at_ns for example in examples], np.int64),
    )


def _weights(examples: Sequence[Example]) -> Table:
    seconds = Counter((example.cause, example.run) for example in examples)
    runs = Counter(cause for cause, _ in seconds)
    weights = np.array(
        [1 / (seconds[example.cause, example.run] * runs[example.cause]) for example in examples]
    )
    return np.asarray(weights * len(examples) / weights.sum())


def _logistic(taught: Lesson) -> dict[str, Any]:
    mean = np.average(taught.rows, axis=0, weights=taught.weights)
    scale = np.sqrt(np.average((taught.rows - mean) ** 2, axis=0, weights=taught.weights))
    scale = np.maximum(scale, 0.05)
    fitted = LogisticRegression(C=0.05, max_iter=400)
    fitted.fit((taught.rows - mean) / scale, taught.causes, sample_weight=taught.weights)
    coef, intercept = fitted.coef_, fitted.intercept_
    if len(taught.classes) == 2:  # one row of weights speaks for the second class
        coef, intercept = np.vstack([-coef / 2, coef / 2]), np.array([-0.5, 0.5]) * intercept
    return {
        "kind": "logistic", "weight": 1.0, "mean": _plain(mean), "scale": _plain(scale),
        "coef": _plain(coef), "intercept": _plain(intercept),
    }  # fmt: skip


def _forest(taught: Lesson) -> dict[str, Any]:
    fitted = RandomForestClassifier(
        TREES, max_depth=9, min_samples_leaf=4, max_features="sqrt", random_state=SEED
    )
    fitted.fit(taught.rows, taught.causes, sample_weight=taught.weights)
    trees = [_tree(estimator.tree_) for estimator in fitted.estimators_]
    for tree, estimator in zip(trees, fitted.estimators_, strict=True):
        shares = estimator.tree_.value[:, 0, :]
        tree["value"] = _plain(shares / shares.sum(axis=1, keepdims=True))
    return {"kind": "forest", "weight": 1.0, "trees": trees}


def _boost(taught: Lesson) -> dict[str, Any]:
    if len(taught.classes) < 3:
        raise TooFewExamples(f"boost: expected at least 3 causes, got {len(taught.classes)}")
    fitted = GradientBoostingClassifier(
        n_estimators=40, learning_rate=0.15, max_depth=3, max_features="sqrt", subsample=0.7,
        min_samples_leaf=4, random_state=SEED,
    )  # fmt: skip
    fitted.fit(taught.rows, taught.causes, sample_weight=taught.weights)
    priors = np.log(np.maximum(fitted.init_.class_prior_, 1e-7))
    trees = []
    for stage in fitted.estimators_:
        for number, estimator in enumerate(stage):
            value = _plain(estimator.tree_.value[:, 0, 0])
            trees.append({"class": number, **_tree(estimator.tree_), "value": value})
    return {
        "kind": "boost", "weight": 1.0, "rate": fitted.learning_rate, "start": _plain(priors),
        "trees": trees,
    }  # fmt: skip


def _tree(tree: Any) -> dict[str, Any]:
    return {
        "feature": [int(number) for number in tree.feature],
        # scikit-learn compares float32 features: rounding a threshold further could turn a branch.
        "threshold": [float(number) for number in tree.threshold],
        "left": [int(number) for number in tree.children_left],
        "right": [int(number) for number in tree.children_right],
    }


def _plain(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 9).tolist()


def _rules(weight: float) -> dict[str, Any]:
    return {"kind": "rules", "weight": weight}


Parts = Callable[[Lesson], list[dict[str, Any]]]

KINDS: Final[Mapping[str, Parts]] = MappingProxyType(
    {
        "logistic": lambda taught: [_logistic(taught)],
        "forest": lambda taught: [_forest(taught)],
        "boost": lambda taught: [_boost(taught)],
        "forest+logistic": lambda taught: [_forest(taught), _logistic(taught)],
        "forest+rules": lambda taught: [_forest(taught), _rules(0.5)],
        "logistic+rules": lambda taught: [_logistic(taught), _rules(0.5)],
    }
)
"""What can be learned, by name."""


def learn(
    examples: Sequence[Example],
    kind: str,
    open_set: str = "knn",
    keep: Callable[[str], bool] = bool,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Learn a model's document, as `diagnosis.detect.model.dump_model` takes it.

    kind        a key of KINDS
    open_set    a key of open_set.KINDS, or CLOSED
    about       facts of the training, kept in the file
    Raises      TooFewExamples
    """
    taught = lesson(examples, keep)
    return {
        "format": FORMAT,
        "name": kind,
        "version": str((about or {}).get("version", "0")),
        "features_version": FEATURES_VERSION,
        "features": list(taught.features),
        "fill": _plain(taught.fill),
        "add_mask": False,
        "classes": [str(cause) for cause in taught.classes],
        "parts": KINDS[kind](taught),
        "temperature": 1.0,
        "open_set": None if open_set == CLOSED else fit_open_set(taught, open_set),
        "groups": [],
        "training": dict(about or {}),
    }
