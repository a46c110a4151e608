"""What a server of releases and `connect(URL)` agree on: kinds of rows, columns, addresses."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import pyarrow as pa

from aggregator.releases.cause_files import CAUSE_MEANINGS
from aggregator.releases.release_files import Q_VALUE
from aggregator.releases.releases import WINDOW_MEANINGS, Meanings

from .sql import CELL_MEANINGS, OUTCOME_MEANINGS

FORMAT: Final = 1
ADDRESS: Final = "/api/v1/releases"
NEWEST: Final = f"{ADDRESS}/newest"
MOST_ROWS: Final = 100_000
"""That an answer is planned to have; what is longer comes in several, each with the next one's
beginning in its header `Link`."""


class ServedRows(StrEnum):
    """What rows are of; the names are those of `ReleaseSource`."""

    CELLS = "cells"
    RECENT = "recent"
    OUTCOMES = "outcomes"
    WINDOWS = "windows"
    CAUSES = "causes"

    @property
    def address(self) -> str:
        return f"{ADDRESS}/{self.value}.parquet"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, kind) for name, (kind, _) in _MEANINGS[self].items()])


_MEANINGS: Final[dict[ServedRows, Meanings]] = {
    ServedRows.CELLS: CELL_MEANINGS,
    ServedRows.RECENT: CELL_MEANINGS,
    ServedRows.OUTCOMES: {
        **OUTCOME_MEANINGS,
        "coverage": (pa.float64(), "the windows' length, as a fraction of the period"),
    },
    ServedRows.WINDOWS: WINDOW_MEANINGS,
    ServedRows.CAUSES: {
        **CAUSE_MEANINGS,
        "date": (pa.date32(), "day that the window begins in, UTC"),
        **Q_VALUE,
    },
}

VIEW_OUTCOME_MEANINGS: Final[Meanings] = {
    "period": (pa.string(), "hour, day or week"),
    **_MEANINGS[ServedRows.OUTCOMES],
}
