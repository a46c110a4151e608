"""One broker in a folder of its own: formatted once, started and stopped by its process id.

What a broker needs to run: Java, and Kafka's jars, which Maven fetches once.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import platformdirs
import psutil

from transport.process.listening import family_of, loopback

from .properties import Ports, server_properties, write_certificates

VERSION: Final = "4.3.1"
LEAST_JAVA: Final = 17
PACKAGES: Final = ("default-jre-headless", "maven")
_FETCH_S: Final = 600
_HERE: Final = Path(__file__).resolve().parent


class BrokerError(Exception):
    """The broker cannot be had or does not run; says what to do."""


def missing_programs() -> list[str]:
    found, missing = java_version(), []
    if found < LEAST_JAVA:
        missing.append(f"Java {LEAST_JAVA} or later" + (f" (found {found})" if found else ""))
    if shutil.which("mvn") is None and not _fetched():
        missing.append("Maven")
    return missing


def java_version() -> int:
    """Give the major version of `java` on PATH, 0 where there is none."""
    java = shutil.which("java")
    if java is None:
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    # Up to Java 8 the major version came second: 1.8.0_402.
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else 0


def installable() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_programs(say: Callable[[str], None]) -> None:
    """Install what is missing where root may, else say how. Raises BrokerError."""
    missing = missing_programs()
    if not missing:
        return
    command = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if not installable():
        raise BrokerError(
            f"Kafka needs {' and '.join(missing)}; on Debian and Ubuntu, as root: {command}"
        )
    say(f"installing {' and '.join(missing)}: {command} ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *step], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode and step[0] == "install":
            raise BrokerError(f"{command} failed: {done.stderr.strip()[-500:]}")
    if left := missing_programs():
        raise BrokerError(f"expected {' and '.join(left)} after {command}, found none")


def jars(say: Callable[[str], None]) -> Path:
    """Give the folder of jars, fetched into the user's cache once. Raises BrokerError."""
    install_programs(say)
    folder = jar_folder()
    if _fetched():
        return folder
    say(f"fetching Apache Kafka {VERSION} (44 MB, once) ...")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
        base = Path(draft)
        # Maven writes beside the pom, which may lie in a folder that is not ours.
        shutil.copy(pom_file(), base / "pom.xml")
        done = subprocess.run(
            [
                "mvn", "-q", "-B", "-f", str(base / "pom.xml"), "dependency:copy-dependencies",
                f"-DoutputDirectory={base / 'libs'}", "-DincludeScope=runtime",
            ],
            capture_output=True, text=True, check=False, timeout=_FETCH_S,
        )  # fmt: skip
        if done.returncode:
            raise BrokerError(f"Maven could not fetch Kafka:\n{done.stdout[-2000:]}")
        shutil.rmtree(folder, ignore_errors=True)
        (base / "libs").replace(folder)
    return folder


def pom_file() -> Path:
    """Give the pom: beside this module when installed, in deploy/ in the repository."""
    packaged = _HERE / "pom.xml"
    return packaged if packaged.exists() else _HERE.parents[1] / "deploy" / "kafka" / "pom.xml"


def jar_folder() -> Path:
    return Path(platformdirs.user_cache_dir("pointillist")) / f"kafka-{VERSION}"


def _fetched() -> bool:
    return (jar_folder() / f"kafka_2.13-{VERSION}.jar").exists()


def main() -> None:
    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        jars(say)
    except BrokerError as error:
        say(f"tests against a broker are skipped: {error}")


if __name__ == "__main__":
    main()


START_S: Final = 60.0
STOP_S: Final = 15.0
_STATE: Final = "broker.json"


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One broker's place in a cluster that somebody else put together."""

    ports: Ports
    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a broker is made.

    secure      also listen for TLS with SASL, and let ACLs decide there
    heap_mib    of the JVM
    quick       compile little: starts sooner, serves slower; for tests and the demo
    extra       further lines of server.properties
    member      its place in a cluster; None: a cluster of its own
    """

    secure: bool = False
    heap_mib: int = 512
    quick: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)
    member: ClusterMember | None = None


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A running broker; `created_s` tells its process from a later one with the same number."""

    pid: int
    created_s: float
    bootstrap: str
    secure_bootstrap: str | None
    ca_file: str | None
    folder: str


class LocalBroker:
    """A broker whose data, ports and certificates lie in one folder and outlive a restart."""

    def __init__(self, folder: Path, options: BrokerOptions | None = None) -> None:
        self.folder = folder
        self._options = options or BrokerOptions()

    def status(self) -> RunningBroker | None:
        try:
            running = RunningBroker(**json.loads((self.folder / _STATE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return running if _process(running) is not None else None

    def start(self, say: Callable[[str], None] = lambda _: None) -> RunningBroker:
        """Start it, and wait until it answers; one may run already. Raises BrokerError."""
        if running := self.status():
            return running
        libraries = jars(say)
        ports = self._prepare(libraries)
        log = self.folder / "broker.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self._java(libraries), "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        running = self._running(process.pid, ports)
        self._write(_STATE, asdict(running))
        try:
            self._wait(process, running.bootstrap, log)
        except BaseException:
            self.stop()
            raise
        return running

    def stop(self) -> bool:
        running = self.status()
        process = _process(running) if running else None
        if process is None:
            return False
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_S)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
        (self.folder / _STATE).unlink(missing_ok=True)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _signal(self, number: signal.Signals) -> None:
        running = self.status()
        process = _process(running) if running else None
        if process is None:
            raise BrokerError(f"expected a running broker in {self.folder}, found none")
        process.send_signal(number)
        if number is signal.SIGKILL:
            with suppress(psutil.TimeoutExpired):
                process.wait(STOP_S)

    def _prepare(self, libraries: Path) -> Ports:
        ports_file = self.folder / "ports.json"
        if ports_file.exists():
            return Ports(**json.loads(ports_file.read_text()))
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._options.member is None:
            plain, controller, secure = free_ports(3)
            tls = secure if self._options.secure else None
            ports = Ports(plain, controller, tls, loopback())
        else:
            ports = self._options.member.ports
        certificate = None
        if self._options.secure:
            _, certificate = write_certificates(self.folder, ports.host)
        text = server_properties(self.folder, ports, certificate, self._options.extra)
        self._properties.write_text(text)
        self._format(libraries, ports)
        self._write("ports.json", asdict(ports))
        return ports

    def _format(self, libraries: Path, ports: Ports) -> None:
        member = self._options.member
        command = ["kafka.tools.StorageTool", "format", "-t"]
        # Of its own listener `--standalone` would take an IPv6 address apart at each colon.
        alone = f"1@{ports.at(ports.controller)}:{new_cluster_id()}"
        command += (
            [member.cluster_id] if member else [new_cluster_id(), "--initial-controllers", alone]
        )
        done = subprocess.run(
            [*self._java(libraries), *command, "-c", str(self._properties)],
            capture_output=True, text=True, check=False, timeout=START_S,
        )  # fmt: skip
        if done.returncode:
            raise BrokerError(f"the data folder was not formatted:\n{done.stderr[-2000:]}")

    def _java(self, libraries: Path) -> list[str]:
        quick = ["-XX:TieredStopAtLevel=1"] if self._options.quick else []
        # Codecs are libraries, which a /tmp that is mounted noexec does not load.
        unpacked = self.folder / "tmp"
        unpacked.mkdir(parents=True, exist_ok=True)
        return [
            "java", f"-Xmx{self._options.heap_mib}M", "-XX:+UseSerialGC", *quick,
            f"-Djava.io.tmpdir={unpacked}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{libraries}/*",
        ]  # fmt: skip

    def _running(self, pid: int, ports: Ports) -> RunningBroker:
        return RunningBroker(
            pid,
            psutil.Process(pid).create_time(),
            ports.at(ports.plain),
            ports.at(ports.secure) if ports.secure else None,
            str(self.folder / "ca.pem") if ports.secure else None,
            str(self.folder),
        )

    def _wait(self, process: subprocess.Popen[bytes], bootstrap: str, log: Path) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
        }
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if _listens(bootstrap):
                with suppress(KafkaException):
                    if AdminClient(config).list_topics(timeout=2).brokers:
                        return
            time.sleep(0.1)
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise BrokerError(f"the broker did not start (see {log}):\n{tail}")

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        draft = self.folder / f".{name}.partial"
        draft.write_text(json.dumps(content))
        draft.replace(self.folder / name)


def new_cluster_id() -> str:
    """Make up an id; the first byte is 0, for one that began with a dash would be an option."""
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def free_ports(count: int) -> list[int]:
    host, held = loopback(), []
    for _ in range(count):
        bound = socket.socket(family_of(host))
        bound.bind((host, 0))
        held.append(bound)
    ports = [bound.getsockname()[1] for bound in held]
    for bound in held:
        bound.close()
    return ports


def _listens(bootstrap: str) -> bool:
    host, port = bootstrap.rsplit(":", 1)
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def _process(running: RunningBroker) -> psutil.Process | None:
    """Give the process, unless it ended or its number is another's now."""
    try:
        process = psutil.Process(running.pid)
        if abs(process.create_time() - running.created_s) > 1.0:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            with suppress(ChildProcessError):
                os.waitpid(running.pid, os.WNOHANG)
            return None
    except psutil.NoSuchProcess:
        return None
    return process
