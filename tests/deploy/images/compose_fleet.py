"""The fleet of deploy/compose, run by podman-compose in a network of its own.

The folder FLEET is made as docs/containers.md says, by the product's own commands. Kafka and
Prometheus are makers' images that no machine without their registry has: the same programs, as this
machine has them, run on the base image under the compose file's own names. Grafana is left out.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pointillist.broker.properties import Ports, server_properties
from tests.certificate_kit import Authority
from tests.deploy.images.container_fleet import (
    HELPER_UID,
    LEADER_UID,
    LOG_GID,
    OPERATORS,
    broker_mounts,
    broker_script,
    give,
    seccomp_profile,
    sign_task,
    volumes,
)
from tests.deploy.images.podman import ENVIRONMENT, REPOSITORY, image, run_podman
from tests.netns_kit import ip_call

FILE = REPOSITORY / "deploy" / "compose" / "compose.yaml"
LEFT_OUT = "grafana"
PROMETHEUS = Path("/usr/bin/prometheus")


def why_no_compose() -> str | None:
    """Why this machine cannot run the compose file; None where it can."""
    return None if PROMETHEUS.exists() else f"needs {PROMETHEUS}: make tools"


@dataclass(frozen=True)
class ComposeFleet:
    """A fleet whose services podman-compose started; `name` is its network namespace."""

    folder: Path
    name: str

    def people(self, *command: str) -> str:
        return _run([sys.executable, "-m", "pointillist", *command], self.folder)

    def compose(self, *command: str) -> str:
        """Run podman-compose on the compose file and what replaces makers' images in it."""
        files = ("-f", str(FILE), "-f", str(self.folder / "local.yaml"))
        program = str(Path(sys.executable).with_name("podman-compose"))
        words = (program, "--in-pod=false", "--no-ansi", "-p", self.name, *files, *command)
        return self.inside(*words)

    def inside(self, *command: str) -> str:
        network = f"--net=/run/netns/{self.name}"
        return _run(["nsenter", network, *command], FILE.parent, self._environment)

    def ends(self, *command: str) -> int:
        """Run a command of the product in a service's container, and give its exit code."""
        try:
            self.compose("exec", *command)
        except CommandFailed as failed:
            return failed.code
        return 0

    def targets(self) -> dict[str, str]:
        """What Prometheus says of what it scrapes: job -> health."""
        found = self.fetched("http://127.0.0.1:9090/api/v1/targets")
        return {t["labels"]["job"]: t["health"] for t in found["data"]["activeTargets"]}

    def fetched(self, address: str) -> Any:
        """What an address of the fleet's loopback answers; nothing yet: an empty object."""
        script = (
            f"import urllib.request as r; print(r.urlopen({address!r}, timeout=5).read().decode())"
        )
        try:
            return json.loads(self.inside(sys.executable, "-c", script))
        except CommandFailed:
            return {"data": {"activeTargets": []}}

    @property
    def _environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "FLEET": str(self.folder / "fleet")}

    def prepare(self) -> None:
        self._make_keys()
        self._sign_task()
        self._configure()
        self._replace_images()

    def _make_keys(self) -> None:
        fleet = self._folder("fleet")
        for role in ("leader", "helper"):
            self.people("keys", "generate", role, "--folder", "keys")
        authority = Authority.make(self.folder / "tls")
        for role, uid in (("leader", LEADER_UID), ("helper", HELPER_UID)):
            authority.issue(role)
            made = self._folder(f"fleet/secrets/{role}")
            tls = (self.folder / "tls" / name for name in ("ca.pem", f"{role}.pem", f"{role}.key"))
            for path in (self.folder / "keys" / role / "identity.key", *tls):
                shutil.copy(path, made)
            give(made, uid, LOG_GID, 0o400)
            self._folder(f"fleet/{role}", uid)
            self._folder(f"fleet/{role}/signed", uid)
        for name in ("releases", "releases/parquet"):
            self._folder(f"fleet/leader/{name}", LEADER_UID)
        self._folder("fleet/agent")
        self._folder("fleet/tokens")
        self.people("operator", "keygen", "acme.key", "--name", OPERATORS[0])
        self.people(
            "operator", "vouch", str(fleet / "tokens" / "node-1.token"), "--key", "acme.key",
            "--name", OPERATORS[0], "--plan", "fleet", "--leader", self.public_key("leader"),
        )  # fmt: skip

    def public_key(self, role: str) -> str:
        shown = self.people("keys", "show", f"keys/{role}/identity.key", "--json")
        return str(json.loads(shown)[0]["public_key"])

    def _sign_task(self) -> None:
        sign_task(self.people, self.folder, self.public_key("leader"), self.public_key("helper"))
        for role in ("leader", "helper"):
            copy = self.folder / "fleet" / role / "signed" / "minute.task"
            shutil.copyfile(self.folder / "minute.task", copy)
            copy.chmod(0o644)

    def _configure(self) -> None:
        keys = {role.upper(): self.public_key(role) for role in ("leader", "helper")}
        for role in ("leader", "helper", "agent"):
            text = (FILE.parent / f"{role}.toml").read_text(encoding="utf-8")
            for name, key in keys.items():
                text = text.replace(f'"{name}"', f'"{key}"')
            (self.folder / "fleet" / f"{role}.toml").write_text(text, encoding="utf-8")

    def _replace_images(self) -> None:
        data = self._folder("broker", 65534)
        properties = server_properties(Path("/data"), Ports(9092, 9094), None, {})
        (data / "server.properties").write_text(properties)
        kafka = {
            "image": image("base"), "user": "65534:65534", "working_dir": "/data",
            "command": ["sh", "-c", broker_script()],
            "volumes": volumes({data: "/data", **broker_mounts()}),
        }  # fmt: skip
        prometheus = {
            "image": image("base"), "entrypoint": [str(PROMETHEUS)],
            "volumes": volumes({PROMETHEUS: f"{PROMETHEUS}:ro"}),
        }  # fmt: skip
        seccomp = seccomp_profile(self.folder)
        agent = {
            "environment": {"NODE_NAME": "node-1"}, "security_opt": [f"seccomp={seccomp}"],
        }  # fmt: skip
        services = {"kafka": kafka, "prometheus": prometheus, "agent": agent}
        (self.folder / "local.yaml").write_text(yaml.safe_dump({"services": services}))

    def _folder(self, name: str, uid: int = 0) -> Path:
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
        os.chown(path, uid, LOG_GID if uid else 0)
        return path


class CommandFailed(AssertionError):
    """A command ended with another code than 0."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def compose_fleet(folder: Path) -> Iterator[ComposeFleet]:
    """The services of the compose file but for Grafana, started; gone afterwards."""
    fleet = ComposeFleet(folder, f"plst{secrets.token_hex(3)}")
    fleet.prepare()
    services = [name for name in yaml.safe_load(FILE.read_text())["services"] if name != LEFT_OUT]
    ip_call("netns", "add", fleet.name)
    try:
        ip_call("-n", fleet.name, "link", "set", "lo", "up")
        fleet.compose("up", "--detach", "--no-build", "--pull", "never", *services)
        yield fleet
    finally:
        for service in services:
            with suppress(CommandFailed):
                print(f"--- {service}\n{fleet.compose('logs', service)[-4000:]}")
        # One by one and by force: what ends over and over is started again under `down`.
        for service in reversed(services):
            run_podman("rm", "--force", "--time", "5", "--volumes", f"{fleet.name}_{service}_1")
        for name in yaml.safe_load(FILE.read_text())["volumes"]:
            run_podman("volume", "rm", f"{fleet.name}_{name}")
        ip_call("netns", "del", fleet.name)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=400,
    )  # fmt: skip
    if done.returncode:
        said = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        raise CommandFailed(said, done.returncode)
    return done.stdout
