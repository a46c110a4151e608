"""The process of Spark's driver as the Leader keeps it: in another environment, on a life line."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Final

from aggregator.party.channel_address import ChannelAddress
from aggregator.party.party_config import LeaderConfig
from aggregator.party.party_start import on_signals
from aggregator.party.spark_settings import SparkSettings
from aggregator.protocol.directory import PinnedParties
from aggregator.workers.children import Children, ForkServer, kept
from aggregator.workers.leader_processes import job_of
from transport.kafka.kafka_settings import KafkaSettings

from .kafka_options import kafka_options

_LOOK_S: Final = 60.0
_CHECK: Final = "import pyspark, sys; sys.exit(pyspark.__version__ != '4.0.0')"
_CONNECTOR: Final = "spark-sql-kafka-0-10_2.13-4.0.0.jar"


class SparkMissing(Exception):
    """Spark's environment is not there, or is another; says how to come by it."""


class SparkRefused(Exception):
    """A configuration that Spark cannot work with; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """What the driver is told; it holds no secret.

    jars        folder of the connector's jars
    folder      of the store and of Spark's checkpoint
    others      where coordinators of other machines listen
    """

    log: KafkaSettings
    coordinator: ChannelAddress
    parties: PinnedParties
    settings: SparkSettings
    jars: Path
    folder: Path
    others: tuple[ChannelAddress, ...] = ()


def spark_job(config: LeaderConfig, leader_pk: bytes) -> SparkJob:
    """The job of a Leader's driver.

    Raises      SparkMissing, SparkRefused
    """
    if not isinstance(config.transport, KafkaSettings):
        raise SparkRefused("--engine spark: expected a table [transport.kafka], got another log")
    try:
        kafka_options(config.transport)
    except ValueError as error:
        raise SparkRefused(str(error)) from error
    settings = config.spark or SparkSettings()
    python = python_of(settings)
    jars = settings.jars or python.parent.parent / "jars"
    if not (jars / _CONNECTOR).is_file():
        raise SparkMissing(f"{jars}: expected {_CONNECTOR} there; make spark fetches it")
    job = job_of(config, leader_pk)
    folder = config.state_dir / "spark"
    told = job.coordinator, job.parties
    return SparkJob(config.transport, *told, settings, jars, folder, job.others)


def python_of(settings: SparkSettings) -> Path:
    """The python of Spark's environment.

    Raises      SparkMissing
    """
    python = settings.python or Path(__file__).resolve().parents[2] / ".venv-spark" / "bin/python"
    try:
        found = subprocess.run([python, "-c", _CHECK], timeout=_LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissing(
            f"{python}: expected a python with PySpark that this user may run, got: "
            f"{getattr(error, 'strerror', error)}; run make spark"
        ) from error
    if found.returncode:
        raise SparkMissing(f"{python}: expected PySpark 4.0.0, got another; run make spark")
    return python


def drive(pipe: Connection, job: SparkJob) -> None:
    """Become the driver: what runs in the process that the fork server forked."""
    told, ours = os.pipe()
    os.write(ours, pickle.dumps(job))
    os.close(ours)
    os.set_inheritable(told, True)
    os.set_inheritable(pipe.fileno(), True)
    python = str(python_of(job.settings))
    job.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(job.folder / "artifacts", ignore_errors=True)
    os.chdir(job.folder)  # Spark makes a folder of that name where it stands
    os.execv(  # noqa: S606 (no shell is wanted)
        python, [python, "-m", "aggregator.spark.driver", str(pipe.fileno()), str(told)]
    )


@contextmanager
def driving(fork_server: ForkServer, job: SparkJob) -> Iterator[None]:
    """Keep one driver on this machine until the block ends."""
    with kept(Children(fork_server, 1, drive, (job,))):
        yield


def drive_alone(fork_server: ForkServer, job: SparkJob) -> None:
    """Keep one driver for a coordinator on another machine, until a signal."""
    over = Event()
    on_signals(over.set)
    with driving(fork_server, job):
        over.wait()
