"""Sample files that come with every installation: configurations, units, rules, dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDERS: Final[Mapping[str, str]] = {
    "config": "a program's configuration, with every key",
    "grafana": "a dashboard of Grafana",
    "otel": "a configuration of OpenTelemetry's collector",
    "prometheus": "rules or a configuration of Prometheus",
    "systemd": "a unit of systemd, or its users",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample file; no two have the same name."""

    name: str
    what: str
    path: Path


def samples() -> tuple[Sample, ...]:
    """Give all samples, by folder and name."""
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
