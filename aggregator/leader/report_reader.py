"""Who reads the reports, as the Leader asks: its own loop, or another process for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.party.health import HealthMetric
from aggregator.protocol.epochs import AdmittedEpoch
from aggregator.protocol.interfaces import BatchKey, RosterSeen, TaskSeen
from transport.interface import Record
from wire.topics import EPOCHS, REPORTS

from .intake import Intake
from .windows import FrozenWindow

Sum = NDArray[np.uint32] | NDArray[np.int64]


class ReportReader(Protocol):
    """Puts hosts into the Leader's windows, and adds up the vectors of those that count.

    topics      that the Leader's own loop reads
    measures    what it says beside in the Leader's status
    """

    topics: Sequence[str]
    measures: Sequence[HealthMetric]

    def take(self, records: Sequence[Record], now_s: float) -> None:
        """Take reports of the log, where the loop reads them."""
        ...

    def turn(self, now_s: float) -> None:
        """Take what another process has said since, and tell it what is new."""
        ...

    def learn(self, signed: TaskSeen | RosterSeen) -> None:
        """Take a task or roster that the Leader has accepted."""
        ...

    def epoch(self, admitted: AdmittedEpoch) -> None:
        """Take an epoch that has come, or a twin that makes one dead."""
        ...

    def restored(self) -> None:
        """Take over what came back from the durable state."""
        ...

    def closed(self, key: BatchKey) -> None:
        """Take that a window's set of reports is final."""
        ...

    def ended(self, key: BatchKey, until_s: int) -> None:
        """Take that a window has ended, durably; reports of it may come until then."""
        ...

    def sum_of(self, frozen: FrozenWindow, accepted: NDArray[np.bool_]) -> Sum | None:
        """Give the sum of the accepted hosts' vectors; None: asked for, and there later."""
        ...

    def lag(self, own: int | None, now_s: float) -> int | None:
        """Records left to read, with those of the loop's own topics; None: the log is away."""
        ...

    def status(self, now_s: float) -> Mapping[str, object]:
        """What the Leader's status says of it."""
        ...

    def close(self) -> None:
        """Let go of another process."""
        ...


class OwnReader:
    """The Leader's own loop reads."""

    topics: Sequence[str] = (EPOCHS, REPORTS)
    measures: Sequence[HealthMetric] = ()

    def __init__(self, intake: Intake) -> None:
        """Read through an intake."""
        self._intake = intake

    def take(self, records: Sequence[Record], now_s: float) -> None:
        """Check each, and put it into its window."""
        self._intake.take(records, now_s)

    def learn(self, signed: TaskSeen | RosterSeen) -> None:  # noqa: ARG002
        """Take the directory's new task or roster into account."""
        self._intake.tasks_changed()

    def epoch(self, admitted: AdmittedEpoch) -> None:
        """Take the reports that waited for it."""
        self._intake.unpark(admitted.known.host_id)

    def closed(self, key: BatchKey) -> None:
        """Refuse the reports whose epoch came too late."""
        self._intake.drop_parked(lambda parked: parked.key == key)

    def sum_of(self, frozen: FrozenWindow, accepted: NDArray[np.bool_]) -> Sum | None:
        """Add the window's own rows."""
        return frozen.window.sum_accepted(frozen.batch.entries, accepted)

    def lag(self, own: int | None, now_s: float) -> int | None:  # noqa: ARG002
        """Give the loop's own."""
        return own

    def turn(self, now_s: float) -> None:
        """Do nothing, as the next four: there is no other process."""

    def restored(self) -> None:
        """Do nothing."""

    def ended(self, key: BatchKey, until_s: int) -> None:
        """Do nothing."""

    def status(self, now_s: float) -> Mapping[str, object]:  # noqa: ARG002
        """Say nothing."""
        return {}

    def close(self) -> None:
        """Do nothing."""
