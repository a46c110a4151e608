"""What stands beside the agent: a workload, in turns with it and without, and node_exporter."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

from bench.record import ROOT

LOAD: Final = Path(__file__).with_name("agent_load.py")
TRIPS_PER_S: Final = 4_000
"""Two switches a trip: 8,000 a second, under the stated 10,000."""
SAMPLE_S: Final = 2.5
PINGPONG_TRIPS: Final = 100_000
_CONFIDENCE: Final = 0.95
PACKAGE: Final = "prometheus-node-exporter"
_START_S: Final = 15.0
_UNPACKED: Final = ROOT / ".tools" / "node-exporter"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload: seconds of wall and CPU time, and context switches."""

    wall_s: float
    cpu_s: float
    switches: int


def run(*arguments: object) -> Sample:
    """Run one workload in processes of their own."""
    done = subprocess.run(
        [sys.executable, "-S", str(LOAD), *map(str, arguments)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall_ns, cpu_ns, switches = map(int, done.stdout.split())
    return Sample(wall_ns / 1e9, cpu_ns / 1e9, switches)


@dataclass(frozen=True, slots=True)
class Workload:
    """Arguments of the workload with network traffic, fitted to this machine."""

    trips: int
    hashed_bytes: int

    def run(self) -> Sample:
        """Run it once."""
        return run("network", self.trips, self.hashed_bytes)


def fitted() -> Workload:
    """Choose the bytes to hash so that a trip takes 1/4000 s."""
    trips = 4_000
    bare = min(run("network", trips, 128).wall_s for _ in range(3)) / trips
    size = 1 << 17
    full = min(run("network", trips, size).wall_s for _ in range(3)) / trips
    wanted = max(1.0 / TRIPS_PER_S - bare, 0.0)
    return Workload(round(SAMPLE_S * TRIPS_PER_S), max(128, round(size * wanted / (full - bare))))


def pingpong() -> Sample:
    """Run the worst case once."""
    return run("pingpong", PINGPONG_TRIPS)


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the interval of order statistics that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def median_of(values: list[float]) -> Median:
    """Give the median; no assumption on the values but that they are independent."""
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * comb(n, k) / 2**n
        if outside > 1 - _CONFIDENCE:
            break
        k += 1
    k = max(k - 1, 0)
    return Median(statistics.median(ordered), ordered[k], ordered[n - 1 - k])


def program() -> str | None:
    """Find the exporter, unpacked from its Debian package where it is not installed.

    Unpacked and not installed: the package would start a service of its own.
    """
    if found := shutil.which(PACKAGE) or shutil.which(PACKAGE, path=str(_UNPACKED / "usr/bin")):
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        download = ["apt-get", "download", "-qq", PACKAGE]
        if not _done(download, folder) and os.geteuid() == 0 and _done(["apt-get", "update"], "/"):
            _done(download, folder)
        for package in Path(folder).glob("*.deb"):
            _done(["dpkg", "-x", str(package), str(_UNPACKED)], folder)
    return shutil.which(PACKAGE, path=str(_UNPACKED / "usr/bin"))


def _done(command: Sequence[str], folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@dataclass(slots=True)
class Exporter:
    """One running exporter."""

    pid: int
    port: int
    every_s: float

    def scrape(self) -> None:
        """Read /metrics once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()


@contextmanager
def exporter(path: str, every_s: float) -> Iterator[Exporter]:
    """Run an exporter on a free loopback port, scraped every so often."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [path, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    one, stop = Exporter(child.pid, port, every_s), Event()
    thread = Thread(target=_scrape, args=(one, stop), daemon=True)
    try:
        _wait(one)
        thread.start()
        yield one
    finally:
        stop.set()
        child.terminate()
        child.wait(10)


def _wait(one: Exporter) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            one.scrape()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _scrape(one: Exporter, stop: Event) -> None:
    while not stop.wait(one.every_s):
        one.scrape()
