"""One process of a simulated fleet: many hosts through the production agent's loop.

Started as `python -m simulator.slice_process FILE.json`. It makes its hosts' keys itself and prints
their join requests as one line of JSON; everything else it learns from the log, as any agent does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import time

import numpy as np
from numpy.typing import NDArray

from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from privacy.noise import NoiseSampler, OpenDpSampler
from privacy.noise_table import SeededBytes, SeededSampler, TableSampler
from transport.files.private_files import parse_token
from transport.opening import Side, open_transport, prepare_transport
from transport.process.privileges import AGENT_USER, drop_to
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.report import Report
from wire.task import DEMO_DOMAIN

from .fleet import SteadyFleet
from .live_fleet import LiveFleet, LiveSettings
from .mischief import Mischief, MischievousTransport
from .simulated_hosts import gpus_of, new_hosts, vouched_requests
from .simulated_windows import SimulatedWindows, WindowTruth
from .slice_config import SliceConfig
from .streams import stream


class MixedSampler:
    """The first hosts of every batch draw as live agents do, the others by the exact table."""

    def __init__(self, first: NoiseSampler, first_hosts: int, rest: NoiseSampler) -> None:
        self._first = first
        self._first_hosts = first_hosts
        self._rest = rest

    @property
    def seeded(self) -> bool:
        """True when either can be repeated."""
        return self._first.seeded or self._rest.seeded

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `NoiseSampler.sample`."""
        first = min(self._first_hosts, hosts)
        return np.concatenate(
            [self._first.sample(first, sigma_1024), self._rest.sample(hosts - first, sigma_1024)]
        )


class LateReports:
    """Which reports the network holds back a second too long: those of hosts that windows chose."""

    def __init__(self, windows: SimulatedWindows, hosts: list[Host]) -> None:
        self._windows = windows
        self._index = {bytes(host.host_id): index for index, host in enumerate(hosts)}

    def __call__(self, envelope: bytes) -> float:
        """Give the time until which a report is held back, 0 for one that is not."""
        report = Report.decode(unwrap(envelope, len(envelope))[1])
        late = self._windows.late_hosts.get(report.header.window)
        if late is None or self._index.get(report.host_id) not in late.hosts:
            return 0.0
        return late.closes_s + 1.0


def _samplers(config: SliceConfig) -> NoiseSampler:
    rest: NoiseSampler
    if config.repeats:
        rest = SeededSampler(config.seed, f"noise/{config.part}")
    else:
        rest = TableSampler(os.urandom)
    if not config.opendp_hosts:
        return rest
    return MixedSampler(OpenDpSampler(), config.opendp_hosts, rest)


class Slice:
    """The hosts of one process and the agent loop around them."""

    def __init__(self, config: SliceConfig, hosts: list[Host]) -> None:
        self._config, self._hosts = config, hosts
        self._catalogue = Catalogue.load()
        self._fleet = SteadyFleet(config.played, self._catalogue)
        self._stopping = False

    def stop(self) -> None:
        """End the loop soon; safe from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Take part until every task's last window is sent, or until stopped."""
        with Path(self._config.truth_file).open("a", encoding="utf-8", buffering=1) as truths:
            windows = self._windows(truths.write)
            transport = MischievousTransport(
                open_transport(self._config.transport, Side.AGGREGATOR),
                Mischief(),
                stream(self._config.seed, "mischief", self._config.part),
                LateReports(windows, self._hosts),
                time,
            )
            LiveFleet(self._hosts, windows, transport, self._settings()).run(lambda: self._stopping)

    def _windows(self, write: Callable[[str], object]) -> SimulatedWindows:
        def tell(truth: WindowTruth) -> None:
            line = {
                "series": truth.series,
                "window": truth.start_s,
                "hosts": truth.hosts,
                "sums": truth.sums.tolist(),
            }
            write(json.dumps(line) + "\n")

        return SimulatedWindows(
            self._fleet,
            self._catalogue,
            (self._config.span,),
            tell,
            block_hosts=len(self._hosts),
            tasks=self._config.tasks,
            sends_late=True,
        )

    def _settings(self) -> LiveSettings:
        config = self._config
        pins = Pins(
            frozenset({bytes.fromhex(config.leader_pk)}),
            frozenset({bytes.fromhex(config.helper_pk)}),
        )
        bounds = Bounds(n_min_at_least=config.n_min_at_least)
        return LiveSettings(
            Path(config.state_dir),
            config.name,
            ParticipantRules(pins, bounds, DEMO_DOMAIN),
            _samplers(config),
            spool_reports=16,
            rounding=SeededBytes(config.seed, f"rounding/{config.part}")
            if config.repeats
            else None,
        )


def announce(config: SliceConfig, hosts: list[Host]) -> None:
    """Write the hosts' join requests to standard output, one line.

    Raises      TokenUnusable, OSError
    """
    lines = Path(config.tokens_file).read_bytes().split()
    tokens = [parse_token(line, config.tokens_file) for line in lines]
    span = config.span
    gpus = gpus_of(SteadyFleet(config.played, Catalogue.load()).inventory)[span.lo : span.hi]
    requests = [one.encode().hex() for one in vouched_requests(hosts, tokens, gpus)]
    sys.stdout.write(json.dumps({"name": config.name, "requests": requests}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run one slice until its tasks end or a signal comes."""
    config = SliceConfig.read(Path(sys.argv[1]))
    hosts = new_hosts(config.span.hi - config.span.lo)
    announce(config, hosts)  # they are enrolled while this process prepares
    fleet = Slice(config, hosts)  # its scenario may lie where the agents' user cannot read
    os.umask(0o027)
    prepare_transport(config.transport, Side.AGGREGATOR)
    drop_to(AGENT_USER)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: fleet.stop())
    fleet.run()


if __name__ == "__main__":
    main()
