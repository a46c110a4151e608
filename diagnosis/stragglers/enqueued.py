"""Collectives that return at once: a rank's host meets its peers where it waits for the GPU; pure.

NCCL's call gives work to a stream. The host waits later, in a call that waits for the stream, an
event or the device, and that call cannot return before the last peer has made its own collective
call. So a meeting has three times: when the host called, when it began to wait, when it went on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ns = NDArray[np.int64]


class Meetings(NamedTuple):
    """A rank's meetings, in order of leaving; of a call that blocks `called` is `entered`.

    called          when its host made the collective call, the last before the wait
    entered, left   when it began to wait and when it went on
    """

    called: Ns
    entered: Ns
    left: Ns


def meetings(called: Ns, entered: Ns, left: Ns) -> Meetings:
    """Join collective calls with the wait that follows them.

    called          of each collective call
    entered, left   of each wait for the GPU, those nested in others too

    Between two collective calls the longest wait is the meeting's: others are for copies, or for
    what is done already. Collectives without a wait behind them join the next that has one, and a
    wait before any collective is for the rank's own GPU.
    """
    calls = np.sort(called)
    group = np.searchsorted(calls, entered, side="right") - 1
    order = np.lexsort((left - entered, group))
    order = order[group[order] >= 0]
    last = np.flatnonzero(np.diff(group[order], append=-1))
    longest = order[last]
    longest = longest[np.argsort(left[longest], kind="stable")]
    return Meetings(calls[group[longest]], entered[longest], left[longest])


def merged(one: Meetings, other: Meetings) -> Meetings:
    """Give both, in order of leaving."""
    both = [np.concatenate(pair) for pair in zip(one, other, strict=True)]
    order = np.argsort(both[2], kind="stable")
    return Meetings(*(column[order] for column in both))


def waiting_since(called: Ns, entered: Ns) -> Ns:
    """Give when ranks came to calls that they met in, both int64[ranks, calls]: int64 likewise.

    Who called last came when it called. A peer that already waits for its GPU waits for that one
    since it began to wait; one that does not has lost nothing by then.
    """
    last = called.argmax(axis=0)
    latest = called.max(axis=0)
    came: Ns = np.minimum(entered, latest - 1)
    came[last, np.arange(called.shape[1])] = latest
    return came
