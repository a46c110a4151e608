"""Every report encoded, sealed, sent, opened, summed and released by the production code."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from aggregator.leader.leader_events import StoreSuppressed
from aggregator.protocol.interfaces import HelperPort
from aggregator.protocol.released import ReleasedWindow
from simulator.fleet.hosts import FleetState, HostInventory
from simulator.simulated_hosts import fleet_members, memberships, roster_of
from transport.embedded.embedded import EmbeddedLog
from transport.opening import EmbeddedSettings, Side, TransportSettings, open_transport
from transport.port import Transport
from wire.rejection import Reason
from wire.roster import Roster
from wire.task import Task

from .blocks import spans
from .crew import CrewEngine
from .engine_port import EngineSettings, RowSource, WindowOutcome
from .exact_hosts import ExactHosts, Sent
from .exact_parties import ExactParties
from .task_rules import merged, summed

_POLL_S: Final = 0.02
_PURGE_BYTES: Final = 512 << 20
_SETTLE_S: Final = 1
_PATIENCE_S: Final = 30.0
_EMPTY_POLLS: Final = 2
"""A broker's poll may come back empty while records are under way."""


def _as_it_is(port: HelperPort) -> HelperPort:
    return port


@dataclass(frozen=True, slots=True)
class Tampering:
    """Hooks of `exact`; without any, everybody is honest.

    helper      around the Leader's way to its Helper
    transport   around the hosts' way to the log, in each of their processes: to be pickled
    """

    helper: Callable[[HelperPort], HelperPort] = _as_it_is
    transport: Callable[[Transport], Transport] | None = None


HONEST: Final = Tampering()


class LogFellShort(RuntimeError):
    """The log delivered fewer records than were sent."""


class ExactEngine(CrewEngine[ExactHosts]):
    """`Fidelity` by the production participants, Leader and Helper over a log.

    Hosts work in `processes` processes of their own, the aggregators in this one.
    """

    name = "exact"

    def __init__(
        self,
        parties: ExactParties,
        tasks: list[Task],
        inventory: HostInventory,
        span: tuple[int, int],
        settings: EngineSettings,
        tampering: Tampering = HONEST,
    ) -> None:
        """Make every host's keys, enrol the hosts, sign roster and tasks.

        tasks   those of `parties.public_keys`
        span    Unix seconds, [first, end)
        """
        self._scratch = TemporaryDirectory(prefix="pointillist-exact-", dir=settings.folder)
        folder = Path(self._scratch.name)
        transport = _corner(settings, folder)
        parts = spans(inventory.hosts, settings.block_hosts, settings.processes)
        self._log = open_transport(transport, Side.AGGREGATOR)
        super().__init__(
            [
                partial(ExactHosts, number, part, settings, folder, transport, tampering.transport)
                for number, part in enumerate(parts)
            ]
        )
        self._parties = parties
        keys = [key for part in self._crew.call("public_keys") for key in part]
        roster = make_roster(keys, inventory, tasks)
        papers, self._ids = parties.start(tasks, roster, self._log, folder, span, tampering.helper)
        self._crew.call("take", papers)
        self._faithful = tampering.transport is None
        self._unpurged = 0

    def window(
        self, task: Task, window_start: int, state: FleetState, rows: RowSource
    ) -> WindowOutcome:
        """See `Fidelity.window`."""
        self._learn(task.series, rows)
        before = self._counters()
        end_s = window_start + task.window_s
        self._parties.now_s = float(end_s)
        self._crew.start("window", self._ids[task.series], task, state, end_s)
        sent = self._gather()
        released, told = self._parties.settle(end_s + task.lateness_s + _SETTLE_S)
        if any(part.held for part in sent):
            self._drain(sum(self._crew.call("send_late")))
            # What still waits for an epoch, or is late, is counted now.
            more = self._parties.settle(end_s + task.lateness_s + _SETTLE_S)
            released, told = released + more[0], told + more[1]
        self._purge(sum(part.sent for part in sent) * 4 * task.d)
        return self._outcome(task, window_start, state, sent, before, (released, told))

    def _gather(self) -> list[Sent]:
        """Read the log while the hosts still write to it, and then to its end."""
        got = 0
        while self._crew.working():
            got += self._parties.read(_POLL_S)
        sent: list[Sent] = self._crew.results()
        self._drain(sum(part.sent for part in sent) - got)
        return sent

    def _drain(self, expected: int) -> None:
        """Read to the log's end.

        expected    records that are on it and were not read; a network that tampers may hold fewer
                    or more
        Raises      LogFellShort when they do not come
        """
        deadline = time.monotonic() + _PATIENCE_S
        empty = 0
        while expected > 0 or empty < _EMPTY_POLLS:
            got = self._parties.read(_POLL_S)
            expected -= got
            if got:
                deadline, empty = time.monotonic() + _PATIENCE_S, 0
                continue
            empty += 1
            if not self._faithful and empty >= _EMPTY_POLLS:
                return
            if time.monotonic() > deadline:
                raise LogFellShort(f"expected {expected} more records on the log, got none")

    def _counters(self) -> Counter[str]:
        """Refusals of both parties since the start, by reason."""
        parties = self._parties
        return Counter(parties.leader.rejected) + parties.helper.refused + parties.helper.cleared

    def _outcome(
        self,
        task: Task,
        start: int,
        state: FleetState,
        sent: list[Sent],
        before: Counter[str],
        settled: tuple[list[ReleasedWindow], list[StoreSuppressed]],
    ) -> WindowOutcome:
        refused = self._counters()
        refused.subtract(before)
        for part in sent:
            refused.update(part.withheld)
        truth = summed([part.truth for part in sent])
        laps = (self._parties.leader_laps, self._parties.helper_laps)
        stages = merged([*(part.stage_s for part in sent), *(lap.take() for lap in laps)])
        released = next(
            (release for release in settled[0] if release.window_start_s == start), None
        )
        series = task.series
        # A window with too few hosts waits for more: it is settled while a later one is played.
        told = (
            suppressed.reason
            for suppressed in settled[1]
            if (suppressed.series, suppressed.key.window) == (series, start)
        )
        reason = next(told, Reason.N_MIN.value)
        return WindowOutcome(
            start,
            None if released is None else released.vector,
            0 if released is None else released.n,
            {name: count for name, count in refused.items() if count},
            reason if released is None else "",
            task,
            stages,
            truth,
            int(np.count_nonzero(state.reporting)),
            1,
            None if released is None else released.capacity,
        )

    def _purge(self, size: int) -> None:
        """Delete what was read: a day of 100,000 GPUs would lay 70 GB on the disk."""
        self._unpurged += size
        if isinstance(self._log, EmbeddedLog) and self._unpurged > _PURGE_BYTES:
            self._log.purge(time.time())
            self._unpurged = 0

    def close(self) -> None:
        """End the processes, and let the files go."""
        super().close()
        self._parties.close()
        self._log.close()
        self._scratch.cleanup()


def _corner(settings: EngineSettings, folder: Path) -> TransportSettings:
    """Give a log that holds nothing yet: a file, or topics of their own on the broker."""
    if settings.kafka is None:
        return EmbeddedSettings(folder / "log")
    return replace(settings.kafka, prefix=f"{settings.kafka.prefix}{secrets.token_hex(4)}.")


def make_roster(keys: list[bytes], inventory: HostInventory, tasks: list[Task]) -> Roster:
    """Enrol every host of an inventory in every task.

    keys    public keys, in the fleet's order
    """
    return roster_of(fleet_members(keys, inventory), memberships(tasks))
