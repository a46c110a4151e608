"""Simulated hosts on the wall clock: one process of the production agent's loop plays them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.clock import Clock, SystemClock
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import ParticipantRules
from edge_agent.sending.effects import AgentTally
from edge_agent.shell import AgentShell
from privacy.noise import NoiseSampler
from transport.port import Transport

from .simulated_hosts import hosts_ledger, participant_of
from .simulated_windows import SimulatedWindows

_IDLE_MS: Final = 200


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """Hosts of one process on the wall clock.

    folder          of their ledger, 0700
    spool_reports   records that may wait for the log, per host
    rounding        a stream that repeats; None: the operating system
    """

    folder: Path
    name: str
    rules: ParticipantRules
    sampler: NoiseSampler
    spool_reports: int
    rounding: Callable[[int], bytes] | None = None


class LiveFleet:
    """The production agent's loop around many hosts and the windows of what they measured."""

    def __init__(
        self,
        hosts: Sequence[Host],
        windows: SimulatedWindows,
        transport: Transport,
        settings: LiveSettings,
        clock: Clock | None = None,
    ) -> None:
        """Open the ledger.

        Raises      LedgerRefused
        """
        self._clock = clock or SystemClock()
        self._windows = windows
        limits = SpoolLimits(max_records=settings.spool_reports * len(hosts))
        ledger = hosts_ledger(settings.folder, hosts, self._now_s, limits)
        participant = participant_of(
            hosts, ledger, settings.sampler, settings.rules, settings.rounding
        )
        self._shell = AgentShell(
            participant, ledger, transport, windows, (), clock=self._clock, name=settings.name
        )

    @property
    def _now_s(self) -> int:
        return self._clock.unix_ms() // 1000

    def run(self, stopping: Callable[[], bool] = lambda: False) -> AgentTally:
        """Report until the windows are over and everything is on the log, or until stopped.

        Raises      LedgerRefused
        """
        shell = self._shell
        shell.start()
        try:
            while not stopping() and not self._finished():
                shell.step()
                self._clock.sleep_ms(min(shell.pause_ms(), _IDLE_MS))
        finally:
            shell.close()
        return shell.tally

    def _finished(self) -> bool:
        tally = self._shell.tally
        sent = tally.published >= tally.sealed + tally.epochs
        return sent and self._windows.over(self._now_s)
