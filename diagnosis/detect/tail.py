"""What the detector of spikes keeps of a second, and what it says of the tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class TailSecond:
    """The steps of one frame, measured by what is usual.

    ended_ns, duration_ns   int64[n] each
    steps     those that ended, and one that will not end
    long_ns   when each long one ended; a frame's end for a stalled one
    """

    at_ns: int
    span_s: float
    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    steps: int
    long_ns: tuple[int, ...]
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last seconds say of the tail.

    nats      log of how much likelier the share of long steps is now than usual
    onset_ns  the long step from which on the steps are likeliest to have changed; the frame's end
              where there is no spike
    lately    the same of the last three seconds alone
    current   the newest second is, by itself
    stalled   a step will not end
    settling  a job begun anew: its first steps are measured by nothing
    likely    a spike where something else makes one likely
    """

    spiking: bool
    nats: float
    onset_ns: int
    lately: float = 0.0
    current: bool = False
    stalled: bool = False
    settling: bool = False
    likely: bool = False


class TailRatios(NamedTuple):
    """log2 of now to usual: quantiles of the step times, and steps a second. NaN: unknown."""

    p10: float
    p50: float
    p99: float
    rate: float
