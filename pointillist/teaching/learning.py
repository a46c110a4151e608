"""From labelled vectors to a model file's content; agents evaluate it with NumPy alone.

The open set is fitted on the same vectors, its scale on runs that were left out in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from diagnosis.detect.features import FEATURES_VERSION

from .lessons import Lesson, TooFewExamples, lesson
from .method_port import Example
from .open_set import fit_open_set
from .splits import SEED

FORMAT: Final = 1
TREES: Final = 80
CLOSED: Final = "none"
"""In place of an open set: every fault is taken for a known one."""


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
