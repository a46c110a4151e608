"""Model files: read with bounds, since a file may come from anywhere; written with their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from .features import FEATURE_INDEX, FEATURES_VERSION
from .model import Model, NamedSpikes, OpenSet
from .model_fields import (
    ModelError,
    array_of,
    names_of,
    number_of,
    object_of,
    positive_of,
    read_parts,
    rows_of,
    text_of,
)
from .model_parts import Distance, Mahalanobis, Mixture, NearestNeighbours
from .rules import CAUSES

FORMAT: Final = 1
MOST_BYTES: Final = 4 << 20
PACKAGED: Final = "model.json"
_MOST_FEATURES: Final = 512
_MOST_GROUPS: Final = 64
_MOST_RUNS: Final = 65_536
_LONGEST_RUN: Final = 255
_KEYS: Final = {
    "format", "name", "version", "features_version", "features", "fill", "add_mask", "classes",
    "parts", "temperature", "open_set", "groups", "training", "hash",
}  # fmt: skip


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
    names = names_of(document.get("features"), "features", FEATURE_INDEX, _MOST_FEATURES)
    causes = {str(cause): place for place, cause in enumerate(CAUSES)}
    classes = names_of(document.get("classes"), "classes", causes, len(CAUSES))
    count, add_mask = len(names), document.get("add_mask", False) is True
    inputs = 2 * count if add_mask else count
    parts, rules_weight = read_parts(document.get("parts"), inputs, len(classes))
    temperature = number_of(document.get("temperature", 1.0), "temperature", 0.01, 100.0)
    return Model(
        name=text_of(document.get("name"), "name"),
        version=text_of(document.get("version"), "version"),
        hash=found_hash,
        places=np.array([FEATURE_INDEX[name] for name in names], np.int64),
        fill=array_of(document.get("fill"), (count,), "fill"),
        add_mask=add_mask,
        classes=np.array([causes[name] for name in classes], np.int64),
        parts=parts,
        rules_weight=rules_weight,
        temperature=temperature,
        open_set=_open_set(document.get("open_set"), count),
        groups=_groups(document.get("groups", []), count),
        runs=_runs(object_of(document.get("training", {}), "training").get("runs", [])),
    )


def _runs(found: Any) -> frozenset[str]:
    if not isinstance(found, list) or len(found) > _MOST_RUNS:
        raise ModelError(f"expected runs: a list of at most {_MOST_RUNS} names")
    if not all(isinstance(name, str) and len(name) <= _LONGEST_RUN for name in found):
        raise ModelError(f"expected names of runs, of at most {_LONGEST_RUN} characters")
    return frozenset(found)


def _open_set(found: Any, count: int) -> OpenSet | None:
    if found is None:
        return None
    row = object_of(found, "open_set")
    knots = array_of(row.get("knots"), (None, 2), "knots")
    if (np.diff(knots, axis=0) < 0).any() or knots[:, 1].min() < 0 or knots[:, 1].max() > 1:
        raise ModelError("expected knots that ascend, from distance to 0..1")
    return OpenSet(
        _distance(row, count),
        knots,
        number_of(row.get("limit"), "limit", 0.0, 1.0),
        number_of(row.get("least_confidence", 0.0), "least_confidence", 0.0, 1.0),
    )


def _distance(row: Mapping[str, Any], count: int) -> Distance:
    kind = row.get("kind")
    shift = array_of(row.get("shift"), (count,), "shift")
    scale = positive_of(row.get("scale"), (count,), "scale")
    if kind == "mahalanobis":
        whiten = array_of(row.get("whiten"), (count, None), "whiten")
        mean = array_of(row.get("mean"), (None, whiten.shape[1]), "mean")
        return Mahalanobis(shift, scale, mean, whiten)
    if kind == "knn":
        points = array_of(row.get("points"), (None, count), "points")
        k = row.get("k")
        if type(k) is not int or not 1 <= k <= len(points):
            raise ModelError(f"expected k of 1 .. {len(points)}, got {str(k)[:20]}")
        return NearestNeighbours(shift, scale, points, k)
    if kind == "gmm":
        means = array_of(row.get("means"), (None, count), "means")
        weights = positive_of(row.get("weights"), (len(means),), "weights")
        variances = positive_of(row.get("variances"), (len(means), count), "variances")
        return Mixture(shift, scale, weights, means, variances)
    raise ModelError(f"expected a distance of mahalanobis, knn or gmm, got {str(kind)[:20]}")


def _groups(found: Any, count: int) -> tuple[NamedSpikes, ...]:
    rows = rows_of(found, "groups", _MOST_GROUPS) if found else []
    return tuple(
        NamedSpikes(
            text_of(row.get("name"), "group's name"),
            array_of(row.get("mean"), (count,), "group's mean"),
            positive_of(row.get("scale"), (count,), "group's scale"),
            number_of(row.get("limit"), "group's limit", 1e-6, 1e6),
        )
        for row in rows
    )
