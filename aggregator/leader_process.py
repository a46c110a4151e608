"""Start a Leader as a process: privileges first, then keys, then work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from aggregator.leader.intake import ReportReader
from aggregator.leader.leader import Leader
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.config import LeaderConfig
from aggregator.party.party_start import become, health_served, on_signals, prepare_folders, silent
from aggregator.protocol.interfaces import Checkpoint, no_checkpoint
from aggregator.releases.compaction import NO_ROLL_UPS, RollUps
from aggregator.releases.store import Store
from aggregator.spark.driver_process import DriverProcess, spark_job
from aggregator.spark.spark_reader import SparkReader
from aggregator.statistics.correction import Detector
from transport.factory import Side, open_transport, prepare_transport
from transport.interface import RETENTION_S
from transport.process.supervision import Notifier
from wire.catalogue import Catalogue
from wire.topics import KEPT


def run_leader(
    config: LeaderConfig,
    *,
    spark: bool = False,
    say: Callable[[str], None] = silent,
    checkpoint: Checkpoint = no_checkpoint,
    roll_ups: RollUps = NO_ROLL_UPS,
) -> None:
    """Run the Leader until SIGTERM or SIGINT.

    spark       Spark reads the reports, in place of the Leader's own loop
    say         gets one line about the user it runs as
    roll_ups    brought up to date before windows are removed for their age
    Raises      what `LeaderRuntime` raises; PrivilegeError, DetectorFileError; SparkMissing;
                LeadershipLost, OtherLeader
    """
    released = (config.database.parent, config.releases_dir)
    prepare_folders(config.user, 0o700, config.state_dir)
    prepare_folders(config.user, 0o755, *released)
    prepare_transport(config.transport, Side.AGGREGATOR)
    say(
        become(config.user, config.state_dir, umask=0o022).line
    )  # releases are for every reader of the machine
    notifier = Notifier.from_environment()
    rates = config.incident_rates
    with ExitStack() as stack:
        turn = None
        if config.standby is not None:  # wait until this machine leads
            from aggregator.standby.leadership import Turn

            turn = Turn(config, notifier)
            on_signals(turn.stop)
            with health_served(turn.health, config.http):
                turn.wait()
            if not turn.leads:
                return
            stack.enter_context(turn.leading())
        store = stack.enter_context(
            Store(
                config.database,
                config.releases_dir,
                Catalogue.load(config.catalogue),
                detector=Detector.shipped() if rates is None else Detector.load(rates),
                agents_model=config.agents_model,
                keep_days=config.keep_days,
                roll_ups=roll_ups,
            )
        )
        log = stack.enter_context(
            open_transport(config.transport, Side.AGGREGATOR, retention_s=RETENTION_S, keep=KEPT)
        )
        runtime = LeaderRuntime(
            config,
            log,
            store,
            state=None if turn is None else turn.state(),
            reader=partial(_by_spark, config) if spark else None,
            notifier=notifier,
            checkpoint=checkpoint,
        )
        on_signals(runtime.stop)
        if turn is not None:
            turn.on_loss(runtime.stop)
        with health_served(runtime.health, config.http):
            runtime.run()


def _by_spark(config: LeaderConfig, leader: Leader) -> ReportReader:
    job = spark_job(config, leader.directory.parties)
    return SparkReader(leader, DriverProcess(job))
