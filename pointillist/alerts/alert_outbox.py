"""What is to be told and to whom it was: kept in one file, written before anything is sent.

A crash or a receiver that is away loses nothing: what was not taken stays and is sent again, and
what was taken is not told twice.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aggregator.state.state_file import write_durably

from .alert import Alert

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
        return [kept for kept in self.kept.values() if _is_due(kept, receiver, now_s, again_s)]

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
            "alerts": {
                name: {"alert": kept.alert.document(), "taken_s": kept.taken_s}
                for name, kept in self.kept.items()
            },
        }
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.path, json.dumps(document).encode())


def _is_due(kept: KeptAlert, receiver: str, now_s: float, again_s: float | None) -> bool:
    taken_s = kept.taken_s.get(receiver)
    if taken_s is None:
        return True
    return again_s is not None and now_s < kept.alert.ends_s and now_s - taken_s >= again_s
