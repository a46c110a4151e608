"""The Leader's status document, and which of its numbers are metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from aggregator.party.party_health import DISK_MEASURE, HealthMetric, Trouble, trouble_measure
from wire.task import Task

from .leader_events import Settled, StoreRelease, StoreSuppressed

MEASURES: Final = (
    trouble_measure(*Trouble),
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("standby", "standby", "1 while another machine leads"),
    HealthMetric("log_lag", "log_lag_records", "records left to read; -1 while the log is away"),
    HealthMetric("helper_seen", "helper_seen_seconds", "when the Helper last answered, unix time"),
    HealthMetric(
        "last_windows",
        "last_window_end_seconds",
        "end of the newest settled window, unix time",
        "series",
        of=lambda last: {series: ended["window_end"] for series, ended in last.items()},
    ),
    HealthMetric("windows_unsettled", "windows_unsettled", "windows open or frozen"),
    HealthMetric("windows_released", "windows_released", "since the start", counter=True),
    HealthMetric(
        "windows_suppressed", "windows_suppressed", "since the start", "reason", counter=True
    ),
    HealthMetric("reports_admitted", "reports_admitted", "since the start", counter=True),
    HealthMetric("rejected", "rejected", "reports and epochs refused", "reason", counter=True),
    HealthMetric("dead_letters", "dead_letters", "of refused messages", "outcome", counter=True),
    HealthMetric("epochs_open", "epochs_open", "epochs whose keys are at hand"),
    DISK_MEASURE,
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a window ended: `outcome` is "released" or the reason why not."""

    window_start: int
    window_end: int
    outcome: str
    hosts: int


class LastWindows:
    """The newest window of each series that ended since the start."""

    def __init__(self) -> None:
        self._last: dict[str, Ended] = {}

    def note(self, settled: Settled) -> None:
        """Take a window that ended; one before the newest changes nothing."""
        match settled:
            case StoreRelease():
                task, outcome, hosts = settled.released.task, "released", settled.released.n
            case StoreSuppressed(task=Task() as task):
                outcome, hosts = settled.reason, settled.hosts
            case _:
                return
        before, window = self._last.get(task.series), settled.key.window
        if before is None or before.window_start <= window:
            self._last[task.series] = Ended(window, window + task.window_s, outcome, hosts)

    @property
    def by_series(self) -> Mapping[str, Mapping[str, object]]:
        """series -> what is told of its newest window."""
        return {series: asdict(ended) for series, ended in self._last.items()}
