"""Labelled vectors as arrays, which every method learns from.

Each class weighs the same and each run of a class the same: seconds of one run are not independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.features import FEATURE_NAMES
from diagnosis.detect.findings import Cause

from .method_port import Example

Table = NDArray[np.float64]

FILL: Final = 0.0
"""A signal at its baseline."""
LAG_FILL: Final = -4.0
"""One second below any true lag: the signal did not move."""

FILLS: Final = np.array([LAG_FILL if n.startswith("lag.") else FILL for n in FEATURE_NAMES])


def filled(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill what is missing in vectors, [..., FEATURE_NAMES]."""
    return np.where(np.isfinite(vectors), vectors, FILLS)


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
