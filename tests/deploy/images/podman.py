"""Containers of the images that `make images` built, run by podman with runc."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[3]
IMAGES = ("agent", "aggregator", "web")
_SETTINGS = REPOSITORY / ".tools" / "images"
ENVIRONMENT = {
    **os.environ,
    "CONTAINERS_STORAGE_CONF": str(_SETTINGS / "storage.conf"),
    "CONTAINERS_CONF": str(_SETTINGS / "containers.conf"),
}
"""Where podman finds the images, and the settings under which it works here."""

HARDENED = (
    "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges",
    "--tmpfs", "/tmp", "--mount", "type=tmpfs,destination=/run/pointillist,chown=true",
)  # fmt: skip
"""How every party runs: a root that cannot be written, no capability, and none to be had."""


def why_no_containers() -> str | None:
    """Why this machine cannot run the images; None where it can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("podman", "buildah", "runc") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: make images"
    absent = [name for name in IMAGES if run_podman("image", "exists", image(name)).returncode]
    return f"needs the images {', '.join(absent)}: make images" if absent else None


def image(name: str) -> str:
    return f"localhost/pointillist-{name}"


def run_podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["podman", *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip


def podman(*arguments: str) -> str:
    done = run_podman(*arguments)
    assert done.returncode == 0, f"podman {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Containers:
    """Containers that share one network, of loopback alone; all of them end together."""

    def __init__(self) -> None:
        self._prefix = f"plst-{secrets.token_hex(3)}"
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._names):
            run_podman("rm", "--force", "--time", "10", "--volumes", self._full(name))

    def start(self, name: str, image: str, options: Sequence[str], command: Sequence[str]) -> None:
        """Start one; the first makes the network, which the others join."""
        shared = f"container:{self._full(self._names[0])}" if self._names else "none"
        self._names.append(name)
        podman(
            "run", "--detach", "--pull", "never", "--name", self._full(name), "--network", shared,
            *options, image, *command,
        )  # fmt: skip

    def run(self, name: str, *command: str) -> str:
        return podman("exec", self._full(name), *command)

    def ends(self, name: str, *command: str) -> int:
        return run_podman("exec", self._full(name), *command).returncode

    def said(self, name: str) -> str:
        done = run_podman("logs", self._full(name))
        return done.stdout + done.stderr

    def inspect(self, name: str) -> dict[str, Any]:
        (body,) = json.loads(podman("inspect", self._full(name)))
        return dict(body)

    def running(self, name: str) -> bool:
        return bool(self.inspect(name)["State"]["Running"])

    def status_of(self, name: str) -> dict[str, str]:
        """Lines of /proc/PID/status of the first process, as the machine sees it."""
        pid = self.inspect(name)["State"]["Pid"]
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def _full(self, name: str) -> str:
        return f"{self._prefix}-{name}"
