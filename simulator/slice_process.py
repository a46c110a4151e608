"""One process of a simulated fleet: many hosts through the production agent's loop.

Started as `python -m simulator.slice_process FILE.json`. It makes its hosts' keys itself and prints
their public parts as one line of JSON; everything else it learns from the log, as any agent does.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import time

from edge_agent.clock import SystemClock
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant, ParticipantRules
from edge_agent.protocol.task_check import Bounds, Pins
from edge_agent.shell import AgentShell
from privacy.noise import NoiseSampler, OpenDpSampler
from privacy.noise_table import SeededBytes, SeededSampler, TableSampler
from privacy.signing import SigningKey
from transport.opening import Side, open_transport, prepare_transport
from transport.privileges import AGENT_USER, drop_to
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.ids import host_id
from wire.report import Report
from wire.task import DEMO_DOMAIN

from .fleet_windows import FleetShape, FleetWindows, Truth
from .mischief import Mischief, MischievousTransport
from .mixed_noise import MixedSampler
from .slice_config import SliceConfig
from .streams import stream
from .workloads import load_workloads

_IDLE_MS = 200


class LateReports:
    """Which reports the network holds back a second too long: those of hosts that windows chose."""

    def __init__(self, windows: FleetWindows, hosts: list[Host]) -> None:
        self._windows = windows
        self._index = {bytes(host.host_id): index for index, host in enumerate(hosts)}

    def __call__(self, envelope: bytes) -> float:
        """Give the time until which a report is held back, 0 for one that is not."""
        report = Report.decode(unwrap(envelope, len(envelope))[1])
        late = self._windows.late_hosts.get(report.header.window)
        if late is None or self._index.get(report.host_id) not in late.hosts:
            return 0.0
        return late.closes_s + 1.0


def _shape(config: SliceConfig) -> FleetShape:
    """What the windows need to know."""
    numbers = config.first_host, config.hosts, config.gpus_per_host
    return FleetShape(*numbers, config.dropout, config.late, config.seed)


def _samplers(config: SliceConfig) -> NoiseSampler:
    rest: NoiseSampler
    if config.seed is None:
        rest = TableSampler(os.urandom)
    else:
        rest = SeededSampler(config.seed, f"noise/{config.first_host}")
    if not config.opendp_hosts:
        return rest
    return MixedSampler(OpenDpSampler(), config.opendp_hosts, rest)


def _rounding(config: SliceConfig) -> Callable[[int], bytes] | None:
    if config.seed is None:
        return None
    return SeededBytes(config.seed, f"rounding/{config.first_host}")


class Slice:
    """The hosts of one process and the agent loop around them."""

    def __init__(self, config: SliceConfig) -> None:
        self._config = config
        self.hosts = [_new_host() for _ in range(config.hosts)]
        self._stopping = False

    def announce(self) -> None:
        """Write the public keys to standard output, one line."""
        keys = [host.signing_key.public_bytes.hex() for host in self.hosts]
        sys.stdout.write(json.dumps({"name": self._config.name, "hosts": keys}) + "\n")
        sys.stdout.flush()

    def stop(self) -> None:
        """End the loop soon; safe from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Take part until every task's last window is sent, or until stopped."""
        with Path(self._config.truth_file).open("a", buffering=1) as truths:
            windows = self._windows(truths.write)
            shell = self._shell(windows)
            clock = SystemClock()
            shell.start()
            try:
                while not self._stopping and not self._finished(shell, windows):
                    shell.step()
                    clock.sleep_ms(min(shell.pause_ms(), _IDLE_MS))
            finally:
                shell.close()

    def _windows(self, write: Callable[[str], object]) -> FleetWindows:
        def tell(truth: Truth) -> None:
            line = {
                "series": truth.task.series,
                "window": truth.window_start_s,
                "hosts": truth.hosts,
                "sums": truth.sums.tolist(),
            }
            write(json.dumps(line) + "\n")

        return FleetWindows(Catalogue.load(), load_workloads(), _shape(self._config), tell)

    def _shell(self, windows: FleetWindows) -> AgentShell:
        config, ids = self._config, [host.host_id for host in self.hosts]
        state = Path(config.state_dir)
        ledger = Ledger.create(
            state / "ledger.sqlite",
            state / "fence",
            hosts=ids,
            binding=secrets.token_bytes(32),
            now_s=int(time()),
            limits=SpoolLimits(max_records=16 * config.hosts),
        )
        pins = Pins(
            frozenset({bytes.fromhex(config.leader_pk)}),
            frozenset({bytes.fromhex(config.helper_pk)}),
        )
        bounds = Bounds(n_min_at_least=config.n_min_at_least)
        participant = Participant(
            self.hosts,
            ledger.view(ids),
            _samplers(config),
            os.urandom,
            ParticipantRules(pins, bounds, DEMO_DOMAIN),
            rounding_bytes=_rounding(config),
        )
        transport = MischievousTransport(
            open_transport(config.transport, Side.AGGREGATOR),
            Mischief(),
            stream(config.seed, "mischief", config.first_host),
            LateReports(windows, self.hosts),
            time,
        )
        return AgentShell(participant, ledger, transport, windows, (), name=config.name)

    def _finished(self, shell: AgentShell, windows: FleetWindows) -> bool:
        if windows.opened < self._config.tasks or windows.next_end_s() is not None:
            return False
        return shell.tally.published >= shell.tally.sealed + shell.tally.epochs


def _new_host() -> Host:
    key = SigningKey.generate()
    return Host(key, host_id(key.public_bytes))


def main() -> None:
    """Run one slice until its tasks end or a signal comes."""
    config = SliceConfig.read(Path(sys.argv[1]))
    os.umask(0o027)
    prepare_transport(config.transport, Side.AGGREGATOR)
    drop_to(AGENT_USER)
    fleet = Slice(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: fleet.stop())
    fleet.announce()
    fleet.run()


if __name__ == "__main__":
    main()
