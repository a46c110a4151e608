"""Which rows of a trace are one call that several ranks met in; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from .trace import UNKNOWN, Meeting, RankTrace

_TOGETHER_S: Final = 0.001
"""In a recorded 64-GPU job members leave within 0.15 ms; other communicators 1.5 ms or more off."""
_SHARE: Final = 0.9
_MOST_CALLS: Final = 64
_MOST_RANKS: Final = 1_024

Indices = NDArray[np.int64]
Seconds = NDArray[np.float64]


def together(
    name: Indices, step: Indices, count: Indices, rank: Indices, left_s: Seconds
) -> Indices:
    """Number the communicator of each entry into a collective: int64[n].

    Two ranks share one when they left at least nine in ten of the calls of a name, by step and
    count, within a millisecond of each other. Clocks that disagree leave each rank alone.
    """
    group = np.zeros(len(name), dtype=np.int64)
    numbered = 0
    for number in np.unique(name):
        mine = np.flatnonzero(name == number)
        ranks, place = np.unique(rank[mine], return_inverse=True)
        member = np.arange(len(ranks), dtype=np.int64)
        if len(ranks) <= _MOST_RANKS:
            ends = _ends(step[mine], count[mine], place.reshape(-1), left_s[mine], len(ranks))
            _, parts = connected_components(_close(ends), directed=False)
            member = parts.astype(np.int64)
        group[mine] = numbered + member[place.reshape(-1)]
        numbered += len(ranks)
    return group


def _ends(step: Indices, count: Indices, place: Indices, left_s: Seconds, ranks: int) -> Seconds:
    """When ranks left some calls, float64[ranks, calls], evenly taken; NaN: was not there."""
    calls, call = np.unique(np.column_stack((step, count)), axis=0, return_inverse=True)
    ends = np.full((ranks, len(calls)), np.nan)
    ends[place, np.asarray(call).reshape(-1)] = left_s
    return ends[:, :: max(1, len(calls) // _MOST_CALLS)]


def _close(ends: Seconds) -> NDArray[np.bool_]:
    close = np.zeros((len(ends), len(ends)), dtype=np.bool_)
    for place, own in enumerate(ends):
        apart = np.abs(ends - own)
        both = np.maximum((~np.isnan(apart)).sum(axis=1), 1)
        close[place] = (apart <= _TOGETHER_S).sum(axis=1) >= _SHARE * both
    return close


_GUESSED: Final = 1 << 40
"""Communicators that are guessed are numbered from here, by stage."""


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Entries of ranks into calls, one each, sorted by call and then by the time they entered.

    call      int64[n]: rows of the same number are one call
    rank      int64[n], index of the rank
    step      int64[n], index of the step
    entered_s, left_s   float64[n]
    pairs     bool[n]: a call between two ranks, not of a group
    """

    call: Indices
    rank: Indices
    step: Indices
    entered_s: Seconds
    left_s: Seconds
    pairs: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        call: Indices,
        rank: Indices,
        step: Indices,
        entered_s: Seconds,
        left_s: Seconds,
        pairs: NDArray[np.bool_] | None = None,
    ) -> Calls:
        order = np.lexsort((entered_s, call))
        of_two = np.zeros(len(call), dtype=np.bool_) if pairs is None else pairs
        return cls(
            call[order], rank[order], step[order], entered_s[order], left_s[order], of_two[order]
        )


def calls_of(trace: RankTrace) -> Calls:
    """Match the rows of ranks that met.

    A collective is matched by step, name, communicator and how often the rank has made it in this
    step. Where the trace names no communicator, ranks that always leave together are taken for one.
    What a stage sends is matched with what the next one receives, replica by replica.
    """
    meetings = np.array([operation.meeting for operation in trace.operations], dtype=np.int8)[
        trace.name
    ]
    rows = np.flatnonzero(meetings != Meeting.NOBODY)
    place = _place(trace, meetings)[rows]
    step, rank = trace.step_index[rows], trace.rank_index[rows]
    count = _occurrence(np.column_stack((step, rank, place)), trace.start_s[rows])
    left_s = trace.start_s[rows] + trace.duration_s[rows]
    unknown = (trace.group[rows] == UNKNOWN) & (meetings[rows] == Meeting.GROUP)
    place[unknown, 1] = _GUESSED + together(
        place[unknown, 0], step[unknown], count[unknown], rank[unknown], left_s[unknown]
    )
    columns = np.column_stack((step, place, count))
    _, call = np.unique(columns, axis=0, return_inverse=True)
    return Calls.of(
        np.asarray(call, dtype=np.int64).reshape(-1),
        rank,
        step,
        trace.start_s[rows],
        left_s,
        meetings[rows] == Meeting.NEXT,
    )


def _place(trace: RankTrace, meetings: NDArray[np.int8]) -> Indices:
    """Where each row meets: int64[rows, 3], alike for all that meet."""
    pairs = sorted({operation.pair for operation in trace.operations})
    name = np.arange(len(trace.names), dtype=np.int64)
    ahead = np.zeros(len(trace.names), dtype=np.int64)
    for number, operation in enumerate(trace.operations):
        if operation.meeting is Meeting.NEXT:
            name[number] = -1 - pairs.index(operation.pair)
            forward = not operation.pair.lower().startswith(("backward", "bwd"))
            # The boundary between stages s and s + 1 is s: a send forward leaves from s.
            ahead[number] = 0 if operation.sends == forward else -1
    known = trace.group != UNKNOWN
    guessed = meetings == Meeting.NEXT
    stage = trace.stage.astype(np.int64) + np.where(guessed, ahead[trace.name], 0)
    return np.column_stack(
        (
            name[trace.name],
            np.where(known, trace.group, _GUESSED + stage),
            np.where(guessed & ~known, trace.replica, 0),
        )
    )


def _occurrence(keys: Indices, start_s: Seconds) -> Indices:
    """How many rows of the same key came before each row."""
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = np.asarray(group).reshape(-1)
    order = np.lexsort((start_s, group))
    sorted_group = group[order]
    starts = np.flatnonzero(np.r_[True, sorted_group[1:] != sorted_group[:-1]])
    lengths = np.diff(np.r_[starts, len(sorted_group)])
    count = np.empty(len(keys), dtype=np.int64)
    count[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return count
