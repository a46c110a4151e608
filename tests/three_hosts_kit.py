"""Three machines of two companies and an operator: network namespaces on one bridge; root's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden_kit import noted
from tests.netns_kit import ip_call

ROOT = Path(__file__).resolve().parents[1]
ADDRESSES = ("10.231.9.1", "10.231.9.2", "10.231.9.3")


@dataclass
class NamedHost:
    """One machine: commands run there see its network alone."""

    name: str
    address: str
    logs: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def words(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, sys.executable, *words]

    def type(self, script: str, heard: Mapping[str, str]) -> None:
        """Type commands into a shell; what was heard is in variables."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, "bash", "-euo", "pipefail", "-c", script],
            capture_output=True, text=True, check=False, cwd=self.logs, timeout=180,
            env={**os.environ, **heard, "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"

    def ask(self, *words: str) -> Any:
        """Run one command with --json, whatever its exit code; give its answer."""
        done = subprocess.run(
            self.words("-m", "pointillist", *words, "--json"),
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        )  # fmt: skip
        return json.loads(noted(words, done.stdout))

    def start(self, *words: str) -> None:
        log = self.logs / f"{self.name}-{words[0]}.log"
        with log.open("wb") as out:
            command = self.words("-m", "pointillist", *words)
            self.running.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT
                )
            )

    def check(self) -> None:
        for process in self.running:
            assert process.poll() is None, (process.args, sorted(self.logs.iterdir()))

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in reversed(self.running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def three_hosts(logs: Path) -> Iterator[Sequence[NamedHost]]:
    """Give three machines that reach each other; whatever they run ends with them."""
    run = os.urandom(2).hex()
    hosts = [NamedHost(f"plst{run}{n}", at, logs) for n, at in enumerate(ADDRESSES)]
    first = hosts[0].name
    made: list[str] = []
    try:
        for host in hosts:
            ip_call("netns", "add", host.name)
            made.append(host.name)
            ip_call("-n", host.name, "link", "set", "lo", "up")
        ip_call("-n", first, "link", "add", "br0", "type", "bridge")
        ip_call("-n", first, "addr", "add", f"{ADDRESSES[0]}/24", "dev", "br0")
        ip_call("-n", first, "link", "set", "br0", "up")
        for host in hosts[1:]:
            near, far = f"{host.name}n", f"{host.name}f"
            ip_call("-n", first, "link", "add", near, "type", "veth", "peer", "name", far,
                "netns", host.name)  # fmt: skip
            ip_call("-n", first, "link", "set", near, "master", "br0", "up")
            ip_call("-n", host.name, "addr", "add", f"{host.address}/24", "dev", far)
            ip_call("-n", host.name, "link", "set", far, "up")
        yield hosts
    finally:
        for host in hosts:
            host.stop()
        for name in made:
            ip_call("netns", "del", name)
