"""Fields of a model file, read with bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from .channels import Floats
from .model_parts import Places

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
