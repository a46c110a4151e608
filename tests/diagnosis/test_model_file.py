"""Model files are read with bounds, judged by numpy alone, and bound to their hash."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from diagnosis.detect.features import FEATURE_NAMES
from diagnosis.detect.findings import Cause
from diagnosis.detect.model import Model, rank
from diagnosis.detect.model_fields import ModelError
from diagnosis.detect.model_file import dump_model, load_model, parse_model
from diagnosis.detect.rules import CAUSES, judge

NAMES = ["own.run_delay_ms_per_s.z", "own.throttled_ms_per_s.z", "host.retransmits_per_s.z"]
CLASSES = ["cpu_contention", "cgroup_throttling", "nic_limit_or_loss"]


def vector(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A vector in which only the three features of NAMES are measured."""
    whole = np.full(len(FEATURE_NAMES), np.nan)
    for name, value in zip(NAMES, values, strict=False):
        whole[FEATURE_NAMES.index(name)] = value
    return whole


def document() -> dict[str, Any]:
    """A small model that knows each cause by one feature."""
    return {
        "name": "small",
        "version": "1",
        "features_version": 2,
        "features": NAMES,
        "fill": [0.0, 0.0, 0.0],
        "classes": CLASSES,
        "parts": [
            {
                "kind": "logistic", "mean": [0, 0, 0], "scale": [1, 1, 1],
                "coef": [[2, 0, 0], [0, 2, 0], [0, 0, 2]], "intercept": [0, 0, 0],
            },
        ],
        "open_set": {
            "kind": "mahalanobis", "shift": [0, 0, 0], "scale": [1, 1, 1],
            "whiten": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
            "mean": [[5, 0, 0], [0, 5, 0], [0, 0, 5]],
            "knots": [[0, 0], [3, 0.9], [6, 1]], "limit": 0.9,
        },
    }  # fmt: skip


@pytest.fixture
def small() -> Model:
    return parse_model(dump_model(document()))


def test_model_judges_and_names_itself(small: Model) -> None:
    found = rank(vector(0.2, 5.0, 0.1), judge(vector(0.2, 5.0, 0.1)), small)
    assert found.cause is Cause.CGROUP_THROTTLING
    assert found.confidence > 0.9
    assert found.unlike < 0.2
    assert found.model.startswith("small 1 ")
    assert small.hash[:12] in found.model


def test_model_rejects_what_is_unlike_all_it_knows(small: Model) -> None:
    far = vector(-6.0, 5.0, 6.0)
    found = rank(far, judge(vector()), small)
    assert found.cause is Cause.UNKNOWN
    assert found.unlike > 0.9
    assert sum(share for _, share in found.ranked) == pytest.approx(1.0)


def test_missing_features_take_their_fill(small: Model) -> None:
    found = small.judge(vector(5.0), judge(vector()))
    assert CAUSES[int(found.beliefs.argmax())] is Cause.CPU_CONTENTION


def test_causes_that_the_model_never_saw_are_left_to_the_rules(small: Model) -> None:
    hot = vector(0.0, 0.0, 0.0)
    hot[FEATURE_NAMES.index("gpu.xids_faulty_per_s.z")] = 4.0
    assert rank(hot, judge(hot), small).cause is Cause.GPU_HARDWARE_FAULT


def test_group_of_unknowns_is_named() -> None:
    grouped = document() | {
        "groups": [{"name": "stopped", "mean": [-6, 5, 6], "scale": [1, 1, 1], "limit": 2}]
    }
    model = parse_model(dump_model(grouped))
    assert model.judge(vector(-6.0, 5.0, 6.5), judge(vector())).group == "stopped"
    assert model.judge(vector(-6.0, -9.0, 6.5), judge(vector())).group == ""
    assert model.judge(vector(5.0, 0.0, 0.0), judge(vector())).group == ""


def _training() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    y = random.integers(0, 3, 300)
    x = random.normal(0, 1, (300, 3)) + 3 * np.eye(3)[y]
    return x, y


def test_forest_and_logistic_judge_as_scikit_learn_does() -> None:
    x, y = _training()
    forest = RandomForestClassifier(12, max_depth=5, random_state=1).fit(x, y)
    logistic = LogisticRegression().fit(x, y)
    trees = [
        {
            "feature": tree.tree_.feature.tolist(),
            "threshold": tree.tree_.threshold.tolist(),
            "left": tree.tree_.children_left.tolist(),
            "right": tree.tree_.children_right.tolist(),
            "value": tree.tree_.value[:, 0, :].tolist(),
        }
        for tree in forest.estimators_
    ]
    both = document() | {"open_set": None}
    both["parts"] = [
        {"kind": "forest", "weight": 2.0, "trees": trees},
        {
            "kind": "logistic", "weight": 1.0, "mean": [0, 0, 0], "scale": [1, 1, 1],
            "coef": logistic.coef_.tolist(), "intercept": logistic.intercept_.tolist(),
        },
    ]  # fmt: skip
    model = parse_model(dump_model(both))
    expected = (2 * forest.predict_proba(x[:40]) + logistic.predict_proba(x[:40])) / 3
    rules = judge(vector())
    places = [CAUSES.index(Cause(name)) for name in CLASSES]
    found = np.stack([model.judge(vector(*row), rules).beliefs[places] for row in x[:40]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_boosted_trees_add_up() -> None:
    stump = {"feature": [0, -2, -2], "threshold": [1.0, 0, 0], "left": [1, -1, -1],
             "right": [2, -1, -1], "value": [0.0, -1.0, 2.0], "class": 0}  # fmt: skip
    boosted = document() | {"open_set": None}
    boosted["parts"] = [{"kind": "boost", "rate": 0.5, "start": [0, 0, 0], "trees": [stump, stump]}]
    model = parse_model(dump_model(boosted))
    beliefs = model.judge(vector(5.0), judge(vector())).beliefs
    raised = np.exp([2.0, 0.0, 0.0])
    assert beliefs[CAUSES.index(Cause.CPU_CONTENTION)] == pytest.approx(raised[0] / raised.sum())


def test_distances_of_either_kind_grow_away_from_what_is_known() -> None:
    for open_set in (
        {"kind": "knn", "points": [[5, 0, 0], [0, 5, 0]], "k": 1},
        {
            "kind": "gmm", "weights": [0.5, 0.5], "means": [[5, 0, 0], [0, 5, 0]],
            "variances": [[1, 1, 1], [1, 1, 1]],
        },
    ):  # fmt: skip
        full = document()
        full["open_set"] = open_set | {
            "shift": [0, 0, 0], "scale": [1, 1, 1], "knots": [[0, 0], [40, 1]], "limit": 0.5,
        }  # fmt: skip
        model = parse_model(dump_model(full))
        near = model.judge(vector(5.0, 0.2, 0.0), judge(vector())).unlike
        far = model.judge(vector(-8.0, -8.0, 8.0), judge(vector())).unlike
        assert near < far


def test_changed_content_is_refused() -> None:
    content = dump_model(document())
    with pytest.raises(ModelError, match="hash"):
        parse_model(content.replace(b'"small"', b'"smell"'))


def _broken() -> dict[str, dict[str, Any]]:
    leaf = {"feature": [-2], "threshold": [0], "left": [-1], "right": [-1], "value": [[1, 0, 0]]}
    loop = {"feature": [0, -2], "threshold": [0, 0], "left": [0, -1], "right": [1, -1],
            "value": [[1, 0, 0], [1, 0, 0]]}  # fmt: skip
    return {
        "format": {"format": 2},
        "training is a list": {"training": []},
        "runs without names": {"training": {"runs": [1]}},
        "a run of any length": {"training": {"runs": ["x" * 256]}},
        "features_version": {"features_version": 99},
        "unknown feature": {"features": ["own.nothing.z", *NAMES[1:]]},
        "feature twice": {"features": [NAMES[0], NAMES[0], NAMES[1]]},
        "unknown class": {"classes": ["cpu_contention", "haste", "disk_io"]},
        "short fill": {"fill": [0.0]},
        "no parts": {"parts": []},
        "strange part": {"parts": [{"kind": "pickle"}]},
        "zero scale": {"parts": [document()["parts"][0] | {"scale": [0, 1, 1]}]},
        "huge number": {"parts": [document()["parts"][0] | {"mean": [1e300, 0, 0]}]},
        "children before parents": {"parts": [{"kind": "forest", "trees": [loop]}]},
        "beyond the features": {"parts": [{"kind": "forest", "trees": [leaf | {"feature": [7]}]}]},
        "many trees": {"parts": [{"kind": "forest", "trees": [leaf] * 3000}]},
        "falling knots": {"open_set": document()["open_set"] | {"knots": [[1, 0], [0, 1]]}},
        "limit": {"open_set": document()["open_set"] | {"limit": 7}},
        "temperature": {"temperature": 0},
        "name": {"name": "\x1b[31m"},
        "more keys": {"code": "import os"},
    }


@pytest.mark.parametrize("what", _broken())
def test_broken_model_is_refused(what: str) -> None:
    changed = document() | _broken()[what]
    full = {"format": 1} | changed
    from diagnosis.detect.model_file import content_hash

    full["hash"] = content_hash(full)
    with pytest.raises(ModelError):
        parse_model(json.dumps(full).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"fill": NaN}',
        b'{"fill": 1e999}',
        b"[" * 100_000,
        b'{"name":' * 20_000,
        b" " * (5 << 20),
    ],
)
def test_hostile_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ModelError):
        parse_model(content)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(key=st.sampled_from(sorted(document())), inside=st.booleans(), value=_JSON)
def test_any_value_in_any_place_is_taken_or_refused(key: str, inside: bool, value: Any) -> None:
    changed = copy.deepcopy(document())
    if inside and isinstance(changed[key], dict):
        changed[key][next(iter(changed[key]))] = value
    else:
        changed[key] = value
    try:
        model = parse_model(dump_model(changed))
    except (ModelError, ValueError):
        return
    found = model.judge(vector(1.0, 2.0, 3.0), judge(vector()))
    assert found.beliefs.sum() == pytest.approx(1.0)
    assert 0 <= found.unlike <= 1


def test_packaged_model_is_none_or_whole() -> None:
    model = load_model()
    assert model is None or model.judge(vector(5.0), judge(vector())).beliefs.sum() > 0.99


def test_model_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(dump_model(document()))
    model = load_model(path)
    assert model is not None
    assert model.name == "small"
    with pytest.raises(ModelError, match="No such file"):
        load_model(tmp_path / "missing.json")
