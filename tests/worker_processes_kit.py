"""A Leader of a coordinator and workers, each a process of its own, killed where a test says."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from aggregator.directory import PinnedParties
from aggregator.party_config import HelperAddress
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
from transport.opening import EmbeddedSettings, Side, TransportSettings, open_transport


def desk_address(folder: Path) -> HelperAddress:
    return HelperAddress(socket=folder / "run" / "w.sock", call_timeout_s=5)


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


def worker_process(folder: Path, parties: PinnedParties, log: TransportSettings) -> None:
    """What runs in a worker's process."""
    with open_transport(log, Side.AGGREGATOR) as transport:
        shell = WorkerShell(
            transport,
            CoordinatorChannel(desk_address(folder)),
            parties,
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "worker"),
        )
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


class WorkerProcessFleet(ProcessFleet):
    """Helper with workers, coordinator and workers of the Leader in processes of their own."""

    helper_workers = 2

    def __init__(
        self, world: World, folder: Path, log: TransportSettings | None = None, workers: int = 2
    ) -> None:
        self.settings = log or EmbeddedSettings(folder / "log")
        super().__init__(world, folder)
        if not isinstance(self.settings, EmbeddedSettings):
            self.reports = open_transport(self.settings, Side.AGGREGATOR)
            self._producer = self.reports.producer()  # type: ignore[assignment]
        for party in ("helper", "leader", *(f"worker-{number}" for number in range(workers))):
            self.start(party)

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
