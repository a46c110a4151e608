"""Which applications ran on which hosts, day by day, as the hosts' own windows would see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.fleet import FleetModel
from simulator.fleet.hosts import IDLE, SEEN_WORDS, FleetState, unpack
from wire.catalogue import Catalogue

DAY_S: Final = 86_400
HOUR_S: Final = 3_600
_WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class DayRuns:
    """One day of a fleet.

    host, application   int64[pairs]: this application ran on this host; applications by number
    windows             int64[pairs]: minute windows of the day in which it ran there
    gpu_s               float64[24, applications]: GPU-seconds of work, by hour
    reporting           bool[hosts]: the day's report came in time
    busy_share          GPUs that a job held, of all, mean of the day
    """

    host: NDArray[np.int64]
    application: NDArray[np.int64]
    windows: NDArray[np.int64]
    gpu_s: NDArray[np.float64]
    reporting: NDArray[np.bool_]
    busy_share: float

    @property
    def hosts_of(self) -> NDArray[np.int64]:
        """int64[applications]: hosts that ran each of them and report."""
        told = self.reporting[self.host]
        return np.bincount(self.application[told], minlength=self.gpu_s.shape[1])


def live_days(
    model: FleetModel, catalogue: Catalogue, days: int, window_s: int = _WINDOW_S
) -> Iterator[DayRuns]:
    """Let a fleet live so many days from its scenario's start.

    window_s    looked at at a time, a divisor of an hour; longer ones than a minute count as that
                many minutes each, which no result without sampling rests on
    """
    start_s = model.scenario.start_s
    cells = catalogue.section("applications_seen").cells
    own = np.array(
        [cells.index(application.workload.application) for application in model.applications]
    )
    places, number = np.unique(own, return_inverse=True)
    for day in range(days):
        yield _day(model, start_s + day * DAY_S, places, number, window_s)


def _day(
    model: FleetModel,
    start_s: int,
    places: NDArray[np.int64],
    number: NDArray[np.int64],
    window_s: int,
) -> DayRuns:
    """Live one day.

    places  of the applications in the catalogue's table, ascending
    number  int64[model's tables], which of them each table counts under
    """
    inventory = model.inventory
    counts = np.zeros((inventory.hosts, len(places)), dtype=np.uint16)
    gpu_s = np.zeros((DAY_S // HOUR_S, len(places)))
    work = np.array([table.workload.busy_millionths / 1e6 for table in model.applications])
    held = 0.0
    for at in range(0, DAY_S, window_s):
        state = model.at(start_s + at, window_s)
        _count(state, places, counts)
        busy = np.flatnonzero(state.application != IDLE)
        which = state.application[busy]
        gpus = state.busy[busy] * inventory.gpus[busy].astype(np.float64)
        held += float(gpus.sum())
        done = gpus * work[which] * window_s
        gpu_s[at // HOUR_S] += np.bincount(number[which], done, minlength=len(places))
    reporting = model.at(start_s, DAY_S).reporting
    host, application = np.nonzero(counts)
    share = held / (DAY_S // window_s) / inventory.total_gpus
    windows = counts[host, application].astype(np.int64) * (window_s // _WINDOW_S)
    return DayRuns(host, application, windows, gpu_s, reporting, share)


def _count(state: FleetState, places: NDArray[np.int64], counts: NDArray[np.uint16]) -> None:
    """Add one to every host and application that met in the window."""
    active = np.flatnonzero(state.seen.any(axis=1))
    met = unpack(state.seen[active], 64 * SEEN_WORDS)[:, places]
    row, column = np.nonzero(met)
    counts[active[row], column] += 1
