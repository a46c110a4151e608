"""Which process."""

from __future__ import annotations

from typing import NamedTuple


class ProcessKey(NamedTuple):
    """A process: a pid used again has another start time.

    start_ns    CLOCK_BOOTTIME. Programs give it exactly; what comes from /proc is rounded down to
                the tick of 10 ms: `proc_maps.coarse` makes the two comparable
    """

    pid: int
    start_ns: int
