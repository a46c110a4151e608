"""A Leader of a coordinator and workers, each a process of its own, killed where a test says."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aggregator.party.channel_address import ChannelAddress
from aggregator.party.postgresql_settings import PostgresqlSettings
from aggregator.party.standby_settings import StandbySettings
from aggregator.protocol.directory import PinnedParties
from aggregator.standby.standing_by import Turn
from aggregator.workers.coordinator_shell import CoordinatorShell
from aggregator.workers.worker_channel import CoordinatorChannel, serve_workers
from aggregator.workers.worker_shell import WorkerShell
from tests.process_kit import (
    SPAWN,
    FileClock,
    FileStore,
    KillHere,
    ProcessFleet,
    RecordingChannel,
    leader_config,
    wait_for,
)
from tests.protocol_kit import World
from tests.standby_kit import LeaderDatabase
from transport.opening import EmbeddedSettings, Side, TransportSettings, open_transport
from transport.process.supervision import Notifier

LEASE_S = 2.0
MACHINES = ("leader-a", "leader-b")


def desk_address(folder: Path, name: str = "w") -> ChannelAddress:
    return ChannelAddress(socket=folder / "run" / f"{name}.sock", call_timeout_s=5)


def coordinator_process(folder: Path, helper_pk: bytes, log: TransportSettings) -> None:
    """What runs in the coordinator's process."""
    config = replace(leader_config(folder, helper_pk), transport=log)
    assert config.helper is not None
    with open_transport(config.transport, Side.AGGREGATOR) as transport:
        shell = CoordinatorShell(
            config,
            transport,
            FileStore(folder),
            helper=RecordingChannel(config.helper, folder),
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "leader"),
        )
        server = serve_workers(shell.desk, desk_address(folder))
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()
        server.stop(1).wait()


def standby_process(
    folder: Path,
    name: str,
    helper_pk: bytes,
    log: TransportSettings,
    database: PostgresqlSettings,
) -> None:
    """What runs in a coordinator's process on one of two machines."""
    config = replace(
        leader_config(folder, helper_pk),
        transport=log,
        state_dir=folder / name,
        status_file=folder / f"{name}-status.json",
        standby=StandbySettings(database, LEASE_S),
    )
    assert config.helper is not None
    turn = Turn(config, Notifier())
    signal.signal(signal.SIGTERM, lambda *_: turn.stop())
    turn.wait()
    if not turn.leads:
        return
    with turn.leading(), open_transport(config.transport, Side.AGGREGATOR) as transport:
        shell = CoordinatorShell(
            config,
            transport,
            FileStore(folder),
            helper=RecordingChannel(config.helper, folder),
            state=turn.state(),
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "leader"),
        )
        turn.on_loss(shell.stop)
        server = serve_workers(shell.desk, desk_address(folder, name))
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()
        server.stop(1).wait()


def worker_process(
    folder: Path,
    parties: PinnedParties,
    log: TransportSettings,
    coordinators: Sequence[str] = ("w",),
) -> None:
    """What runs in a worker's process."""
    first, *others = (desk_address(folder, name) for name in coordinators)
    with open_transport(log, Side.AGGREGATOR) as transport:
        shell = WorkerShell(
            transport,
            CoordinatorChannel(first, others),
            parties,
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "worker"),
        )
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


class WorkerProcessFleet(ProcessFleet):
    """Helper, coordinator and workers of the Leader in processes of their own."""

    def __init__(
        self, world: World, folder: Path, log: TransportSettings | None = None, workers: int = 2
    ) -> None:
        self.settings = log or EmbeddedSettings(folder / "log")
        super().__init__(world, folder)
        if not isinstance(self.settings, EmbeddedSettings):
            self.reports = open_transport(self.settings, Side.AGGREGATOR)
            self._producer = self.reports.producer()  # type: ignore[assignment]
        for party in self.parties(workers):
            self.start(party)

    def parties(self, workers: int) -> Sequence[str]:
        return "helper", "leader", *(f"worker-{number}" for number in range(workers))

    def start(self, party: str) -> None:
        parties, folder = self.world.parties, self.folder
        if party == "helper":
            super().start(party)
            return
        if party == "leader":
            wait_for((folder / "run" / "h.sock").exists)
            arguments = (folder, parties.helper_pk, self.settings)
            process = SPAWN.Process(target=coordinator_process, args=arguments)
        else:
            process = SPAWN.Process(target=worker_process, args=(folder, parties, self.settings))
        process.start()
        self.processes[party] = process


class StandbyProcessFleet(WorkerProcessFleet):
    """The same with a Leader on two machines, whose state is in a database."""

    def __init__(self, world: World, folder: Path, database: LeaderDatabase) -> None:
        self.database, self.fence = database, 0
        super().__init__(world, folder)

    def parties(self, workers: int) -> Sequence[str]:
        return "helper", *MACHINES, *(f"worker-{number}" for number in range(workers))

    def start(self, party: str) -> None:
        parties, folder = self.world.parties, self.folder
        if party == "helper":
            super().start(party)
            return
        fell, said = party in self.processes, folder / f"{party}-status.json"
        if party in MACHINES:
            wait_for((folder / "run" / "h.sock").exists)
            if fell:  # it comes back when the other leads
                self.follow()
                said.unlink(missing_ok=True)
            told = folder, party, parties.helper_pk, self.settings, self.database.settings
            process = SPAWN.Process(target=standby_process, args=told)
        else:
            asked = folder, parties, self.settings, MACHINES
            process = SPAWN.Process(target=worker_process, args=asked)
        process.start()
        self.processes[party] = process
        if fell and party in MACHINES:
            wait_for(said.exists)  # nothing else waits for who stands by: it may be stopped at once

    def follow(self) -> None:
        """Wait until the lead has changed hands since the last time."""
        wait_for(lambda: int(self.database.psql("SELECT max(fence) FROM leadership")) > self.fence)
        self.fence = int(self.database.psql("SELECT fence FROM leadership"))
