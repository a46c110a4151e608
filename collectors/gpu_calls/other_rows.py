"""Rows of OTHER: of no process and no file, where everything goes that finds no room."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from . import map_layout as layout
from .meanings import CallKind
from .probe_table import ProbeTable

GROWING: Final = ("launches", "calls", "errors", "copies", "collectives")
"""The maps that have them."""

_LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})
_COLLECTIVES: Final = frozenset({CallKind.COLLECTIVE})
_NOBODY: Final = (0, 0, 0)


def other_keys(name: str, table: ProbeTable) -> list[bytes]:
    """Give the keys of OTHER in a growing map: one for each row, or direction and bin of sizes."""

    def of(kinds: frozenset[CallKind]) -> list[int]:
        return [place for place, row in enumerate(table.rows) if row.kind in kinds]

    key: np.dtype[np.void]
    rest: list[tuple[Any, ...]]
    match name:
        case "launches":
            key, rest = layout.LAUNCH_KEY, [(layout.OTHER, place) for place in of(_LAUNCHES)]
        case "calls":
            key, rest = layout.CALL_KEY, [(place,) for place in of(frozenset(CallKind))]
        case "errors":
            key, rest = layout.ERROR_KEY, [(place, 0) for place in of(frozenset(CallKind))]
        case "collectives":
            key, rest = layout.COLLECTIVE_KEY, [(layout.OTHER, p) for p in of(_COLLECTIVES)]
        case "copies":
            bins = range(layout.SIZE_BINS)
            key = layout.COPY_KEY
            rest = [(d, size_bin) for d in range(len(layout.DIRECTIONS)) for size_bin in bins]
        case _:
            raise ValueError(f"expected one of {', '.join(GROWING)}, got {name}")
    return [np.array([(*_NOBODY, *tail)], key).tobytes() for tail in rest]
