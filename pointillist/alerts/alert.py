"""One alert: what Alertmanager tells alerts apart by, and what people read.

alerts.toml: what is worth telling, whose a job is, and who is told.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from transport.settings.config import limited, read_tree


@dataclass(frozen=True, slots=True)
class Alert:
    """A fact and how long it stands.

    labels        say which fact it is; two alerts with the same are the same
    annotations   say it to people
    starts_s, ends_s   unix seconds; a fact that nobody renews is over at its end
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_s: float
    ends_s: float

    @property
    def fingerprint(self) -> str:
        """Name it by its labels and its beginning: a later fact of the same kind is another."""
        told = json.dumps([sorted(self.labels.items()), int(self.starts_s)])
        return sha256(told.encode()).hexdigest()[:32]


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
        owners = (each.owner for each in self.owners if fnmatch.fnmatchcase(job, each.job))
        return next(owners, NOBODY)


def load_alerts_config(path: Path) -> AlertsConfig:
    """Read it. Raises ConfigError, which names the key."""
    return read_tree(AlertsConfig, path, file_format=FORMAT)
