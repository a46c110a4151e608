"""What the ranks of one job did: rows of a trace, whatever they were read from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.families import FamilyRules


class OperationKind(IntEnum):
    COMPUTE = 0
    DATA_LOADING = 1
    OTHER = 2
    COMMUNICATION = 3


BUSY: Final = (OperationKind.COMPUTE, OperationKind.DATA_LOADING, OperationKind.OTHER)
"""Kinds that are a rank's own work. The time of a communication holds the wait for its peers."""


class Meeting(IntEnum):
    NOBODY = 0
    GROUP = 1
    NEXT = 2
    """What a stage sends is received by another rank: `X-send` meets `X-recv`."""


class Operation(NamedTuple):
    """How a name is read: `pair` names both ends of a point-to-point call alike."""

    kind: OperationKind
    meeting: Meeting
    pair: str = ""
    sends: bool = False


_COLLECTIVE: Final = re.compile(
    r"broadcast|barrier|gloo|\bcollective(?:\b|[-_])|clip.*grad|grad.*norm", re.IGNORECASE
)
"""Operations of a job that no kernel's family knows."""
# The norm for clipping is summed over all ranks: in a 64-GPU trace its ends agree within a
# millisecond and the rank that comes last takes a thirtieth of the others' time.
_END: Final = re.compile(r"^(?P<pair>.*?)[-_ ]?(?P<end>send|recv|receive)$", re.IGNORECASE)
_DATA: Final = re.compile(
    r"data[-_ ]?load|batch[-_ ]?gen|next[-_ ]?batch|get[-_ ]?batch|input|fetch", re.IGNORECASE
)
_COMPUTE: Final = re.compile(
    r"compute|forward|backward|fwd|bwd|optimizer|matmul|gemm|attention|kernel", re.IGNORECASE
)


@cache
def _families() -> FamilyRules:
    return FamilyRules.load()


def communicates(kernel_name: str) -> bool:
    return _families().classify(kernel_name)[0] == "communication"


def operation(name: str) -> Operation:
    """Read an operation's name: collectives first, then both ends of a call, data and compute.

    Which kernels communicate the rules of families say, and nothing else.
    """
    if communicates(name) or _COLLECTIVE.search(name):
        return Operation(OperationKind.COMMUNICATION, Meeting.GROUP)
    if end := _END.match(name):
        sends = end["end"].lower() == "send"
        return Operation(OperationKind.COMMUNICATION, Meeting.NEXT, end["pair"], sends)
    if _DATA.search(name):
        return Operation(OperationKind.DATA_LOADING, Meeting.NOBODY)
    if _COMPUTE.search(name):
        return Operation(OperationKind.COMPUTE, Meeting.NOBODY)
    return Operation(OperationKind.OTHER, Meeting.NOBODY)


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
    remarks       what of the files was left out, or is not as their names say
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
    remarks: tuple[str, ...] = ()

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
        return np.unique(self.rank)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return np.unique(self.step)

    @cached_property
    def stage_of(self) -> NDArray[np.int32]:
        _, first = np.unique(self.rank, return_index=True)
        return self.stage[first]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(operation(name) for name in self.names)

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        kinds = np.array([operation.kind for operation in self.operations], dtype=np.int8)
        return np.asarray(kinds[self.name], dtype=np.int8)

    @cached_property
    def rank_index(self) -> NDArray[np.int64]:
        return np.searchsorted(self.ranks, self.rank)

    @cached_property
    def step_index(self) -> NDArray[np.int64]:
        return np.searchsorted(self.steps, self.step)

    def busy(self) -> dict[OperationKind, NDArray[np.float64]]:
        """Sum the time of each kind: float64[ranks, steps], s; NaN where a rank has no row."""
        shape = len(self.ranks), len(self.steps)
        cell = self.rank_index * shape[1] + self.step_index
        size = shape[0] * shape[1]
        unseen, found = np.bincount(cell, minlength=size) == 0, {}
        for kind in BUSY:
            weights = np.where(self.kind == kind, self.duration_s, 0.0)
            time = np.bincount(cell, weights=weights, minlength=size).astype(np.float64)
            time[unseen] = np.nan
            found[kind] = time.reshape(shape)
        return found
