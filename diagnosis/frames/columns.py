"""Signals that are the growth of a column: one plan for a layout, applied to whole arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_NS_PER_S: Final = 1e9


class Columns:
    """Which columns of one layout are which signals; a column that is not there has none.

    wanted   (signal, column, column that is taken off first or "", factor) in order
    """

    def __init__(
        self, layout: tuple[str, ...], wanted: Iterable[tuple[str, str, str, float]]
    ) -> None:
        at = {column: index for index, column in enumerate(layout)}
        rows = [row for row in wanted if row[1] in at and (not row[2] or row[2] in at)]
        self.names = tuple(row[0] for row in rows)
        self._plus = np.array([at[row[1]] for row in rows], np.intp)
        pairs = [(place, at[row[2]]) for place, row in enumerate(rows) if row[2]]
        self._less = np.array([place for place, _ in pairs], np.intp)
        self._minus = np.array([column for _, column in pairs], np.intp)
        self._factors = np.array([row[3] for row in rows])

    def grown(self, growth: NDArray[Any]) -> NDArray[np.float64]:
        """Give the signals' growth from growth[..., columns], in the signal's unit times seconds.

        What falls below zero is zero: two columns are read one after the other.
        """
        found = growth[..., self._plus].astype(np.float64)
        if len(self._less):
            found[..., self._less] -= growth[..., self._minus]
        return np.asarray(np.maximum(found, 0.0) * self._factors)

    def rates(self, growth: NDArray[Any], span_ns: int) -> NDArray[np.float64]:
        """Give the same per second."""
        return np.asarray(self.grown(growth) * (_NS_PER_S / span_ns))
