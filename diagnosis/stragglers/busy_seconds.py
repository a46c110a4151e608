"""Live ranks seen from outside, without any mark: how busy each one's cgroup was; pure.

Ranks that meet in every step take equally many steps, so who is busy for longer in a second works
longer in a step, and who sleeps waits. This tells who is slow and what its time goes to, not who
waited for whom. Ranks that spin while they wait look busy: then nobody stands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Frame, Signals

from .calls import Calls
from .judge import Job
from .trace import OperationKind


class TimeSpent(StrEnum):
    """What a rank's own time in a second went to; names as the causes of diagnosis have them."""

    COMPUTE = "compute"
    THROTTLED = "cgroup_throttling"
    CONTENDED = "cpu_contention"
    DISK = "disk_io"


_SIGNALS: Final = {
    TimeSpent.COMPUTE: "cpu_ms_per_s",
    TimeSpent.THROTTLED: "throttled_delay_ms_per_s",
    TimeSpent.CONTENDED: "run_delay_ms_per_s",
    TimeSpent.DISK: "block_wait_ms_per_s",
}
_MOST_SECONDS: Final = 3_600
_MARGIN: Final = 0.1


class BusySeconds:
    """Takes frames, and keeps what each rank's cgroup did in each second.

    ranks   cgroup of each rank, in order; its stage beside it
    """

    def __init__(self, ranks: Sequence[str], stages: Sequence[int] | None = None) -> None:
        self._ranks = tuple(ranks)
        self._stages = np.array(stages or [0] * len(ranks), dtype=np.int32)
        self._seconds: deque[NDArray[np.float64]] = deque(maxlen=_MOST_SECONDS)
        self._ends_ns: deque[int] = deque(maxlen=_MOST_SECONDS)

    def add(self, frame: Frame) -> None:
        """Take one second."""
        by_cgroup = dict(frame.cgroups) | {
            subject.cgroup: subject.signals for subject in frame.subjects.values()
        }
        rows = [_spent(by_cgroup.get(cgroup, {})) for cgroup in self._ranks]
        self._seconds.append(np.array(rows))
        self._ends_ns.append(frame.boottime_ns)

    def job(self, since_ns: int = 0) -> Job | None:
        """Give busy seconds as steps; None before the first."""
        spent = self._spent(since_ns)
        if not len(spent):
            return None
        busy = spent.sum(axis=2).T
        nothing = np.zeros(0, dtype=np.int64)
        return Job(
            np.arange(len(self._ranks), dtype=np.int32),
            self._stages,
            np.arange(len(spent), dtype=np.int64),
            {
                OperationKind.COMPUTE: busy,
                OperationKind.DATA_LOADING: 0 * busy,
                OperationKind.OTHER: 0 * busy,
            },
            Calls.of(nothing, nothing, nothing, np.zeros(0), np.zeros(0)),
        )

    def reason(self, rank: int, since_ns: int = 0) -> TimeSpent | None:
        """Say what a rank's time goes to more than its peers'; None where nothing stands out.

        More CPU time than its peers' is more work, whatever else that brings about: under a quota
        more work is throttled more. Only without it is a wait for the CPU or a disk the cause.
        """
        spent = self._spent(since_ns)
        peers = (self._stages == self._stages[rank]) & (np.arange(len(self._stages)) != rank)
        if not len(spent) or not peers.any():
            return None
        typical = np.nanmedian(spent, axis=0)
        excess = typical[rank] - np.median(typical[peers], axis=0)
        kinds = list(TimeSpent)
        usual = float(np.median(typical[peers].sum(axis=1)))
        if excess[0] >= _MARGIN * float(np.median(typical[peers][:, 0])) > 0:
            return TimeSpent.COMPUTE
        most = int(np.argmax(excess))
        return kinds[most] if excess[most] >= _MARGIN * usual > 0 else None

    def _spent(self, since_ns: int) -> NDArray[np.float64]:
        """Give float64[seconds, ranks, Spent], seconds a second."""
        kept = [
            row for row, end in zip(self._seconds, self._ends_ns, strict=True) if end >= since_ns
        ]
        return np.array(kept).reshape(len(kept), len(self._ranks), len(TimeSpent))


def _spent(signals: Signals) -> list[float]:
    """Take what is own time from the signals of a cgroup, NaN where it was not seen."""
    if _SIGNALS[TimeSpent.COMPUTE] not in signals:
        return [np.nan] * len(TimeSpent)
    return [signals.get(_SIGNALS[kind], 0.0) / 1e3 for kind in TimeSpent]
