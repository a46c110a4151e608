"""alerts.toml: what is worth telling, whose a job is, and who is told."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from transport.settings.config import limited, read_tree

FORMAT = 1
NOBODY = "unknown"


@dataclass(frozen=True, slots=True)
class FleetRules:
    """Which changes of a fleet are told.

    by              what `FleetReleases.change` compares, each a family of its own rate
    period          hour, day, week or eight_weeks: the newest that has ended and the one before
    least_change    of a share (0.01: a percentage point); smaller changes are not told
    least_coverage  released part of both periods; below it a change may be a gap's
    series          these alone; none: all
    """

    by: tuple[str, ...] = ("family", "application")
    causes: bool = True
    period: str = "week"
    least_change: float = limited(0.01, low=0.0, high=1.0)
    least_coverage: float = limited(0.5, low=0.0, high=1.0)
    series: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose the jobs are whose cgroup matches a pattern, as '/slurm/uid_1000/*'."""

    job: str
    owner: str


@dataclass(frozen=True, slots=True)
class ReceiverAddress:
    """Where alerts are sent.

    url          http or https; of Alertmanager without the path of its API
    token_file   a secret that is sent as `Authorization: Bearer`
    ca_file      authorities of TLS in place of the system's
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"url: expected http://HOST or https://HOST, got {self.url!r}")
        if parts.username or parts.password:
            raise ValueError("url: expected no password in it; token_file names a secret")


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """What `pointillist alerts check` does.

    every_s      between two looks
    """

    fleet: FleetRules = FleetRules()
    owners: tuple[JobOwner, ...] = ()
    alertmanager: ReceiverAddress | None = None
    webhook: ReceiverAddress | None = None
    every_s: float = limited(60.0, low=1.0, high=86_400.0)

    def __post_init__(self) -> None:
        if self.alertmanager is None and self.webhook is None:
            raise ValueError("expected [alertmanager] or [webhook], got neither: nobody is told")

    def owner(self, job: str) -> str:
        """Say whose a job is: the first pattern that matches its cgroup."""
        return first_owner(self.owners, job)


def first_owner(owners: Sequence[JobOwner], job: str) -> str:
    """Give the owner of the first pattern that matches; NOBODY where none does."""
    return next((each.owner for each in owners if fnmatch.fnmatchcase(job, each.job)), NOBODY)


def load_alerts_config(path: Path) -> AlertsConfig:
    """Read it. Raises ConfigError, which names the key."""
    return read_tree(AlertsConfig, path, file_format=FORMAT)
