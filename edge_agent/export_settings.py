"""What `[export]` of an agent's configuration may say: raw numbers for the operator's own monitors.

It fails closed: both ways are off until they are asked for, scrapes come from loopback and from
named users, and what is pushed beyond loopback goes over TLS.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from transport.settings.config import limited

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:4318"
_USER: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?"


@dataclass(frozen=True, slots=True)
class ScrapeSection:
    """This host's numbers for a Prometheus on this host; port 0 takes a free one.

    readers   users that may scrape, beside root and the agent's own
    """

    enabled: bool = False
    port: int = limited(9470, low=0, high=65_535)
    readers: tuple[str, ...] = limited((), most=16, form=_USER)


@dataclass(frozen=True, slots=True)
class OtlpSection:
    """This host's numbers for an OpenTelemetry collector, by OTLP over HTTP.

    endpoint     to which /v1/metrics is appended
    every_s      between two messages
    timeout_s    for one request
    most_waiting messages that wait while the collector is away; the oldest go first
    ca_file      authorities for TLS, in place of the system's
    token_file   holds a bearer token; read for each request
    """

    enabled: bool = False
    endpoint: str = DEFAULT_ENDPOINT
    every_s: int = limited(15, low=1, high=3_600)
    timeout_s: int = limited(5, low=1, high=60)
    most_waiting: int = limited(40, low=1, high=1_000)
    ca_file: Path | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            raise ValueError("endpoint: expected http:// or https:// with a host, got another")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("endpoint: expected no user, query or fragment; token_file has a key")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("endpoint: expected https:// beyond loopback, got http://")


@dataclass(frozen=True, slots=True)
class ExportSection:
    """Raw numbers of this host for its operator's own monitoring; never for the fleet's parties."""

    prometheus: ScrapeSection = field(default_factory=ScrapeSection)
    otlp: OtlpSection = field(default_factory=OtlpSection)

    @property
    def enabled(self) -> bool:
        """Whether anything is exported at all."""
        return self.prometheus.enabled or self.otlp.enabled


def is_loopback(name: str) -> bool:
    """Say whether a host's name is an address of loopback; names that must be looked up are not."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
