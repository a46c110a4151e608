"""What the ranks of one job did: rows of a trace, whatever they were read from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .operations import BUSY, Operation, OperationKind, operation

MOST_ROWS: Final = 20_000_000
MOST_RANKS: Final = 65_536
MOST_CELLS: Final = 20_000_000
"""Ranks times steps."""
MOST_NAMES: Final = 4_096
LONGEST_S: Final = 86_400.0
UNKNOWN: Final = -1
"""Of a communicator or a place in the data-parallel group: the trace does not say."""


class TraceRefused(Exception):
    """A trace that is none: says what was expected and what came."""


@dataclass(frozen=True, eq=False)
class RankTrace:
    """Operations of the ranks of one job, one row each, in no particular order.

    rank, stage   int32[n]; the pipeline stage, 0 where the job has one
    step          int64[n]
    name          int32[n], index into `names`
    start_s       float64[n], on a clock that the ranks share; it may begin anew with each step
    duration_s    float64[n], 0 .. 86,400
    group         int64[n], the communicator; UNKNOWN: it is guessed from the name and the stage
    replica       int32[n], place in the data-parallel group, or UNKNOWN
    Raises        TraceRefused
    """

    rank: NDArray[np.int32]
    stage: NDArray[np.int32]
    step: NDArray[np.int64]
    name: NDArray[np.int32]
    names: tuple[str, ...]
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    group: NDArray[np.int64]
    replica: NDArray[np.int32]

    def __post_init__(self) -> None:
        if not len(self.rank):
            raise TraceRefused("expected operations of ranks, found none")
        if len(self.rank) > MOST_ROWS:
            raise TraceRefused(f"expected at most {MOST_ROWS:,} rows, got {len(self.rank):,}")
        if len(self.names) > MOST_NAMES:
            raise TraceRefused(f"expected at most {MOST_NAMES:,} names of operations")
        if not (np.isfinite(self.start_s).all() and np.isfinite(self.duration_s).all()):
            raise TraceRefused("expected finite times")
        if self.duration_s.min() < 0 or self.duration_s.max() > LONGEST_S:
            raise TraceRefused(f"expected durations of 0 to {LONGEST_S:,.0f} s")
        if len(self.ranks) > MOST_RANKS or len(self.ranks) * len(self.steps) > MOST_CELLS:
            raise TraceRefused(
                f"expected at most {MOST_RANKS:,} ranks, and {MOST_CELLS:,} for ranks times steps; "
                f"got {len(self.ranks):,} ranks and {len(self.steps):,} steps"
            )
        if min(self.rank.min(), self.stage.min()) < 0:
            raise TraceRefused("expected ranks and stages of at least 0")
        if len(np.unique(self.rank.astype(np.int64) << 32 | self.stage)) != len(self.ranks):
            raise TraceRefused("expected each rank in one pipeline stage, got one in several")

    @cached_property
    def ranks(self) -> NDArray[np.int32]:
        """The ranks, ascending."""
        return np.unique(self.rank)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """The steps, ascending."""
        return np.unique(self.step)

    @cached_property
    def stage_of(self) -> NDArray[np.int32]:
        """Stage of each of `ranks`."""
        _, first = np.unique(self.rank, return_index=True)
        return self.stage[first]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """How each of `names` is read."""
        return tuple(operation(name) for name in self.names)

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """`OperationKind` of each row."""
        kinds = np.array([one.kind for one in self.operations], dtype=np.int8)
        return np.asarray(kinds[self.name], dtype=np.int8)

    @cached_property
    def rank_index(self) -> NDArray[np.int64]:
        """Place in `ranks` of each row."""
        return np.searchsorted(self.ranks, self.rank)

    @cached_property
    def step_index(self) -> NDArray[np.int64]:
        """Place in `steps` of each row."""
        return np.searchsorted(self.steps, self.step)

    def time_of(self, kind: OperationKind) -> NDArray[np.float64]:
        """Sum the time of one kind: float64[ranks, steps], seconds; NaN where a rank has no row."""
        shape = len(self.ranks), len(self.steps)
        cell = self.rank_index * shape[1] + self.step_index
        mine = self.kind == kind
        size = shape[0] * shape[1]
        weights = np.where(mine, self.duration_s, 0.0)
        time = np.bincount(cell, weights=weights, minlength=size).astype(np.float64)
        time[np.bincount(cell, minlength=size) == 0] = np.nan
        return time.reshape(shape)

    def busy(self) -> dict[OperationKind, NDArray[np.float64]]:
        """Give the time of each kind that is a rank's own work."""
        return {kind: self.time_of(kind) for kind in BUSY}
