"""One look: facts into the outbox, the outbox to its receivers.

What is to be told and to whom it was: kept in one file, written before anything is sent.

A crash or a receiver that is away loses nothing: what was not taken stays and is sent again, and
what was taken is not told twice.

Who is told: Alertmanager by its API, or any web server that takes JSON.
"""

from __future__ import annotations

import fcntl
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import urllib3
from urllib3.exceptions import HTTPError

from aggregator.state.state_file import write_durably
from diagnosis.detect.journal import JournalReader
from edge_agent.journal import read_lines
from transport.files.private_files import UnfitToken, read_token_text

from .alert import Alert, AlertsConfig, ReceiverAddress
from .facts import host_alerts

FORMAT: Final = 1
MOST_BYTES: Final = 64 << 20
KEPT_S: Final = 7 * 86_400.0
"""How long an alert is remembered after its end, so that its fact is not told anew."""


class OutboxUnusable(ValueError):
    """A state file that this program did not write; says what was expected."""


class OutboxTaken(OSError):
    """Another process tells from the same state file: both would tell each fact."""


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Hold a state file; another lock file lies beside it, as saving puts a new file in its place.

    Raises      OutboxTaken, OSError
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutboxTaken(
                f"{path}: expected to be the only one that tells from it, and another process is"
            ) from None
        yield


@dataclass(slots=True)
class KeptAlert:
    """An alert, and when each receiver last took it, unix seconds."""

    alert: Alert
    taken_s: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class AlertOutbox:
    """Alerts by fingerprint.

    journal_ns   Unix nanoseconds up to which a host's journal was read
    """

    path: Path
    kept: dict[str, KeptAlert] = field(default_factory=dict)
    journal_ns: int = 0

    @classmethod
    def load(cls, path: Path) -> AlertOutbox:
        """Read it; a file that is not there is an empty one. Raises OutboxUnusable, OSError."""
        try:
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return cls(path)
        try:
            found = json.loads(content)
            if found["format"] != FORMAT:
                raise OutboxUnusable(f"{path}: expected format {FORMAT}, got {found['format']!r}")
            kept = {
                name: KeptAlert(Alert(**entry["alert"]), dict(entry["taken_s"]))
                for name, entry in found["alerts"].items()
            }
            return cls(path, kept, int(found["journal_ns"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, OutboxUnusable):
                raise
            raise OutboxUnusable(f"{path}: expected alerts that this program wrote") from error

    def add(self, alerts: Iterable[Alert]) -> int:
        """Take facts; one that is known is renewed, not told anew. Gives how many are new."""
        new = 0
        for alert in alerts:
            known = self.kept.get(alert.fingerprint)
            if known is None:
                self.kept[alert.fingerprint] = KeptAlert(alert)
                new += 1
            elif alert.ends_s > known.alert.ends_s:
                known.alert = alert
        return new

    def due(self, receiver: str, now_s: float, again_s: float | None) -> list[KeptAlert]:
        """Give what a receiver has not taken, and what it is to be reminded of while it stands.

        again_s   how often; None: never
        """

        def is_due(kept: KeptAlert) -> bool:
            taken_s = kept.taken_s.get(receiver)
            if taken_s is None:
                return True
            return again_s is not None and now_s < kept.alert.ends_s and now_s - taken_s >= again_s

        return list(filter(is_due, self.kept.values()))

    def forget(self, now_s: float, receivers: Iterable[str]) -> None:
        """Drop what is long over and was taken by everybody."""
        names = set(receivers)
        self.kept = {
            name: kept
            for name, kept in self.kept.items()
            if kept.alert.ends_s + KEPT_S > now_s or not names <= set(kept.taken_s)
        }

    def save(self) -> None:
        """Write it durably. Raises StorageUnavailable."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "journal_ns": self.journal_ns,
            "alerts": {name: asdict(kept) for name, kept in self.kept.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.path, json.dumps(document).encode())


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
        body: Any = [
            {
                "labels": alert.labels,
                "annotations": alert.annotations,
                "startsAt": datetime.fromtimestamp(alert.starts_s, UTC).isoformat(),
                "endsAt": datetime.fromtimestamp(alert.ends_s, UTC).isoformat(),
            }
            for alert in alerts
        ]
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
    named = ((ALERTMANAGER, config.alertmanager, _AGAIN_S), (WEBHOOK, config.webhook, None))
    return [Receiver(name, at, again_s) for name, at, again_s in named if at is not None]


@dataclass(frozen=True, slots=True)
class AlertRound:
    """What one look did.

    new        facts that were not known before
    waiting    alerts that some receiver has not taken
    away       why receivers took nothing, a line each
    """

    new: int
    sent: int
    waiting: int
    away: Sequence[str] = field(default=())


def check(
    outbox: AlertOutbox, found: Sequence[Alert], told: Sequence[Receiver], now: Callable[[], float]
) -> AlertRound:
    """Keep what was found, then send what is due.

    Raises      StorageUnavailable: then nothing was sent that is not kept
    """
    new = outbox.add(found)
    outbox.save()
    sent, away = 0, []
    for receiver in told:
        due = outbox.due(receiver.name, now(), receiver.again_s)
        if not due:
            continue
        try:
            receiver.send([kept.alert for kept in due])
        except (ReceiverUnavailable, OSError) as error:
            away.append(str(error))
            continue
        for kept in due:
            kept.taken_s[receiver.name] = now()
        sent += len(due)
        outbox.save()
    names = [receiver.name for receiver in told]
    outbox.forget(now(), names)
    waiting = sum(1 for kept in outbox.kept.values() if not set(names) <= set(kept.taken_s))
    outbox.save()
    return AlertRound(new, sent, waiting, tuple(away))


def journal_alerts(journal: Path, config: AlertsConfig, outbox: AlertOutbox) -> list[Alert]:
    """Give incidents not read before; the outbox notes how far. Raises OSError."""
    lines = JournalReader().read(read_lines(journal))
    found = [
        (at_ns, alert)
        for at_ns, alert in host_alerts(lines, config, socket.gethostname())
        if at_ns > outbox.journal_ns
    ]
    outbox.journal_ns = max((at_ns for at_ns, _ in found), default=outbox.journal_ns)
    return [alert for _, alert in found]
