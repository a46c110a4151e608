"""The processes of a Leader with workers: one coordinator, and workers here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Event, Thread
from typing import Final

from aggregator.party.channel import prepare_socket_folder
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.party_config import WORKERS_TIMEOUT_S, LeaderConfig
from aggregator.party.party_start import on_signals
from aggregator.party.quotas import Quotas
from aggregator.protocol.directory import PinnedParties
from transport.opening import Side, TransportSettings, open_transport

from .children import Children, ForkServer, kept, until_parent_ends
from .coordinator_shell import CoordinatorShell
from .worker_channel import CoordinatorChannel, serve_workers
from .worker_shell import WorkerShell

_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a worker's process is told; it holds no secret.

    parties     identities of Leader and Helper, for signatures of tasks and rosters
    quotas      what each worker takes on
    others      where coordinators of other machines listen
    """

    transport: TransportSettings
    coordinator: ChannelAddress
    parties: PinnedParties
    quotas: Quotas
    others: tuple[ChannelAddress, ...] = ()


def work(pipe: Connection, job: WorkerJob) -> None:
    """What runs in a worker's process, until its parent is gone or a signal comes."""
    channel = CoordinatorChannel(job.coordinator, job.others)
    with open_transport(job.transport, Side.AGGREGATOR) as log:
        shell = WorkerShell(log, channel, job.parties, quotas=job.quotas)
        Thread(target=until_parent_ends, args=(pipe, shell.stop), daemon=True).start()
        on_signals(shell.stop)
        shell.run()
    channel.close()


@contextmanager
def working(
    fork_server: ForkServer, shell: CoordinatorShell, config: LeaderConfig, count: int
) -> Iterator[None]:
    """Serve the desk, and have so many workers on this machine meanwhile.

    Raises      KeyFileRefused, OSError
    """
    job = job_of(config, shell.leader_pk)
    if job.coordinator.socket is not None:
        prepare_socket_folder(job.coordinator.socket, None, None)
    server = serve_workers(shell.desk, job.coordinator)
    try:
        with kept(Children(fork_server, count, work, (job,))):
            yield
    finally:
        server.stop(_GRACE_S).wait()


def job_of(config: LeaderConfig, leader_pk: bytes) -> WorkerJob:
    """The job of the workers of a Leader."""
    parties = PinnedParties(leader_pk, config.helper_pk)
    if config.workers is not None:
        met = config.workers
        return WorkerJob(config.transport, met.address, parties, config.quotas, met.others)
    own = config.state_dir / "workers" / "socket"
    address = ChannelAddress(own, call_timeout_s=WORKERS_TIMEOUT_S)
    return WorkerJob(config.transport, address, parties, config.quotas)


def run_workers_alone(
    fork_server: ForkServer, config: LeaderConfig, leader_pk: bytes, count: int
) -> None:
    """Keep workers for a coordinator on another machine, until a signal."""
    over = Event()
    on_signals(over.set)
    with kept(Children(fork_server, count, work, (job_of(config, leader_pk),))):
        over.wait()
