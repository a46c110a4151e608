"""Start a party as a process: privileges first, then keys, then work until a signal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from aggregator.helper.helper_shell import HelperShell
from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader_shell import LeaderShell
from aggregator.party.channel import prepare_socket_folder
from aggregator.party.party_config import HelperConfig, HttpAddress, LeaderConfig
from aggregator.party.party_health import Health
from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.protocol.directory import PinnedParties
from aggregator.releases.compaction import NO_ROLL_UPS, RollUps
from aggregator.releases.store import Store
from aggregator.spark.spark_processes import drive_alone, driving, spark_job
from aggregator.statistics.incident_detector import Detector
from aggregator.witness.witness_config import WitnessConfig
from aggregator.witness.witness_shell import WitnessShell
from aggregator.workers.children import Nursery, on_signals
from aggregator.workers.coordinator_shell import CoordinatorShell
from aggregator.workers.leader_processes import run_workers_alone, working
from aggregator.workers.mask_pool import MaskPool
from aggregator.workers.mask_worker import MaskJob
from transport.files.ownership import set_folder
from transport.opening import Side, open_transport, prepare_transport
from transport.port import RETENTION_S
from transport.process.privileges import Dropped, drop_to, ensure_users
from transport.process.supervision import Notifier
from wire.catalogue import Catalogue
from wire.topics import KEPT

if TYPE_CHECKING:
    from aggregator.standby.standing_by import Turn


def _silent(line: str) -> None:
    """Say nothing."""


def run_leader(
    config: LeaderConfig,
    *,
    workers: int | None = None,
    spark: bool = False,
    say: Callable[[str], None] = _silent,
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
    _prepare(config.user, 0o700, config.state_dir)
    _prepare(config.user, 0o755, *released)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(_become(config.user, umask=0o022).line)  # releases are for every reader of the machine
    nursery = Nursery() if spark or workers is not None else None
    notifier = Notifier.from_environment()
    with _turn_of(config, notifier) as turn:
        if turn is None or turn.leads:
            _lead(config, turn, notifier, checkpoint, roll_ups, nursery, workers, spark)
    if nursery is not None:
        nursery.close()


@contextmanager
def _turn_of(config: LeaderConfig, notifier: Notifier) -> Iterator[Turn | None]:
    """Wait until this machine leads, where there are several; renew the lease meanwhile."""
    if config.standby is None:
        yield None
        return
    from aggregator.standby.standing_by import Turn

    turn = Turn(config, notifier)
    on_signals(turn.stop)
    with _served(turn.health, config.http):
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
    nursery: Nursery | None,
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
        kind = LeaderShell if nursery is None else CoordinatorShell
        state = None if turn is None else turn.state()
        shell = kind(config, log, store, state=state, notifier=notifier, checkpoint=checkpoint)
        on_signals(shell.stop)
        if turn is not None:
            turn.on_loss(shell.stop)
        readers = _readers_of(nursery, shell, config, workers, spark)
        with _served(shell.health, config.http), readers:
            shell.run()


def run_workers(
    config: LeaderConfig,
    leader_pk: bytes,
    workers: int,
    *,
    spark: bool = False,
    say: Callable[[str], None] = _silent,
) -> None:
    """Run workers of a Leader whose coordinator is on another machine, until SIGTERM or SIGINT.

    spark       Spark, in place of workers
    Raises      PrivilegeError, OSError, SparkMissing
    """
    if spark:
        _prepare(config.user, 0o700, config.state_dir)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(_become(config.user, umask=0o077).line)
    nursery = Nursery()
    if spark:
        drive_alone(nursery, spark_job(config, leader_pk))
    else:
        run_workers_alone(nursery, config, leader_pk, workers)
    nursery.close()


def run_helper(
    config: HelperConfig,
    *,
    after_restore: bool = False,
    workers: int | None = None,
    say: Callable[[str], None] = _silent,
    checkpoint: Checkpoint = no_checkpoint,
) -> None:
    """Run the Helper until SIGTERM or SIGINT.

    workers     processes that hold epochs and make masks; None: it does so itself

    Raises      what `HelperShell` raises; PrivilegeError
    """
    _prepare_socket(config)
    _prepare(config.user, 0o700, config.state_dir, config.fence_file.parent)
    if config.transport is not None:
        prepare_transport(config.transport, Side.AGGREGATOR)
    say(_become(config.user, umask=0o077).line)
    nursery = None if workers is None else Nursery()
    shell = HelperShell(
        config,
        after_restore=after_restore,
        notifier=Notifier.from_environment(),
        checkpoint=checkpoint,
        mask_maker=mask_pool_of(nursery, workers, config.key_dir),
    )
    on_signals(shell.stop)
    with _served(shell.health, config.http):
        shell.run()
    if nursery is not None:
        nursery.close()


def run_witness(config: WitnessConfig, *, say: Callable[[str], None] = _silent) -> None:
    """Run a witness until SIGTERM or SIGINT.

    Raises      what `WitnessShell` raises; PrivilegeError
    """
    _prepare_socket(config)
    _prepare(config.user, 0o700, config.state_dir)
    say(_become(config.user, umask=0o077).line)
    shell = WitnessShell(config, notifier=Notifier.from_environment())
    on_signals(shell.stop)
    with _served(shell.health, config.http):
        shell.run()


def _prepare_socket(config: HelperConfig | WitnessConfig) -> None:
    """Make the folder of a socket, if that is where the party listens."""
    if config.address.socket is not None:
        owner = config.user if os.geteuid() == 0 else None
        prepare_socket_folder(config.address.socket, owner, config.peer_group)


@contextmanager
def _served(health: Health, address: HttpAddress | None) -> Iterator[None]:
    """Serve health and metrics meanwhile, where the configuration says so.

    Raises      OSError when the port is taken
    """
    port = None if address is None else health.serve(address)
    try:
        yield
    finally:
        if port is not None:
            port.close()


def _prepare(user: str, mode: int, *folders: Path) -> None:
    """Make the party's own folders while root still can give them away."""
    root = os.geteuid() == 0
    if root:
        ensure_users()
    for folder in folders:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            set_folder(folder, mode, *((user, user) if root else ()))


def _become(user: str, *, umask: int) -> Dropped:
    """Give root up; files made from here on are the party's own."""
    os.umask(umask)
    return drop_to(user)


def mask_pool_of(
    nursery: Nursery | None, workers: int | None, key_dir: Path
) -> Callable[[PinnedParties, HelperState], MaskPool] | None:
    """What makes a Helper's workers; None where it has none."""
    if nursery is None or workers is None:
        return None
    return lambda parties, state: MaskPool(nursery, workers, MaskJob(parties, key_dir), state)


@contextmanager
def _readers_of(
    nursery: Nursery | None,
    shell: LeaderShell,
    config: LeaderConfig,
    workers: int | None,
    spark: bool,
) -> Iterator[None]:
    """Have the reports read by whoever shall, meanwhile."""
    if nursery is None or not isinstance(shell, CoordinatorShell):
        yield
        return
    job = spark_job(config, shell.leader_pk) if spark else None
    driver = nullcontext() if job is None else driving(nursery, job)
    with working(nursery, shell, config, workers or 0), driver:
        yield
