"""The process of Spark's driver as the Leader keeps it: in another environment, on a pipe."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Pipe
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Thread
from typing import Final

import structlog

from aggregator.party.config import LeaderConfig, SparkSettings
from aggregator.protocol.directory import PinnedParties
from transport.kafka.kafka_frame import KafkaSettings

from .messages import Command

AGAIN_S: Final = 1.0
"""A driver that fell is followed by another after this pause."""
HANGS_S: Final = 60.0
"""One that has spoken says something twenty times a second; one that is silent so long hangs."""
MOST_UPDATES: Final = 64
"""Updates that wait for the Leader's loop; then the driver waits."""
UPDATE_BYTES: Final = 128 << 20
"""Of one update; a longer one ends its driver."""

_LOOK_S: Final = 60.0
_END_S: Final = 10.0
_CHECK: Final = "import pyspark, sys; sys.exit(pyspark.__version__ != '4.0.0')"
_CONNECTOR: Final = "spark-sql-kafka-0-10_2.13-4.0.0.jar"


class SparkMissing(Exception):
    """Spark's environment is not there, or is another; says how to come by it."""


class SparkRefused(Exception):
    """A configuration that Spark cannot work with; says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """What the driver is told; it holds no secret.

    parties     identities of Leader and Helper, for signatures of tasks and rosters
    python      of Spark's environment
    jars        folder of the connector's jars
    folder      of the store and of Spark's checkpoint
    """

    log: KafkaSettings
    parties: PinnedParties
    settings: SparkSettings
    python: Path
    jars: Path
    folder: Path


def spark_job(config: LeaderConfig, parties: PinnedParties) -> SparkJob:
    """The job of a Leader's driver. Raises SparkMissing, SparkRefused."""
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
    folder = config.state_dir / "spark"
    return SparkJob(config.transport, parties, settings, python, jars, folder)


def kafka_options(settings: KafkaSettings) -> dict[str, str]:
    """Give what Spark's connector is told.

    Raises      KafkaSettingsError; ValueError for what the connector cannot do
    """
    options = {
        "kafka.bootstrap.servers": ",".join(settings.bootstrap),
        "kafka.security.protocol": settings.protocol,
        "kafka.fetch.max.bytes": str(16 << 20),
        "kafka.max.partition.fetch.bytes": str(4 << 20),
        "groupIdPrefix": settings.named("leader-spark"),
        # What retention took is late for every window; other readers go on, too.
        "failOnDataLoss": "false",
    }
    if settings.ca_file is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": settings.ca_file.read_text(),
        }
    if settings.cert_file is not None and settings.key_file is not None:
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": settings.cert_file.read_text(),
            "kafka.ssl.keystore.key": settings.key_file.read_text(),
        }
    if settings.sasl == "OAUTHBEARER":
        raise ValueError("sasl: expected SCRAM or a client certificate with Spark, got OAUTHBEARER")
    if settings.sasl is not None:
        options |= {
            "kafka.sasl.mechanism": settings.sasl,
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
            f"required username={_quoted(settings.username or '')} "
            f"password={_quoted(settings.password())};",
        }
    return options


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def python_of(settings: SparkSettings) -> Path:
    """The python of Spark's environment. Raises SparkMissing."""
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


class _Driver:
    """One life of the driver, and the threads that speak with it.

    updates     what it said; None at its end
    """

    def __init__(self, job: SparkJob, program: Sequence[str]) -> None:
        """Begin it: an exec, so that nothing of a party with threads is forked. Raises OSError."""
        job.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(job.folder / "artifacts", ignore_errors=True)
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [job.python, *program, str(theirs.fileno())],
                cwd=job.folder,  # Spark makes a folder of that name where it stands
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it ends with the Leader, not beside it
            )
        self.updates: Queue[bytes | None] = Queue(MOST_UPDATES)
        self._commands: SimpleQueue[bytes] = SimpleQueue()
        self._commands.put(pickle.dumps(job))
        for work in (self._receive, self._send):
            Thread(target=work, name="spark-driver", daemon=True).start()

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.updates.put(self._pipe.recv_bytes(UPDATE_BYTES))
        self.updates.put(None)

    def _send(self) -> None:
        with suppress(OSError):
            while command := self._commands.get():
                self._pipe.send_bytes(command)

    def tell(self, commands: Sequence[Command]) -> None:
        self._commands.put(pickle.dumps(list(commands)))

    def end(self, grace_s: float) -> None:
        """Have it end, and wait: the store has one holder, and is its record."""
        self._commands.put(b"")
        if grace_s:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._process.kill()
        self._process.wait()
        with suppress(Empty):  # the thread that waits for a place ends, too
            while True:
                self.updates.get_nowait()


class DriverProcess:
    def __init__(
        self,
        job: SparkJob,
        *,
        program: Sequence[str] = ("-m", "aggregator.spark.driver"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the first question.

        program     arguments of Spark's python before the pipe's descriptor
        """
        self._job, self._program, self._clock = job, program, clock
        self._log = structlog.get_logger("leader-spark")
        self._driver: _Driver | None = None
        self._again_s = self._last_update_s = clock()

    def said(self) -> Sequence[bytes | None]:
        """What it has said since the last call; None: another has begun, and knows nothing."""
        if self._driver is None:
            return self._begin()
        found = list[bytes | None]()
        with suppress(Empty):
            while len(found) < MOST_UPDATES:
                update = self._driver.updates.get_nowait()
                if update is None:
                    self._fell("it ended")
                    break
                found.append(update)
        if found:
            self._last_update_s = self._clock()
        elif self._clock() - self._last_update_s > HANGS_S:
            self._fell(f"it said nothing for {HANGS_S:g} s")
        return found

    def _begin(self) -> Sequence[None]:
        if self._clock() < self._again_s:
            return ()
        try:
            self._driver = _Driver(self._job, self._program)
        except OSError as error:
            self._fell(str(error))
            return ()
        self._last_update_s = inf  # Spark begins as slowly as it likes
        self._log.info("driver began")
        return (None,)

    def _fell(self, reason: str) -> None:
        self._log.error("driver fell", detail=reason)
        self._again_s = self._clock() + AGAIN_S
        self._end(0.0)

    def tell(self, commands: Sequence[Command]) -> None:
        if self._driver is not None:
            self._driver.tell(commands)

    def refuse(self, reason: str) -> None:
        self._fell(f"refused: {reason}")

    def close(self) -> None:
        self._end(_END_S)

    def _end(self, grace_s: float) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.end(grace_s)
