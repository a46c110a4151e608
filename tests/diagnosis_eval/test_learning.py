"""Models leave scikit-learn as data: what NumPy says of the file is what was fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from diagnosis.detect.features import FEATURE_NAMES
from diagnosis.detect.findings import Cause
from diagnosis.detect.model_fields import ModelError
from diagnosis.detect.model_file import dump_model, parse_model
from diagnosis.detect.rules import judge
from pointillist.teaching import learning
from pointillist.teaching.learning import learn
from pointillist.teaching.lessons import TooFewExamples, lesson
from pointillist.teaching.method_port import Example, Prepared
from pointillist.teaching.methods.learned import training_examples

pytestmark = pytest.mark.slow

FITTED = {
    "logistic": LogisticRegression,
    "forest": RandomForestClassifier,
    "boost": GradientBoostingClassifier,
}


@pytest.fixture(scope="session")
def examples(prepared: Sequence[Prepared]) -> list[Example]:
    return training_examples([run for run in prepared if "stress" in run.name])


@pytest.mark.parametrize("kind", FITTED)
def test_exported_model_says_what_was_fitted(
    examples: list[Example], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    fit = FITTED[kind].fit

    def remember(self: object, *given: object, **named: object) -> object:
        kept.append(self)
        return fit(self, *given, **named)

    monkeypatch.setattr(getattr(learning, FITTED[kind].__name__), "fit", remember)
    document = learn(examples, kind)
    model = parse_model(dump_model(document))
    rows = lesson(examples).rows[::7]
    if kind == "logistic":
        part = document["parts"][0]
        rows_seen = (rows - np.array(part["mean"])) / np.array(part["scale"])
    else:
        rows_seen = rows
    expected = kept[-1].predict_proba(rows_seen)  # type: ignore[attr-defined]
    for example, row in zip(examples[::7], expected, strict=True):
        beliefs = model.judge(example.vector, judge(example.vector)).beliefs
        told = [beliefs[list(Cause).index(Cause(name))] for name in document["classes"]]
        assert told == pytest.approx(row, abs=1e-6)


def test_exported_model_is_refused_when_a_number_was_changed(examples: list[Example]) -> None:
    content = dump_model(learn(examples, "logistic"))
    with pytest.raises(ModelError, match="hash"):
        parse_model(content.replace(b'"k":3', b'"k":2'))


@pytest.mark.parametrize("open_set", ["knn", "mahalanobis", "gmm"])
def test_open_set_scores_the_far_above_the_known(examples: list[Example], open_set: str) -> None:
    limits = parse_model(dump_model(learn(examples, "logistic", open_set)))
    assert limits.open_set is not None
    known = [limits.open_set.unlike(limits.inputs(one.vector)[1]) for one in examples[::9]]
    far = limits.inputs(np.full(len(FEATURE_NAMES), 7.5))[1]
    assert limits.open_set.unlike(far) > 0.99
    assert np.median(known) < 0.9


def test_lesson_weighs_causes_and_their_runs_alike(examples: list[Example]) -> None:
    taught = lesson(examples)
    by_cause = [taught.weights[taught.causes == k].sum() for k in range(len(taught.classes))]
    assert by_cause == pytest.approx([by_cause[0]] * len(by_cause))
    first = taught.causes == 0
    by_run = [taught.weights[first & (taught.runs == r)].sum() for r in set(taught.runs[first])]
    assert by_run == pytest.approx([by_run[0]] * len(by_run))


def test_lesson_leaves_out_what_it_may_not_use(examples: list[Example]) -> None:
    taught = lesson(examples, lambda name: name.startswith("host."))
    assert taught.features
    assert all(name.startswith("host.") for name in taught.features)


def test_lesson_needs_two_causes() -> None:
    vector = np.zeros(len(FEATURE_NAMES))
    with pytest.raises(TooFewExamples, match="2 causes"):
        lesson([Example("run", 1, Cause.DISK_IO, vector)])


def test_open_set_of_a_single_run_is_measured_between_its_halves(examples: list[Example]) -> None:
    alone = [one for one in examples if one.run.endswith("-high")]
    document = learn(alone, "logistic")
    distances = [distance for distance, _ in document["open_set"]["knots"]]
    assert distances[0] > 0.1  # of a second to itself it is 0
