"""Prometheus node_exporter beside the agent: started by us, scraped, ended by its pid."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

PACKAGE: Final = "prometheus-node-exporter"
_START_S: Final = 15.0


def missing() -> str | None:
    """Install the Debian package where root may; else say what is missing."""
    if shutil.which(PACKAGE):
        return None
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", PACKAGE]):
            subprocess.run(
                ["apt-get", *command, "--no-install-recommends"], env=environment,
                capture_output=True, check=False,
            )  # fmt: skip
    return None if shutil.which(PACKAGE) else f"install the package {PACKAGE} to compare with it"


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
def exporter(every_s: float) -> Iterator[Exporter]:
    """Run an exporter on a free loopback port, scraped every so often."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [PACKAGE, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
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
