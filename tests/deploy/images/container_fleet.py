"""A fleet of containers: a broker, Leader, Helper, an agent with eBPF, and a crowd for its cohort.

Every command is the images' own. People's steps (keys, task, roster) are made in a container of
operators, as a user of its own; what they hand over is copied as a cluster's secrets are mounted:
root's, and readable for the group.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pointillist.broker.local import jars, new_cluster_id
from pointillist.broker.properties import Ports, server_properties
from tests.certificate_kit import Authority
from tests.deploy.images.podman import HARDENED, REPOSITORY, Containers, image
from tests.wait_kit import until

CROWD = 17
OPERATORS = ("acme", "bolt", "cent")
OPERATOR_UID, LEADER_UID, HELPER_UID, WEB_UID, LOG_GID = 10009, 10001, 10002, 10005, 10000
BOOTSTRAP = "127.0.0.1:9092"
HELPER_FILE = "/etc/pointillist/helper.toml"
HELPER = "127.0.0.1:7443"
AGENT_CAPABILITIES = (
    "SETUID", "SETGID", "SETPCAP", "CHOWN", "FOWNER", "DAC_OVERRIDE",
    "DAC_READ_SEARCH", "SYS_PTRACE", "SYSLOG", "BPF", "PERFMON",
)  # fmt: skip
"""The first six end with root, which the agent gives up; those after them it keeps."""

PLAN = """format = 1
name = "containers"
hosts = 18
n_min = 16
t = 6

[[task]]
series = "minute"
window_s = 60
lateness_s = 30
retention_s = 21_600
weights = { host_cpu = 0.5, host_memory = 0.25, host_disk = 0.125, host_network = 0.125 }
"""
FETCH = (
    "import urllib.request as r; "
    "print(r.urlopen('http://127.0.0.1:8765/api/v1/store').read().decode())"
)
KAFKA = f'[transport.kafka]\nbootstrap = ["{BOOTSTRAP}"]\n'


class ContainerFleet:
    """Files in a folder, containers of one network; steps in the order of a deployment."""

    def __init__(self, folder: Path, containers: Containers) -> None:
        self.folder, self.containers = folder, containers
        self.operators = self._folder("operators", OPERATOR_UID, OPERATOR_UID)
        self.public: dict[str, str] = {}

    # What people do ---------------------------------------------------------------------------

    def ask(self, *command: str) -> str:
        return self.containers.run("operators", "pointillist", *command)

    def start_broker(self) -> None:
        data = self._folder("broker", 65534, 65534)
        (data / "server.properties").write_text(
            server_properties(Path("/data"), Ports(9092, 9093), None, {})
        )
        mounts = {data: "/data", **broker_mounts()}
        options = [*HARDENED, "--user", "65534:65534", "--workdir", "/data", *_volumes(mounts)]
        self.containers.start("broker", image("base"), options, ["sh", "-c", broker_script()])
        self._until("broker", lambda: "Kafka Server started" in self.containers.said("broker"))

    def make_keys(self) -> None:
        options = [
            *HARDENED, "--user", f"{OPERATOR_UID}", "--entrypoint", "sleep", "--workdir", "/fleet",
            *_volumes({self.operators: "/fleet"}),
        ]  # fmt: skip
        self.containers.start("operators", image("aggregator"), options, ["infinity"])
        for role in ("leader", "helper"):
            self.ask("keys", "generate", role, "--folder", "keys")
            shown = self.ask("keys", "show", f"keys/{role}/identity.key", "--json")
            self.public[role] = json.loads(shown)[0]["public_key"]
        self.pins = "".join(
            self.ask("operator", "keygen", f"{name}.key", "--name", name) for name in OPERATORS
        )

    def sign_task(self) -> None:
        sign_task(self.ask, self.operators, self.public["leader"], self.public["helper"])

    def vouch(self) -> None:
        """A token for each host: six of each operator."""
        hosts = ["node-1", *(f"host-{number}" for number in range(CROWD))]
        for at, name in enumerate(OPERATORS):
            files = [f"tokens/{host}.token" for host in hosts[at :: len(OPERATORS)]]
            self.containers.run("operators", "mkdir", "-p", "tokens")
            self.ask(
                "operator", "vouch", *files, "--key", f"{name}.key", "--name", name,
                "--plan", "fleet", "--leader", self.public["leader"],
            )  # fmt: skip

    def enrol(self) -> None:
        """A first roster of all who asked, in force at once; each party signs by its keys."""
        leader, helper = (self.folder / f"{role}-state" for role in ("leader", "helper"))
        (leader / "plans.toml").write_text(
            '[[plan]]\nname = "fleet"\n'
            "series = { minute = { cohort = 0, weight_millionths = 1_000_000 } }\n" + self.pins
        )
        here = "/var/lib/pointillist"
        self.containers.run(
            "leader", "pointillist", "leader", "roster", "build", "--now", "--plans",
            f"{here}/plans.toml", "--requests", f"{here}/joins", "--log",
            "/etc/pointillist/leader.toml", "--key", f"{here}/key_dir/identity.key",
            "--out", f"{here}/joins/1.roster",
        )  # fmt: skip
        self._hand_over(leader / "joins", helper / "joins", HELPER_UID)
        countersign = ("pointillist", "helper", "countersign", "--config", HELPER_FILE)
        self.containers.run(
            "helper", *countersign, f"{here}/joins/1.roster", "--first",
            "--task", f"{here}/signed/minute.task",
        )  # fmt: skip
        self.containers.run("helper", *countersign, f"{here}/joins")
        for path in (helper / "joins").iterdir():
            if path.suffix in {".roster", ".entry"}:
                self._publish(path)

    def _hand_over(self, given: Path, taken: Path, uid: int) -> None:
        """Carry files from one party to the other, as mail would."""
        shutil.copytree(given, taken)
        for path in (taken, *taken.iterdir()):
            os.chown(path, uid, LOG_GID)

    # The roles --------------------------------------------------------------------------------

    def start_parties(self) -> None:
        authority = Authority.make(self.folder / "tls")
        for role in ("helper", "leader"):
            authority.issue(role)
        self._start_party(
            "helper", HELPER_UID,
            f'[listen]\naddress = "{HELPER}"\n' + _tls("helper") + self.pins
            + "[http]\nport = 9466\n",
        )  # fmt: skip
        self._start_party(
            "leader", LEADER_UID,
            KAFKA + f'[helper]\naddress = "{HELPER}"\n' + _tls("leader")
            + '[store]\ndatabase = "/var/lib/pointillist/releases/releases.duckdb"\n'
            'releases_dir = "/var/lib/pointillist/releases/parquet"\n[http]\nport = 9465\n',
        )  # fmt: skip
        self._publish(self.operators / "minute.task")
        for role in ("helper", "leader"):
            self._until(role, lambda role=role: self.runs(role))  # type: ignore[misc]

    def runs(self, role: str) -> bool:
        config = ("--config", f"/etc/pointillist/{role}.toml")
        return self.containers.ends(role, "pointillist", role, "status", *config) in {0, 1}

    def start_agents(self) -> None:
        """An agent as the chart runs it, with eBPF, and the crowd; both have asked afterwards."""
        self._start_agent()
        self._start_crowd()
        self._until("crowd", lambda: "joined" in self.containers.said("crowd"))
        # The second time is that of `agent run`: the first is of `agent join`.
        begun = "runs as pointillist-agent"
        self._until("agent", lambda: self.containers.said("agent").count(begun) == 2)

    def _until(self, name: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds of a container; one that ends is shown."""
        running = self.containers.running
        until(lambda: holds() or not running(name))
        assert running(name), self.containers.said(name)

    def _start_agent(self) -> None:
        etc, state = self._folder("agent-etc"), self._folder("agent-state")
        (etc / "agent.toml").write_text(_agent_config(self.public, ebpf=True))
        profile = seccomp_profile(self.folder)
        tokens = self._given("tokens", self.operators / "tokens" / "node-1.token")
        mounts = {
            etc: "/etc/pointillist:ro",
            state: "/var/lib/pointillist",
            tokens: "/run/secrets/tokens:ro",
            self._machine("node-1"): "/etc/machine-id:ro",
            Path("/sys/fs/cgroup"): "/sys/fs/cgroup:ro",
        }  # fmt: skip
        options = [
            "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges",
            "--security-opt", f"seccomp={profile}",
            *(part for name in AGENT_CAPABILITIES for part in ("--cap-add", name)),
            "--tmpfs", "/tmp", "--tmpfs", "/run/pointillist",
            "--pid", "host", "--cgroupns", "host", "--env", "NODE_NAME=node-1",
            "--entrypoint", "pointillist-start", *_volumes(mounts),
        ]  # fmt: skip
        command = [
            "agent", "--", "pointillist", "agent", "run",
            "--config", "/etc/pointillist/agent.toml",
        ]  # fmt: skip
        self.containers.start("agent", image("agent"), options, command)

    def _start_crowd(self) -> None:
        given = self._folder("crowd")
        shutil.copy(REPOSITORY / "tests" / "deploy" / "images" / "crowd.py", given)
        (given / "agent.toml").write_text(_agent_config(self.public, ebpf=False))
        for token in (self.operators / "tokens").glob("host-*"):
            shutil.copy(token, given)
        give(given, 10004, 10004, 0o600)
        mounts = {
            given: "/given:ro",
            self._folder("crowd-state", 10004, 10004): "/var/lib/pointillist",
            self._machine("crowd"): "/etc/machine-id:ro",
        }
        options = [*HARDENED, "--user", "10004", "--entrypoint", "python3", *_volumes(mounts)]
        self.containers.start(
            "crowd", image("agent"), options, ["/given/crowd.py", "/given", str(CROWD)]
        )

    def start_web(self) -> None:
        """The web application over the Leader's releases, read only, on its own loopback."""
        mounts = {self.folder / "leader-state" / "releases" / "parquet": "/releases:ro"}
        options = [*HARDENED, *_volumes(mounts)]
        command = ["web", "--store", "/releases", "--listen", "127.0.0.1:8765"]
        self.containers.start("web", image("web"), options, command)
        self._until("web", lambda: self.containers.ends("web", "python3", "-c", FETCH) == 0)

    def _start_party(self, role: str, uid: int, config: str) -> None:
        etc, state = self._folder(f"{role}-etc"), self._folder(f"{role}-state", uid, LOG_GID)
        (state / "signed").mkdir(exist_ok=True)
        other = "helper" if role == "leader" else "leader"
        paths = "".join(
            f'{key} = "/var/lib/pointillist/{key}"\n' for key in ("key_dir", "state_dir")
        )
        if role == "helper":
            paths += 'fence_file = "/var/lib/pointillist/fence/fence.json"\n'
        (etc / f"{role}.toml").write_text(
            f'[{role}]\nsigned_dir = "/var/lib/pointillist/signed"\n{paths}'
            f'{other}_pk = "{self.public[other]}"\n{config}'
        )
        tls = self.folder / "tls"
        secrets = self._given(
            f"{role}-secrets", self.operators / "keys" / role / "identity.key", tls / "ca.pem",
            tls / f"{role}.pem", tls / f"{role}.key",
        )  # fmt: skip
        mounts = {
            etc: "/etc/pointillist:ro",
            state: "/var/lib/pointillist",
            secrets: "/run/secrets/pointillist:ro",
        }
        options = [
            *HARDENED, "--user", f"{uid}:{LOG_GID}", "--entrypoint", "pointillist-start",
            *_volumes(mounts),
        ]  # fmt: skip
        command = [
            "party", "--keys", "/var/lib/pointillist/key_dir", "--", "pointillist", role, "run",
            "--config", f"/etc/pointillist/{role}.toml",
        ]  # fmt: skip
        self.containers.start(role, image("aggregator"), options, command)

    # Files ------------------------------------------------------------------------------------

    def _publish(self, path: Path) -> None:
        for role in ("leader", "helper"):
            copy = self.folder / f"{role}-state" / "signed" / path.name
            shutil.copyfile(path, copy)
            copy.chmod(0o644)

    def _folder(self, name: str, uid: int = 0, gid: int = 0) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        os.chown(path, uid, gid)
        path.chmod(0o755)
        return path

    def _machine(self, name: str) -> Path:
        """The id of a machine that is not this one."""
        path = self.folder / f"machine-id-{name}"
        path.write_text(f"{hashlib.sha256(name.encode()).hexdigest()[:32]}\n")
        return path

    def _given(self, name: str, *files: Path) -> Path:
        """A folder of secrets: root's, for the group of the parties to read."""
        folder = self._folder(name)
        for file in files:
            shutil.copy(file, folder)
        give(folder, 0, LOG_GID, 0o440)
        return folder


def sign_task(ask: Callable[..., str], folder: Path, leader: str, helper: str) -> None:
    """One series of minutes from now on, under both signatures: minute.task of a folder."""
    (folder / "plan.toml").write_text(PLAN)
    ask(
        "task", "build", "--plan", "plan.toml", "--series", "minute", "--leader", leader,
        "--helper", helper, "--start", f"{int(time.time())}", "--out", "minute.task",
    )  # fmt: skip
    ask("task", "sign", "minute.task", "--key", "keys/leader/identity.key")
    signing = ("--key", "keys/helper/identity.key", "--leader", leader)
    ask("helper", "countersign", "minute.task", *signing)


def seccomp_profile(folder: Path) -> Path:
    made = [sys.executable, str(REPOSITORY / "deploy" / "images" / "agent_seccomp.py")]
    profile = folder / "seccomp.json"
    profile.write_bytes(subprocess.run(made, capture_output=True, check=True).stdout)
    return profile


def broker_script() -> str:
    """What a container of the base image runs to be a broker, with its settings in /data."""
    java = Path(shutil.which("java") or "").resolve()
    classes = "-Xmx512M -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '/kafka/*'"
    return (
        f"{java} {classes} kafka.tools.StorageTool format --standalone "
        f"-t {new_cluster_id()} -c /data/server.properties && "
        f"exec {java} {classes} kafka.Kafka /data/server.properties"
    )


def broker_mounts() -> dict[Path, str]:
    mounts = {jars(print): "/kafka:ro", Path("/usr/lib/jvm"): "/usr/lib/jvm:ro"}
    for settings in Path("/etc").glob("java-*-openjdk"):
        mounts[settings] = f"{settings}:ro"
    return mounts


def give(folder: Path, uid: int, gid: int, mode: int) -> None:
    for file in folder.iterdir():
        os.chown(file, uid, gid)
        file.chmod(mode)


def volumes(mounts: dict[Path, str]) -> list[str]:
    return [f"{here}:{there}" for here, there in mounts.items()]


def _volumes(mounts: dict[Path, str]) -> list[str]:
    return [part for volume in volumes(mounts) for part in ("--volume", volume)]


def _tls(role: str) -> str:
    names = {"ca_file": "ca.pem", "cert_file": f"{role}.pem", "key_file": f"{role}.key"}
    return "".join(f'{key} = "/run/pointillist/secrets/{name}"\n' for key, name in names.items())


def _agent_config(public: dict[str, str], *, ebpf: bool) -> str:
    return f"""[host]
key_file = "/var/lib/pointillist/agent/keys/host/identity.key"
state_dir = "/var/lib/pointillist/agent/state"
gpus = []
gpu_uuids = []
{KAFKA}
[trust]
leaders = ["{public["leader"]}"]
helpers = ["{public["helper"]}"]
[bounds]
n_min_at_least = 16
[sources]
gpus = false
faults = false
ebpf = {json.dumps(ebpf)}
probes = {{ enabled = false }}
[diagnosis]
enabled = false
"""
