"""Fields of a model file, and the classifiers among them, read with bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .channels import Floats
from .model_parts import Boost, Forest, Logistic, ModelPart, Places, Trees

_MOST_TEXT: Final = 80
_MOST_VALUE: Final = 1e12
_LEAST_VALUE: Final = 1e-12


class ModelError(ValueError):
    """A model file that cannot be used: names what was expected and what came."""


def object_of(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ModelError(f"expected {what} to be an object, got {type(found).__name__}")
    return found


def rows_of(found: Any, what: str, most: int) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise ModelError(f"expected {what}: a list of 1 .. {most} objects")
    return [dict(object_of(row, what)) for row in found]


def names_of(found: Any, what: str, known: Mapping[str, int], most: int) -> list[str]:
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise ModelError(f"expected {what}: a list of 1 .. {most} names")
    strange = [name for name in found if not isinstance(name, str) or name not in known]
    if strange or len(set(found)) != len(found):
        raise ModelError(f"expected {what} that are known, each once, got {str(strange[:1])[:80]}")
    return list(found)


def text_of(found: Any, what: str) -> str:
    if not isinstance(found, str) or not 1 <= len(found) <= _MOST_TEXT or not found.isprintable():
        raise ModelError(f"expected {what}: 1 .. {_MOST_TEXT} printable characters")
    return found


def number_of(found: Any, what: str, least: float, most: float) -> float:
    if type(found) not in (int, float) or not least <= found <= most:
        raise ModelError(f"expected {what} of {least:g} .. {most:g}, got {str(found)[:20]}")
    return float(found)


def array_of(found: Any, shape: tuple[int | None, ...], what: str) -> Floats:
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
    if not np.isfinite(array).all() or np.abs(array).max() > _MOST_VALUE:
        raise ModelError(f"expected {what}: finite numbers below 1e12")
    return array


def positive_of(found: Any, shape: tuple[int | None, ...], what: str) -> Floats:
    array = array_of(found, shape, what)
    if not (array > _LEAST_VALUE).all():
        raise ModelError(f"expected {what}: numbers above zero, got {array.min():g}")
    return array


def places_of(found: Any, length: int, least: int, below: int, what: str) -> Places:
    array = array_of(found, (length,), what)
    places = array.astype(np.int32)
    if (places != array).any() or places.min() < least or places.max() >= below:
        raise ModelError(f"expected {what}: whole numbers of {least} .. {below - 1}")
    return places


_MOST_TREES: Final = 2_000
_MOST_DEPTH: Final = 64
_MOST_PARTS: Final = 8
_LEAF: Final = -2


def read_parts(found: Any, inputs: int, classes: int) -> tuple[tuple[ModelPart, ...], float]:
    parts: list[ModelPart] = []
    rules_weight = 0.0
    for row in rows_of(found, "parts", _MOST_PARTS):
        kind, weight = row.get("kind"), number_of(row.get("weight", 1.0), "weight", 1e-6, 1e6)
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
                    "expected a part of kind logistic, forest, boost or rules, "
                    f"got {str(kind)[:20]}"
                )
    if not parts and not rules_weight:
        raise ModelError("expected at least one part, got none")
    return tuple(parts), rules_weight


def _logistic(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Logistic:
    return Logistic(
        weight,
        array_of(row.get("mean"), (inputs,), "mean"),
        positive_of(row.get("scale"), (inputs,), "scale"),
        array_of(row.get("coef"), (classes, inputs), "coef"),
        array_of(row.get("intercept"), (classes,), "intercept"),
    )


def _forest(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Forest:
    rows = rows_of(row.get("trees"), "trees", _MOST_TREES)
    values = [array_of(tree.get("value"), (None, classes), "value") for tree in rows]
    value = np.concatenate(values)
    sums = value.sum(axis=1, keepdims=True)
    if (value < 0).any() or not (sums > 0).all():
        raise ModelError("expected leaves of shares, got a negative or empty one")
    return Forest(weight, _trees(rows, [len(array) for array in values], inputs), value / sums)


def _boost(row: Mapping[str, Any], weight: float, inputs: int, classes: int) -> Boost:
    rows = rows_of(row.get("trees"), "trees", _MOST_TREES)
    values = [array_of(tree.get("value"), (None,), "value") for tree in rows]
    of_class = [tree.get("class") for tree in rows]
    if not all(type(number) is int and 0 <= number < classes for number in of_class):
        raise ModelError(f"expected each tree's class below {classes}")
    return Boost(
        weight,
        _trees(rows, [len(array) for array in values], inputs),
        np.concatenate(values),
        np.array(of_class, np.int32),
        number_of(row.get("rate", 1.0), "rate", 1e-6, 1e3),
        array_of(row.get("start"), (classes,), "start"),
    )


def _trees(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int], inputs: int) -> Trees:
    features, thresholds, lefts, rights, roots = [], [], [], [], []
    depth = start = 0
    for row, length in zip(rows, lengths, strict=True):
        feature = places_of(row.get("feature"), length, _LEAF, inputs, "feature")
        left = places_of(row.get("left"), length, -1, length, "left")
        right = places_of(row.get("right"), length, -1, length, "right")
        inner = feature >= 0
        own = np.arange(length)
        if not ((left > own) & (right > own))[inner].all():
            raise ModelError("expected children to stand behind their parent in a tree")
        depth = max(depth, _depth(left, right, inner))
        features.append(np.where(inner, feature, -1))
        thresholds.append(array_of(row.get("threshold"), (length,), "threshold"))
        lefts.append(left + start)
        rights.append(right + start)
        roots.append(start)
        start += length
    joined = (np.concatenate(part).astype(np.int32) for part in (features, lefts, rights))
    feature, left, right = joined
    return Trees(feature, np.concatenate(thresholds), left, right, np.array(roots, np.int32), depth)


def _depth(left: Places, right: Places, inner: NDArray[np.bool_]) -> int:
    depths = np.zeros(left.size, np.int64)
    for node in np.flatnonzero(inner).tolist():  # a parent comes before its children
        below = depths[node] + 1
        depths[left[node]] = max(depths[left[node]], below)
        depths[right[node]] = max(depths[right[node]], below)
    if depths.max() > _MOST_DEPTH:
        raise ModelError(f"expected trees of depth {_MOST_DEPTH} at most, got {depths.max()}")
    return int(depths.max())
