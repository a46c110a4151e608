"""Packages that are an extra's: what to install where a command lacks one.

Sample files that come with every installation: configurations, units, rules, dashboards.

Where key files lie unless somebody says otherwise: each role has a folder of its own inside.

A host's are in /etc: the ledger's fence lies beside the key, and no one backup may take the fence
and the ledger, which is in /var/lib. A party writes a sealing key every day, and its service may
write below /var/lib/pointillist alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

_PARTIES: Final = ("aggregator", "web")
PACKAGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "capstone": ("capstone", ("agent",)),
    "confluent_kafka": ("confluent-kafka", ("aggregator",)),
    "cramjam": ("cramjam", ("agent",)),
    "dp_accounting": ("dp-accounting", ("agent", "aggregator")),
    "duckdb": ("duckdb", _PARTIES),
    "fastapi": ("fastapi", ("web",)),
    "grpc": ("grpcio", ("aggregator",)),
    "ijson": ("ijson", ("agent", *_PARTIES, "training")),
    "jinja2": ("jinja2", ("agent", "web")),
    "jupyterlab": ("jupyterlab", ("notebook",)),
    "kafka": ("kafka-python", ("agent",)),
    "matplotlib": ("matplotlib", ("training", "simulator")),
    "opendp": ("opendp", ("simulator",)),
    "opentelemetry": ("opentelemetry-proto", ("agent",)),
    "pandas": ("pandas", _PARTIES),
    "prometheus_client": ("prometheus-client", ("agent", *_PARTIES)),
    "psutil": ("psutil", ("agent", "aggregator")),
    "psycopg": ("psycopg", ("witness-postgresql",)),
    "pyarrow": ("pyarrow", (*_PARTIES, "training")),
    "pynvml": ("nvidia-ml-py", ("agent",)),
    "pyspark": ("pyspark", ("spark",)),
    "scipy": ("scipy", (*_PARTIES, "training")),
    "simpy": ("simpy", ("simulator",)),
    "sklearn": ("scikit-learn", ("training",)),
    "starlette": ("starlette", ("agent",)),
    "urllib3": ("urllib3", ("agent", "aggregator", "web")),
    "uvicorn": ("uvicorn", ("agent", "web")),
}
"""The module that is imported -> its package, and the extras that bring it, the smallest first."""


_EXTRA_OF: Final[Mapping[str, str]] = {
    "agent": "agent",
    "demo": "simulator",
    "diagnosis": "training",
    "experiment": "simulator",
    "fleet": "simulator",  # for a trial; what a party types needs no extra
    "simulate": "simulator",
    "stragglers": "training",
    "web": "web",
}
"""A command group -> the extra that brings all it needs, where that is not the package's first."""


def extra_with(module: str, group: str) -> tuple[str, str] | None:
    """Give the package of a module that is not here, and the extra to install for it.

    group       the command group that asked for it: its own extra is named where that has it
    Returns     None for a module that is no extra's
    """
    package = PACKAGES.get(module.partition(".")[0])
    if package is None:
        return None
    own = _EXTRA_OF.get(group, "")
    name, extras = package
    return name, own if own in (*extras, "simulator") else extras[0]


FOLDERS: Final[Mapping[str, str]] = {
    "config": "a program's configuration, with every key",
    "grafana": "a dashboard of Grafana",
    "otel": "a configuration of OpenTelemetry's collector",
    "prometheus": "rules or a configuration of Prometheus",
    "systemd": "a unit of systemd, or its users",
}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    what: str
    path: Path


def samples() -> tuple[Sample, ...]:
    folder = _folder()
    return tuple(
        Sample(path.name, what, path)
        for name, what in FOLDERS.items()
        for path in sorted((folder / name).iterdir())
    )


def sample_hint(name: str) -> str:
    """Say how a person gets a sample, for an error that asks for such a file."""
    return f"`pointillist sample show {name}` prints a sample with every key"


def _folder() -> Path:
    """Give their folder: beside this module when installed, deploy/ in the repository."""
    here = Path(__file__).resolve().parent
    packaged = here / "samples"
    return packaged if packaged.exists() else here.parent / "deploy"


HOST_KEYS: Final = Path("/etc/pointillist/keys")
AGENT_HOME: Final = Path("/var/lib/pointillist/agent")
_PARTY_KEYS: Final = Path("/var/lib/pointillist")
ROLES: Final = ("host", "leader", "helper", "witness")


def default_folder(role: str) -> Path:
    """Give root's folder of a role's keys, or that of any other user, which has all roles'."""
    if os.geteuid() != 0:
        return Path(platformdirs.user_config_dir("pointillist")) / "keys"
    return HOST_KEYS if role == "host" else _PARTY_KEYS / role / "keys"


def default_folders() -> list[Path]:
    return list(dict.fromkeys(default_folder(role) for role in ROLES))


def public_fingerprint(public: bytes) -> str:
    """SHA-256 of what is public, its first 16 bytes in groups that people can compare aloud."""
    digest = hashlib.sha256(public).hexdigest()[:32]
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))
