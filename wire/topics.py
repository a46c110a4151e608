"""Topics of the transport: names, keys and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .envelope import OVERHEAD_BYTES, Kind
from .epoch import EPOCH_BYTES
from .fields import MAX_D, MAX_ENTRY_BODY, MAX_ROSTER_BODY, MAX_TASK_BODY, EpochId, HostId, Scheme
from .join import SEALED_JOIN_BYTES
from .report import report_length

_SIGNED: Final = 16 + 4 + 128


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    kind       of every envelope in it
    max_bytes  of an envelope; a longer record is refused before anything else
    compacted  the last record of a key stays; else records go with time (`delete`)
    """

    name: str
    kind: Kind
    partitions: int
    max_bytes: int
    compacted: bool


TASKS: Final = "plst1.tasks"
ROSTERS: Final = "plst1.rosters"
KEYS: Final = "plst1.keys"
EPOCHS: Final = "plst1.epochs"
REPORTS: Final = "plst1.reports"
RELEASES: Final = "plst1.releases"
JOINS: Final = "plst1.joins"
ENTRIES: Final = "plst1.entries"
DEAD_LETTERS: Final = "plst1.dead-letters"
"""What a Leader refused, in words: JSON, no envelope, and only where its operator asks for it."""

EXPIRING: Final = frozenset({EPOCHS, REPORTS, DEAD_LETTERS})
"""Topics whose records go with age; what the others hold stays, or is compacted."""


def _topic(name: str, kind: Kind, partitions: int, core: int, *, compacted: bool) -> Topic:
    return Topic(name, kind, partitions, core + OVERHEAD_BYTES, compacted)


TOPICS: Final = (
    _topic(TASKS, Kind.TASK, 1, MAX_TASK_BODY + _SIGNED, compacted=True),
    _topic(ROSTERS, Kind.ROSTER, 1, MAX_ROSTER_BODY + _SIGNED, compacted=True),
    _topic(KEYS, Kind.KEY_ANNOUNCEMENT, 1, 1344, compacted=True),
    _topic(EPOCHS, Kind.EPOCH, 4, max(EPOCH_BYTES.values()), compacted=False),
    _topic(REPORTS, Kind.REPORT, 4, report_length(MAX_D, Scheme.LOCAL), compacted=False),
    _topic(RELEASES, Kind.RELEASE, 1, 272, compacted=False),
    _topic(JOINS, Kind.JOIN_REQUEST, 1, SEALED_JOIN_BYTES, compacted=False),
    _topic(ENTRIES, Kind.ENTRY_ANSWER, 1, MAX_ENTRY_BODY + _SIGNED, compacted=False),
)


KEPT: Final = frozenset(topic.name for topic in TOPICS) - EXPIRING
"""Topics that are read from the oldest record on by each process that starts: never purged."""


def task_key(series: str) -> bytes:
    return series.encode()


def roster_key() -> bytes:
    return b"roster"


def announcement_key(party_pk: bytes, key_id: bytes) -> bytes:
    return party_pk + key_id


def epoch_key(host: HostId, epoch: EpochId) -> bytes:
    """Epochs are keyed by (host, epoch), so that twins meet in one partition."""
    return host + epoch


def report_key(host: HostId) -> bytes:
    """Reports are keyed by host, so that all reports of a host meet in one partition."""
    return bytes(host)


def release_key(series: str, cohort: int) -> bytes:
    """One chain per series and cohort."""
    return series.encode() + cohort.to_bytes(4, "big")


def join_key(ed25519_pk: bytes) -> bytes:
    """Joins and their answers are keyed by the host's public key."""
    return ed25519_pk
