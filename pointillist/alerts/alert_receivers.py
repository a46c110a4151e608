"""Who is told: Alertmanager by its API, or any web server that takes JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final

import urllib3
from urllib3.exceptions import HTTPError

from transport.files.private_files import UnfitToken, read_token_text

from .alert import Alert
from .alerts_config import AlertsConfig, ReceiverAddress

ALERTMANAGER: Final = "alertmanager"
WEBHOOK: Final = "webhook"
_API: Final = "/api/v2/alerts"
_MOST_TOKEN: Final = 4 << 10
_TIMEOUT_S: Final = 10.0
_TRIES: Final = urllib3.Retry(
    total=3, backoff_factor=0.5, allowed_methods=None, raise_on_status=False,
    status_forcelist=(429, 500, 502, 503, 504), redirect=0,
)  # fmt: skip
_AGAIN_S: Final = 240.0
"""Alertmanager keeps nothing over its own restart, so what stands is said to it again."""


class ReceiverUnavailable(Exception):
    """A receiver took nothing; the message says which and why, without secrets."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver.

    again_s   how often it is told of what stands; None: once
    """

    name: str
    address: ReceiverAddress
    again_s: float | None

    def send(self, alerts: Sequence[Alert]) -> None:
        """Send all in one request, tried again by urllib3. Raises ReceiverUnavailable."""
        url = self.address.url
        if self.name == ALERTMANAGER:
            url = url.rstrip("/") + _API
        body: Any = [_posted(alert) for alert in alerts]
        if self.name == WEBHOOK:
            body = {"version": 1, "alerts": body}
        ca_file = self.address.ca_file
        with urllib3.PoolManager(ca_certs=None if ca_file is None else str(ca_file)) as pool:
            try:
                answer = pool.request(
                    "POST", url, body=json.dumps(body).encode(), headers=self._headers(),
                    timeout=_TIMEOUT_S, retries=_TRIES,
                )  # fmt: skip
            except (HTTPError, OSError) as error:
                why = getattr(error, "strerror", None) or type(error).__name__
                said = f"{self.name} at {self.address.url}: {why}"
                raise ReceiverUnavailable(said) from error
        if not 200 <= answer.status < 300:
            raise ReceiverUnavailable(
                f"{self.name} at {self.address.url}: expected 2xx, got {answer.status}"
            )

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": f"pointillist/{metadata.version('pointillist')}",
        }
        if self.address.token_file is not None:
            try:
                token = read_token_text(self.address.token_file, _MOST_TOKEN)
            except UnfitToken as error:
                raise ReceiverUnavailable(f"{self.name}: {error}") from None
            headers["authorization"] = f"Bearer {token}"
        return headers


def receivers(config: AlertsConfig) -> list[Receiver]:
    """Give those that the configuration names."""
    named = ((ALERTMANAGER, config.alertmanager, _AGAIN_S), (WEBHOOK, config.webhook, None))
    return [Receiver(name, at, again_s) for name, at, again_s in named if at is not None]


def _posted(alert: Alert) -> dict[str, Any]:
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": _moment(alert.starts_s),
        "endsAt": _moment(alert.ends_s),
    }


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()
