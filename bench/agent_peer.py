"""Prometheus node_exporter beside the agent: started by us, scraped, ended by its pid."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

from bench.record import ROOT

PACKAGE: Final = "prometheus-node-exporter"
_START_S: Final = 15.0
_UNPACKED: Final = ROOT / ".tools" / "node-exporter"


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
    """One running exporter; `bytes` came with its last scrape."""

    pid: int
    port: int
    every_s: float
    scrapes: int = 0
    bytes: int = 0

    def scrape(self) -> None:
        """Read /metrics once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        self.bytes = len(connection.getresponse().read())
        self.scrapes += 1
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
