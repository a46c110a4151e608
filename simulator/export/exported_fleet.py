"""One process of the production agent's loop that plays every host of a scenario."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.clock import Clock, SystemClock
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from edge_agent.shell import AgentShell
from privacy.noise import OpenDpSampler
from privacy.noise_table import TableSampler
from simulator.scenario import Scenario
from transport.opening import Side, TransportSettings, open_transport, prepare_transport
from wire.catalogue import Catalogue

from .exported_windows import ExportedWindow, ScenarioWindows

_IDLE_MS = 200
_SPOOL_OF_A_HOST = 64
_LEDGER, _FENCE, _BINDING = "ledger.sqlite", "fence", "binding"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """Where the reports go and whom the hosts trust.

    folder      identities, ledger and fence, 0700
    seconds     how long to go on, by the wall clock
    domain      of the tasks that are taken: "live" (fleet and operator tasks) or "demo"
    """

    folder: Path
    transport: TransportSettings
    pins: Pins
    bounds: Bounds
    seconds: float
    domain: str = "live"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was sent, by the agents' own count."""

    hosts: int
    tasks: int
    windows: int
    epochs: int
    sealed: int
    published: int
    refused: dict[str, int]


class ExportedFleet:
    """The hosts of a scenario before running aggregators."""

    def __init__(
        self,
        scenario: Scenario,
        hosts: list[Host],
        settings: ExportSettings,
        tell: Callable[[ExportedWindow], None],
        clock: Clock | None = None,
    ) -> None:
        """Open ledger and log.

        Raises      LedgerRefused, TransportUnavailable
        """
        catalogue = Catalogue.load()
        self._clock = clock or SystemClock()
        now_s = self._clock.unix_ms() // 1000
        self._hosts, self._settings, self._tell = hosts, settings, tell
        self._windows_seen = 0
        self.windows = ScenarioWindows(
            scenario, catalogue, self._count, until_s=now_s + settings.seconds
        )
        prepare_transport(settings.transport, Side.AGGREGATOR)
        ledger = self._ledger(now_s)
        ids = [host.host_id for host in hosts]
        participant = Participant(
            hosts,
            ledger.view(ids),
            # The table sampler is exact and fed by the operating system; opendp, which live agents
            # use, would take minutes of every window of ten thousand hosts.
            OpenDpSampler() if len(hosts) <= 50 else TableSampler(os.urandom),
            os.urandom,
            ParticipantRules(settings.pins, settings.bounds, settings.domain, None, catalogue),
        )
        transport = open_transport(settings.transport, Side.AGGREGATOR)
        self.shell = AgentShell(
            participant,
            ledger,
            transport,
            self.windows,
            (),
            clock=self._clock,
            name="simulated-fleet",
        )

    def _count(self, window: ExportedWindow) -> None:
        self._windows_seen += 1
        self._tell(window)

    def _ledger(self, now_s: int) -> Ledger:
        """Open the hosts' common ledger: budgets are kept per host, and survive a restart."""
        folder = self._settings.folder
        limits = SpoolLimits(max_records=_SPOOL_OF_A_HOST * len(self._hosts))
        path, fence, binding = folder / _LEDGER, folder / _FENCE, folder / _BINDING
        if path.exists():
            return Ledger.open(
                path, fence, binding=binding.read_bytes(), now_s=now_s, limits=limits
            )
        bound = secrets.token_bytes(32)
        binding.write_bytes(bound)
        return Ledger.create(
            path,
            fence,
            hosts=[host.host_id for host in self._hosts],
            binding=bound,
            now_s=now_s,
            limits=limits,
        )

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Exported:
        """Report until the time is over and everything is on the log, or until stopped.

        Raises      LedgerRefused
        """
        clock, shell = self._clock, self.shell
        shell.start()
        try:
            while not stopping() and not self._finished():
                shell.step()
                clock.sleep_ms(min(shell.pause_ms(), _IDLE_MS))
        finally:
            shell.close()
        tally = shell.tally
        return Exported(
            len(self._hosts),
            self.windows.opened,
            self._windows_seen,
            tally.epochs,
            tally.sealed,
            tally.published,
            dict(tally.refused),
        )

    def _finished(self) -> bool:
        if self._clock.unix_ms() / 1000 < self.windows.until_s:
            return False
        tally = self.shell.tally
        return tally.published >= tally.sealed + tally.epochs
