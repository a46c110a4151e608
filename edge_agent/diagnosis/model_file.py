"""Model files: read with bounds, since a file may come from anywhere; written with their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from .channels import Floats
from .features import FEATURE_INDEX, FEATURES_VERSION
from .model import Group, Model, OpenSet
from .model_parts import (
    Boost,
    Distance,
    Forest,
    Logistic,
    Mahalanobis,
    Mixture,
    Neighbours,
    Part,
    Places,
    Trees,
)
from .rules import CAUSES

FORMAT: Final = 1
MOST_BYTES: Final = 4 << 20
PACKAGED: Final = "model.json"
_MOST_FEATURES: Final = 512
_MOST_TREES: Final = 2_000
_MOST_DEPTH: Final = 64
_MOST_PARTS: Final = 8
_MOST_GROUPS: Final = 64
_MOST_TEXT: Final = 80
_LEAF: Final = -2
_KEYS: Final = {
    "format", "name", "version", "features_version", "features", "fill", "add_mask", "classes",
    "parts", "temperature", "open_set", "groups", "training", "hash",
}  # fmt: skip


class ModelError(ValueError):
    """A model file that cannot be used: names what was expected and what came."""


def load_model(path: Path | None = None) -> Model | None:
    """Read a model file, or the packaged one: None where none is packaged. Raises ModelError."""
    source = path if path is not None else resources.files(__package__) / PACKAGED
    if path is None and not source.is_file():
        return None
    try:
        with source.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{source}: {error.strerror}") from None
    return parse_model(content)


def parse_model(content: bytes) -> Model:
    """Read a model from bytes. Raises ModelError."""
    if len(content) > MOST_BYTES:
        raise ModelError(f"expected at most {MOST_BYTES} bytes, got more")
    try:
        document = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"expected JSON: {error}") from None
    if not isinstance(document, dict) or set(document) - _KEYS:
        raise ModelError(f"expected an object with keys of {', '.join(sorted(_KEYS))}")
    try:
        claimed, found = document.get("hash"), content_hash(document)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"expected finite numbers in few levels: {error}") from None
    if claimed != found:
        raise ModelError(f"expected hash {found}, got {str(claimed)[:64]!r}")
    return _model(document, found)


def dump_model(document: Mapping[str, Any]) -> bytes:
    """Give the file of a model, with its hash; it is read back first. Raises ModelError."""
    full = {**document, "format": FORMAT, "hash": ""}
    full["hash"] = content_hash(full)
    content = json.dumps(full, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    parse_model(content)
    return content


def content_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document without its hash, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in document.items() if key != "hash"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _no_constant(text: str) -> float:
    raise ValueError(f"expected finite numbers, got {text}")


def _model(document: Mapping[str, Any], found_hash: str) -> Model:
    if document.get("format") != FORMAT:
        raise ModelError(f"expected format {FORMAT}, got {str(document.get('format'))[:20]}")
    if document.get("features_version") != FEATURES_VERSION:
        got = str(document.get("features_version"))[:20]
        raise ModelError(f"expected features of version {FEATURES_VERSION}, got {got}")
    names = _names(document.get("features"), "features", FEATURE_INDEX, _MOST_FEATURES)
    causes = {str(cause): place for place, cause in enumerate(CAUSES)}
    classes = _names(document.get("classes"), "classes", causes, len(CAUSES))
    count, add_mask = len(names), document.get("add_mask", False) is True
    parts, rules_weight = _parts(document.get("parts"), count * (2 if add_mask else 1), len(classes))
    temperature = _number(document.get("temperature", 1.0), "temperature", 0.01, 100.0)
    return Model(
        name=_text(document.get("name"), "name"),
        version=_text(document.get("version"), "version"),
        hash=found_hash,
        places=np.array([FEATURE_INDEX[name] for name in names], np.int64),
        fill=_array(document.get("fill"), (count,), "fill"),
        add_mask=add_mask,
        classes=np.array([causes[name] for name in classes], np.int64),
        parts=parts,
        rules_weight=rules_weight,
        temperature=temperature,
        open_set=_open_set(document.get("open_set"), count),
        groups=_groups(document.get("groups", []), count),
    )


def _parts(found: Any, inputs: int, classes: int) -> tuple[tuple[Part, ...], float]:
    parts: list[Part] = []
    rules_weight = 0.0
    for row in _list(found, "parts", _MOST_PARTS):
        kind, weight = row.get("kind"), _number(row.get("weight", 1.0), "weight", 1e-6, 1e6)
        match kind:
            case "rules":
                rules_weight += weight
            case "logistic":
                parts.append(_logistic(row, weight, inputs, classes))
            case "forest":
                parts.append(_forest(row, weight, inputs, classes))
            case "boost":
                parts.append(_boost(row, weight, inputs, classes))
            case _:
                raise ModelError(
                    f"expected a part of kind logistic, forest, boost or rules, got {str(kind)[:20]}"
                )
    if not parts and not rules_weight:
        raise ModelError("expected at least one part, got none")
    return tuple(parts), rules_weight


def _logistic(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Logistic:
    return Logistic(
        weight,
        _array(row.get("mean"), (inputs,), "mean"),
        _positive(row.get("scale"), (inputs,), "scale"),
        _array(row.get("coef"), (classes, inputs), "coef"),
        _array(row.get("intercept"), (classes,), "intercept"),
    )


def _forest(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Forest:
    rows = _list(row.get("trees"), "trees", _MOST_TREES)
    values = [_array(tree.get("value"), (None, classes), "value") for tree in rows]
    value = np.concatenate(values)
    sums = value.sum(axis=1, keepdims=True)
    if (value < 0).any() or not (sums > 0).all():
        raise ModelError("expected leaves of shares, got a negative or empty one")
    return Forest(weight, _trees(rows, [len(one) for one in values], inputs), value / sums)


def _boost(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Boost:
    rows = _list(row.get("trees"), "trees", _MOST_TREES)
    values = [_array(tree.get("value"), (None,), "value") for tree in rows]
    of_class = [tree.get("class") for tree in rows]
    if not all(type(one) is int and 0 <= one < classes for one in of_class):
        raise ModelError(f"expected each tree's class below {classes}")
    return Boost(
        weight,
        _trees(rows, [len(one) for one in values], inputs),
        np.concatenate(values),
        np.array(of_class, np.int32),
        _number(row.get("rate", 1.0), "rate", 1e-6, 1e3),
        _array(row.get("start"), (classes,), "start"),
    )


def _trees(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int], inputs: int) -> Trees:
    features, thresholds, lefts, rights, roots = [], [], [], [], []
    depth = start = 0
    for row, length in zip(rows, lengths, strict=True):
        feature = _places(row.get("feature"), length, _LEAF, inputs, "feature")
        left = _places(row.get("left"), length, -1, length, "left")
        right = _places(row.get("right"), length, -1, length, "right")
        inner = feature >= 0
        own = np.arange(length)
        if not ((left > own) & (right > own))[inner].all():
            raise ModelError("expected children to stand behind their parent in a tree")
        depth = max(depth, _depth(left, right, inner))
        features.append(np.where(inner, feature, -1))
        thresholds.append(_array(row.get("threshold"), (length,), "threshold"))
        lefts.append(left + start)
        rights.append(right + start)
        roots.append(start)
        start += length
    joined = (np.concatenate(part).astype(np.int32) for part in (features, lefts, rights))
    feature, left, right = joined
    return Trees(feature, np.concatenate(thresholds), left, right, np.array(roots, np.int32), depth)


def _depth(left: Places, right: Places, inner: Any) -> int:
    depths = np.zeros(left.size, np.int64)
    for node in np.flatnonzero(inner).tolist():  # a parent comes before its children
        below = depths[node] + 1
        depths[left[node]] = max(depths[left[node]], below)
        depths[right[node]] = max(depths[right[node]], below)
    if depths.max() > _MOST_DEPTH:
        raise ModelError(f"expected trees of depth {_MOST_DEPTH} at most, got {depths.max()}")
    return int(depths.max())


def _open_set(found: Any, count: int) -> OpenSet | None:
    if found is None:
        return None
    row = _object(found, "open_set")
    knots = _array(row.get("knots"), (None, 2), "knots")
    if (np.diff(knots, axis=0) < 0).any() or knots[:, 1].min() < 0 or knots[:, 1].max() > 1:
        raise ModelError("expected knots that ascend, from distance to 0..1")
    return OpenSet(
        _distance(row, count),
        knots,
        _number(row.get("limit"), "limit", 0.0, 1.0),
        _number(row.get("least_confidence", 0.0), "least_confidence", 0.0, 1.0),
    )


def _distance(row: Mapping[str, Any], count: int) -> Distance:
    kind = row.get("kind")
    shift = _array(row.get("shift"), (count,), "shift")
    scale = _positive(row.get("scale"), (count,), "scale")
    if kind == "mahalanobis":
        whiten = _array(row.get("whiten"), (count, None), "whiten")
        mean = _array(row.get("mean"), (None, whiten.shape[1]), "mean")
        return Mahalanobis(shift, scale, mean, whiten)
    if kind == "knn":
        points = _array(row.get("points"), (None, count), "points")
        k = row.get("k")
        if type(k) is not int or not 1 <= k <= len(points):
            raise ModelError(f"expected k of 1 .. {len(points)}, got {str(k)[:20]}")
        return Neighbours(shift, scale, points, k)
    if kind == "gmm":
        means = _array(row.get("means"), (None, count), "means")
        weights = _positive(row.get("weights"), (len(means),), "weights")
        variances = _positive(row.get("variances"), (len(means), count), "variances")
        return Mixture(shift, scale, weights, means, variances)
    raise ModelError(f"expected a distance of mahalanobis, knn or gmm, got {str(kind)[:20]}")


def _groups(found: Any, count: int) -> tuple[Group, ...]:
    rows = _list(found, "groups", _MOST_GROUPS) if found else []
    return tuple(
        Group(
            _text(row.get("name"), "group's name"),
            _array(row.get("mean"), (count,), "group's mean"),
            _positive(row.get("scale"), (count,), "group's scale"),
            _number(row.get("limit"), "group's limit", 1e-6, 1e6),
        )
        for row in rows
    )


def _object(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ModelError(f"expected {what} to be an object, got {type(found).__name__}")
    return found


def _list(found: Any, what: str, most: int) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise ModelError(f"expected {what}: a list of 1 .. {most} objects")
    return [dict(_object(row, what)) for row in found]


def _names(found: Any, what: str, known: Mapping[str, int], most: int) -> list[str]:
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise ModelError(f"expected {what}: a list of 1 .. {most} names")
    strange = [name for name in found if not isinstance(name, str) or name not in known]
    if strange or len(set(found)) != len(found):
        raise ModelError(f"expected {what} that are known, each once, got {str(strange[:1])[:80]}")
    return list(found)


def _text(found: Any, what: str) -> str:
    if not isinstance(found, str) or not 1 <= len(found) <= _MOST_TEXT or not found.isprintable():
        raise ModelError(f"expected {what}: 1 .. {_MOST_TEXT} printable characters")
    return found


def _number(found: Any, what: str, least: float, most: float) -> float:
    if type(found) not in (int, float) or not least <= found <= most:
        raise ModelError(f"expected {what} of {least:g} .. {most:g}, got {str(found)[:20]}")
    return float(found)


def _array(found: Any, shape: tuple[int | None, ...], what: str) -> Floats:
    """Read finite numbers of a shape; None: any length, which the file's size bounds."""
    expected = " x ".join("n" if length is None else str(length) for length in shape)
    if not isinstance(found, list):
        raise ModelError(f"expected {what}: {expected} numbers, got {type(found).__name__}")
    try:
        array = np.array(found, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise ModelError(f"expected {what}: {expected} numbers, got something else") from None
    fits = array.ndim == len(shape) and array.size > 0
    if not fits or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        raise ModelError(f"expected {what}: {expected} numbers, got {array.shape}")
    if not np.isfinite(array).all() or np.abs(array).max() > 1e12:
        raise ModelError(f"expected {what}: finite numbers below 1e12")
    return array


def _positive(found: Any, shape: tuple[int | None, ...], what: str) -> Floats:
    array = _array(found, shape, what)
    if not (array > 1e-12).all():
        raise ModelError(f"expected {what}: numbers above zero, got {array.min():g}")
    return array


def _places(found: Any, length: int, least: int, below: int, what: str) -> Places:
    array = _array(found, (length,), what)
    places = array.astype(np.int32)
    if (places != array).any() or places.min() < least or places.max() >= below:
        raise ModelError(f"expected {what}: whole numbers of {least} .. {below - 1}")
    return places


