"""Debian's Prometheus in a folder of its own, scraping what a test serves."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.wait_kit import until

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "pointillist.rules.yml"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager")


def missing_monitors() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answered(url: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


@contextmanager
def monitor(program: str, folder: Path, port: int, *options: str) -> Iterator[str]:
    """Run a server until the block ends; gives its address once it is ready."""
    folder.mkdir(exist_ok=True)
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, f"--web.listen-address=127.0.0.1:{port}", *options],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or ready(address))
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield address
    finally:
        process.terminate()
        process.wait(30)


def ready(address: str) -> bool:
    try:
        answered(f"{address}/-/ready")
    except OSError:
        return False
    return True


class Prometheus:
    """The shipped configuration and rules, every second and on a test's own ports."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, expr: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expr})
        found: list[dict[str, Any]]
        found = json.loads(answered(f"{self.address}/api/v1/query?{query}"))["data"]["result"]
        return found

    def firing(self) -> set[str]:
        said = json.loads(answered(f"{self.address}/api/v1/alerts"))["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in said if alert["state"] == "firing"}


@contextmanager
def scraping(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run it; targets are ports by the shipped configuration's names of jobs."""
    folder.mkdir()
    config = yaml.safe_load(SCRAPES.read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == set(targets)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    del config["alerting"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    # Without its patience an alert fires as soon as its expression holds.
    (folder / RULES.name).write_text(re.sub(r"\n +for: \w+", "", RULES.read_text()))
    options = ("--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'data'}")
    with monitor("prometheus", folder, free_port(), *options) as address:
        yield Prometheus(address)
