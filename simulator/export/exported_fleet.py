"""One process of the production agent's loop that plays every host of a scenario."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_agent.clock import Clock, SystemClock
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from privacy.noise import OpenDpSampler
from privacy.noise_table import TableSampler
from simulator.engine.blocks import spans
from simulator.engine.engine_port import BLOCK_HOSTS
from simulator.fleet import FleetModel
from simulator.live_fleet import LiveFleet, LiveSettings
from simulator.scenario import Scenario
from simulator.simulated_windows import SimulatedWindows, WindowTruth
from transport.opening import Side, TransportSettings, open_transport, prepare_transport
from wire.catalogue import Catalogue

_SPOOL_OF_A_HOST = 64


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
        tell: Callable[[WindowTruth], None],
        clock: Clock | None = None,
    ) -> None:
        """Open ledger and log.

        Raises      LedgerRefused, TransportUnavailable
        """
        catalogue, clock = Catalogue.load(), clock or SystemClock()
        self._hosts, self._tell = hosts, tell
        self._windows_seen = 0
        (part,) = spans(len(hosts), BLOCK_HOSTS, processes=1)
        self._windows = SimulatedWindows(
            FleetModel(scenario, catalogue),
            catalogue,
            part,
            self._count,
            block_hosts=BLOCK_HOSTS,
            until_s=clock.unix_ms() // 1000 + settings.seconds,
        )
        prepare_transport(settings.transport, Side.AGGREGATOR)
        live = LiveSettings(
            settings.folder,
            "simulated-fleet",
            ParticipantRules(settings.pins, settings.bounds, settings.domain, None, catalogue),
            # The table sampler is exact and fed by the operating system; opendp, which live agents
            # use, would take minutes of every window of ten thousand hosts.
            OpenDpSampler() if len(hosts) <= 50 else TableSampler(os.urandom),
            spool_reports=_SPOOL_OF_A_HOST,
        )
        transport = open_transport(settings.transport, Side.AGGREGATOR)
        self._live = LiveFleet(hosts, self._windows, transport, live, clock)

    def _count(self, window: WindowTruth) -> None:
        self._windows_seen += 1
        self._tell(window)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Exported:
        """Report until the time is over and everything is on the log, or until stopped.

        Raises      LedgerRefused
        """
        tally = self._live.run(stopping)
        return Exported(
            len(self._hosts),
            self._windows.opened,
            self._windows_seen,
            tally.epochs,
            tally.sealed,
            tally.published,
            dict(tally.refused),
        )
