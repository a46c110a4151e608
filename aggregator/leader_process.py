"""Start a Leader, or its workers, as a process: privileges first, then keys, then work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from aggregator.leader.leader_shell import LeaderShell
from aggregator.party.party_config import LeaderConfig
from aggregator.party.party_start import become, health_served, on_signals, prepare_folders, silent
from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.releases.compaction import NO_ROLL_UPS, RollUps
from aggregator.releases.store import Store
from aggregator.spark.spark_processes import drive_alone, driving, spark_job
from aggregator.statistics.incident_detector import Detector
from aggregator.workers.children import ForkServer
from aggregator.workers.coordinator_shell import CoordinatorShell
from aggregator.workers.leader_processes import run_workers_alone, working
from transport.opening import Side, open_transport, prepare_transport
from transport.port import RETENTION_S
from transport.process.supervision import Notifier
from wire.catalogue import Catalogue
from wire.topics import KEPT

if TYPE_CHECKING:
    from aggregator.standby.standing_by import Turn


def run_leader(
    config: LeaderConfig,
    *,
    workers: int | None = None,
    spark: bool = False,
    say: Callable[[str], None] = silent,
    checkpoint: Checkpoint = no_checkpoint,
    roll_ups: RollUps = NO_ROLL_UPS,
) -> None:
    """Run the Leader until SIGTERM or SIGINT.

    workers     processes that read the reports; None: it reads them itself
    spark       Spark reads them
    say         gets one line about the user it runs as
    roll_ups    brought up to date before windows are removed for their age
    Raises      what `LeaderShell` raises; PrivilegeError, DetectorFileError; SparkMissing;
                LeadershipLost, OtherLeader
    """
    released = (config.database.parent, config.releases_dir)
    prepare_folders(config.user, 0o700, config.state_dir)
    prepare_folders(config.user, 0o755, *released)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(become(config.user, umask=0o022).line)  # releases are for every reader of the machine
    fork_server = ForkServer() if spark or workers is not None else None
    notifier = Notifier.from_environment()
    with _turn_of(config, notifier) as turn:
        if turn is None or turn.leads:
            _lead(config, turn, notifier, checkpoint, roll_ups, fork_server, workers, spark)
    if fork_server is not None:
        fork_server.close()


@contextmanager
def _turn_of(config: LeaderConfig, notifier: Notifier) -> Iterator[Turn | None]:
    """Wait until this machine leads, where there are several; renew the lease meanwhile."""
    if config.standby is None:
        yield None
        return
    from aggregator.standby.standing_by import Turn

    turn = Turn(config, notifier)
    on_signals(turn.stop)
    with health_served(turn.health, config.http):
        turn.wait()
    if not turn.leads:
        yield turn
        return
    with turn.leading():
        yield turn


def _lead(
    config: LeaderConfig,
    turn: Turn | None,
    notifier: Notifier,
    checkpoint: Checkpoint,
    roll_ups: RollUps,
    fork_server: ForkServer | None,
    workers: int | None,
    spark: bool,
) -> None:
    """Open the store, which one process does at a time, and work until stopped."""
    rates = config.incident_rates
    detector = Detector.shipped() if rates is None else Detector.load(rates)
    with (
        Store(
            config.database,
            config.releases_dir,
            Catalogue.load(config.catalogue),
            detector=detector,
            agents_model=config.agents_model,
            keep_days=config.keep_days,
            roll_ups=roll_ups,
        ) as store,
        open_transport(
            config.transport, Side.AGGREGATOR, retention_s=RETENTION_S, keep=KEPT
        ) as log,
    ):
        kind = LeaderShell if fork_server is None else CoordinatorShell
        state = None if turn is None else turn.state()
        shell = kind(config, log, store, state=state, notifier=notifier, checkpoint=checkpoint)
        on_signals(shell.stop)
        if turn is not None:
            turn.on_loss(shell.stop)
        readers = _readers_of(fork_server, shell, config, workers, spark)
        with health_served(shell.health, config.http), readers:
            shell.run()


@contextmanager
def _readers_of(
    fork_server: ForkServer | None,
    shell: LeaderShell,
    config: LeaderConfig,
    workers: int | None,
    spark: bool,
) -> Iterator[None]:
    """Have the reports read by whoever shall, meanwhile."""
    if fork_server is None or not isinstance(shell, CoordinatorShell):
        yield
        return
    job = spark_job(config, shell.leader_pk) if spark else None
    driver = nullcontext() if job is None else driving(fork_server, job)
    with working(fork_server, shell, config, workers or 0), driver:
        yield


def run_workers(
    config: LeaderConfig,
    leader_pk: bytes,
    workers: int,
    *,
    spark: bool = False,
    say: Callable[[str], None] = silent,
) -> None:
    """Run workers of a Leader whose coordinator is on another machine, until SIGTERM or SIGINT.

    spark       Spark, in place of workers
    Raises      PrivilegeError, OSError, SparkMissing
    """
    if spark:
        prepare_folders(config.user, 0o700, config.state_dir)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(become(config.user, umask=0o077).line)
    fork_server = ForkServer()
    if spark:
        drive_alone(fork_server, spark_job(config, leader_pk))
    else:
        run_workers_alone(fork_server, config, leader_pk, workers)
    fork_server.close()
